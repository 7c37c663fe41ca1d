"""After an older backup of one ensemble came back, shards that had been away since take
writes again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import EnsembleFactory, started
from parkazoo import ParKazooClient, cli, failpoints
from parkazoo.check import Checker
from parkazoo.copying import GONE
from parkazoo.layout import fence
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, Ensemble
from test_client import nothing_wrong
from test_strangers import DIRECTORIES

Said = pytest.CaptureFixture[str]


def check(hosts: str, capsys: Said, *words: str) -> tuple[int, list[Any]]:
    capsys.readouterr()
    code = cli.main(["--hosts", hosts, "--json", "check", *words])
    return code, json.loads(capsys.readouterr().out)


def shard_of(client: ParKazooClient, path: str) -> int:
    return int(client._layout.buckets(path)[0].shard)


def there_and_back(client: ParKazooClient, shard: int) -> None:
    assert client.table is not None
    owner = client.table.owners[shard]
    other = next(name for name in client.table.ensembles if name != owner)
    Mover(client).move({shard: other})
    Mover(client).move({shard: owner})


@contextmanager
def backed_up(ensemble: Ensemble) -> Iterator[Callable[[], None]]:
    """Yields what brings back the data that the ensemble has now."""
    (server,) = ensemble.servers
    data: Path = server.directory / "data"
    kept = server.directory / "kept"
    ensemble.stop()
    shutil.copytree(data, kept)
    ensemble.start()

    def restore() -> None:
        ensemble.stop()
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        ensemble.start()

    yield restore


def made(hosts: str) -> tuple[str, int, str]:
    """A namespace with nodes; a directory, its shard, and the hosts of its owner."""
    with started(hosts) as client:
        for path in DIRECTORIES:
            client.create(f"{path}/x", b"ours", makepath=True)
        assert client.table is not None
        path = DIRECTORIES[3]
        shard = shard_of(client, path)
        return path, shard, client.table.ensembles[client.table.owners[shard]]


def test_a_shard_whose_owner_has_an_older_backup_takes_writes_again(
    capsys: Said,
) -> None:
    """It had been away since. Nothing was found wrong, and each write to it waited a
    minute for a move that nobody made."""
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        path, shard, listed = made(hosts)
        owner = one if one.hosts == listed else two
        with backed_up(owner) as restore:
            with started(hosts) as client:
                there_and_back(client, shard)
            restore()
        with started(hosts) as client:
            waiting = client.create_async(f"{path}/y", b"late")
            code, found = check(hosts, capsys)
            astray = [f for f in found if f["kind"] == "fence"]
            assert code == 1 and [f["where"] for f in astray] == [fence(shard)]
            assert "older backup" in astray[0]["what"] and astray[0]["mendable"]
            code, found = check(hosts, capsys, "--repair")
            astray = [f for f in found if f["kind"] == "fence"]
            assert [f["repaired"] for f in astray] == [True]
            assert waiting.get(timeout=PATIENCE_SECONDS) == f"{path}/y"
            check(hosts, capsys, "--repair")
            for each in DIRECTORIES:
                assert client.get(f"{each}/x")[0] == b"ours"
            there_and_back(client, shard)
            assert client.get_children(path) == ["x", "y"]
            assert nothing_wrong(client)


def test_a_shard_that_was_elsewhere_at_the_time_of_the_backup_is_left_alone(
    capsys: Said,
) -> None:
    """What it held is not in the backup; made writable, it would look deleted. Nor is
    anything deleted that may be what is left of it."""
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        _, shard, listed = made(hosts)
        owner = one if one.hosts == listed else two
        with started(hosts) as client:
            assert client.table is not None
            there = client.table.owners[shard]
            away = next(name for name in client.table.ensembles if name != there)
            Mover(client).move({shard: away})
        with backed_up(owner) as restore:
            with started(hosts) as client:
                Mover(client).move({shard: there})
                session = client._sessions.by_name[away]
                session.create(f"{fence(shard)}/left", b"behind")
            restore()
        code, found = check(hosts, capsys, "--repair")
        (astray,) = [f for f in found if f["kind"] == "fence"]
        assert code == 1 and astray["where"] == fence(shard)
        assert not astray["mendable"] and not astray["repaired"]
        assert "What the shard held is not in it" in astray["what"]
        (left,) = [f for f in found if f["kind"] == "leftover"]
        assert not left["repaired"]
        with started(hosts) as client:
            session = client._sessions.by_name[away]
            assert session.exists(f"{fence(shard)}/left") is not None


def test_a_fence_that_is_missing_keeps_what_others_have_of_its_shard(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    _, shard, listed = made(hosts)
    with started(hosts) as client:
        assert client.table is not None
        names = {h: n for n, h in client.table.ensembles.items()}
        owner = client._sessions.by_name[names.pop(listed)]
        other = client._sessions.by_name[names.popitem()[1]]
        owner.delete(fence(shard), recursive=True)
        other.create(f"{fence(shard)}/left", b"behind", makepath=True)
        code, found = check(hosts, capsys, "--repair")
        assert code == 1 and "fence" in [f["kind"] for f in found]
        assert other.exists(f"{fence(shard)}/left") is not None


@pytest.mark.parametrize("die", [False, True], ids=["whole", "died"])
def test_a_fence_that_is_ahead_of_the_table_is_taken_over(
    ensembles: EnsembleFactory,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    die: bool,
) -> None:
    """Somebody has set it by hand, or who raised it died before the table was told."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    path, shard, _ = made(hosts)
    with started(hosts) as client:
        assert client.table is not None
        owner = client._sessions.by_name[client.table.owners[shard]]
        owner.set(fence(shard), b"active")

        def stop(label: str, when: str) -> None:
            if label == "refence.1.raised":
                raise KeyboardInterrupt

        if die:
            monkeypatch.setattr(failpoints, "hook", stop)
            assert cli.main(["--hosts", hosts, "check", "--repair"]) == 2
            monkeypatch.setattr(failpoints, "hook", None)
        code, found = check(hosts, capsys, "--repair")
        assert code == 0 and [f["kind"] for f in found] == ["fence"]
        assert check(hosts, capsys) == (0, [])
        assert client.create(f"{path}/y") == f"{path}/y"
        owner.set(fence(shard), GONE)
        assert not any(f.repaired for f in Checker(client).run(repair=True))
