"""A degraded client starts while one of its ensembles is down."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory
from parkazoo import NamespaceMismatch, ParKazooClient, PooledClient, cli
from servers import PATIENCE_SECONDS, wait_until
from test_degraded import DIRECTORIES, break_one


@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_a_degraded_client_starts_without_an_ensemble(
    kind: Any, ensembles: EnsembleFactory
) -> None:
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    first = ParKazooClient(hosts, timeout=40)
    first.start(PATIENCE_SECONDS)
    for path in DIRECTORIES:
        first.create(f"{path}/x", b"old", makepath=True)
    broken, well, gone = break_one(first, taken)

    client = kind(hosts, timeout=40, degraded=True)
    states: list[str] = []
    client.add_listener(states.append)

    def starts() -> bool:
        try:
            client.start(5)
        except KazooTimeoutError:  # even the others were too slow
            return False
        return True

    wait_until(starts, "it starts with the others")
    for path in well:
        assert client.get(f"{path}/x")[0] == b"old"
        assert client.set(f"{path}/x", b"new").version == 1
    waiting = [client.get_async(f"{path}/x") for path in gone]
    assert client.state == KazooState.SUSPENDED
    broken.start()
    for result in waiting:
        assert result.get(timeout=PATIENCE_SECONDS)[0] == b"old"
    wait_until(lambda: client.state == KazooState.CONNECTED, "it is whole")
    assert states[-3:] == ["CONNECTED", "SUSPENDED", "CONNECTED"]
    for one in (client, first):
        one.stop()
        one.close()


def test_status_says_which_ensemble_is_away(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    assert cli.main(["--hosts", hosts, "init"]) == 0
    taken[1].kill()
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "--json", "--timeout", "10", "status"]) == 1
    found = json.loads(capsys.readouterr().out)["ensembles"].values()
    connected = {entry["hosts"]: entry["connected"] for entry in found}
    assert connected == {taken[0].hosts: True, taken[1].hosts: False}
    assert cli.main(["--hosts", hosts, "--timeout", "3", "check"]) == 2
    assert "parkazoo status" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_hosts_of_two_namespaces_are_refused_whoever_answers_first(
    kind: Any, ensembles: EnsembleFactory
) -> None:
    one, other = ensembles(2)
    for ensemble in (one, other):
        first = ParKazooClient(ensemble.hosts, timeout=40)
        first.start(PATIENCE_SECONDS)
        first.stop()
        first.close()
    for hosts in (f"{one.hosts};{other.hosts}", f"{other.hosts};{one.hosts}"):
        for _ in range(3):
            client = kind(hosts, timeout=40)
            with pytest.raises(NamespaceMismatch):
                client.start(PATIENCE_SECONDS)
            client.stop()
            client.close()
