"""A comma for a semicolon is noticed before it joins two ensembles to one."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from conftest import EnsembleFactory, started
from parkazoo import NamespaceMismatch, ParKazooClient, cli
from servers import PATIENCE_SECONDS

Said = pytest.CaptureFixture[str]


def holds(hosts: str) -> list[str]:
    """What of ours an ensemble has."""
    client = KazooClient(hosts, timeout=30)
    client.start(PATIENCE_SECONDS)
    try:
        if client.exists("/parkazoo") is None:
            return []
        return [str(name) for name in client.get_children("/parkazoo")]
    finally:
        client.stop()
        client.close()


def test_two_servers_that_run_alone_are_not_taken_for_one_ensemble(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Whoever met the one server first had a tree there, and whoever met the other had
    another; both were CONNECTED, and had the same lock."""
    one, other = (ensemble.hosts for ensemble in ensembles(2))
    joined = f"{one},{other}"
    for _ in range(3):  # which of them is met first is chance
        client = ParKazooClient(joined, timeout=30)
        with pytest.raises(NamespaceMismatch, match="semicolon"):
            client.start(PATIENCE_SECONDS)
        assert cli.main(["--hosts", joined, "init"]) == 2
        said = capsys.readouterr().err
        assert f"{one};{other}" in said or f"{other};{one}" in said
    assert (holds(one), holds(other)) == ([], [])
    assert cli.main(["--hosts", f"{one};{other}", "init"]) == 0


def test_a_server_that_runs_alone_beside_one_that_is_away_is_no_ensemble(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    well, away = ensembles(2)
    away.kill()
    joined = f"{well.hosts},{away.hosts}"
    assert cli.main(["--hosts", joined, "init"]) == 2
    assert "runs alone" in capsys.readouterr().err
    assert holds(well.hosts) == []


def test_an_ensemble_one_of_whose_servers_is_away_becomes_a_namespace(
    ensembles: EnsembleFactory,
) -> None:
    (three,) = ensembles(1, 3)
    three.followers()[0].kill()
    with started(three.hosts) as client:
        client.create("/a/b", makepath=True)
        assert client.table is not None and len(client.table.ensembles) == 1
    assert not [name for name in holds(three.hosts) if name.startswith("mark")]


def test_an_ensemble_that_joins_is_one(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    first, one, other = (ensemble.hosts for ensemble in ensembles(3))
    assert cli.main(["--hosts", first, "init"]) == 0
    assert cli.main(["--hosts", first, "add-ensemble", f"{one},{other}"]) == 2
    assert "semicolon" in capsys.readouterr().err
    assert (holds(one), holds(other)) == ([], [])
