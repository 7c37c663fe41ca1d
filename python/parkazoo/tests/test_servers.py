"""The harness itself: it starts, pauses and kills what it says it does."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from conftest import EnsembleFactory


def test_ensembles_are_separate_and_empty(ensembles: EnsembleFactory) -> None:
    first, second = ensembles(2)
    clients = [KazooClient(ensemble.hosts) for ensemble in (first, second)]
    for client in clients:
        client.start(10)
    clients[0].create("/only-here")
    assert clients[0].exists("/only-here")
    assert not clients[1].exists("/only-here")
    assert clients[1].get_children("/") == ["zookeeper"]
    for client in clients:
        client.stop()
        client.close()


def test_a_killed_server_keeps_its_data(ensembles: EnsembleFactory) -> None:
    (ensemble,) = ensembles(1)
    client = KazooClient(ensemble.hosts)
    client.start(10)
    client.create("/kept", b"value")
    client.stop()
    ensemble.kill()
    assert not ensemble.serving()
    ensemble.start()
    client.start(10)
    assert client.get("/kept")[0] == b"value"
    client.stop()
    client.close()


def test_a_paused_ensemble_answers_nobody(ensembles: EnsembleFactory) -> None:
    (ensemble,) = ensembles(1)
    ensemble.pause()
    client = KazooClient(ensemble.hosts, timeout=1)
    with pytest.raises(KazooTimeoutError):
        client.start(1)
    client.stop()
    client.close()
    ensemble.resume()
    ensemble.wait_serving(10)


def test_three_servers_elect_one_leader(ensembles: EnsembleFactory) -> None:
    (ensemble,) = ensembles(1, size=3)
    leader = ensemble.leader()
    assert len(ensemble.followers()) == 2
    leader.kill()
    client = KazooClient(ensemble.hosts)
    client.start(20)
    client.create("/after-the-leader-died")
    client.stop()
    client.close()
    ensemble.start()
    assert len(ensemble.followers()) == 2
