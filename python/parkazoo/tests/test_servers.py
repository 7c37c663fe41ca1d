"""The harness itself: it starts, pauses and kills what it says it does."""

from __future__ import annotations

import threading

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory
from proxy import Proxy
from servers import wait_until


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


def test_a_client_whose_packets_are_held_loses_its_session(
    ensembles: EnsembleFactory,
) -> None:
    proxy = Proxy(ensembles(1)[0].servers[0].client_port)
    held = KazooClient(proxy.address, timeout=2)
    held.start(10)
    held.create("/ephemeral", ephemeral=True)
    mine = proxy.connections()
    other = KazooClient(proxy.address, timeout=2)
    other.start(10)
    lost = threading.Event()
    held.add_listener(lambda state: state == KazooState.LOST and lost.set())
    proxy.hold(mine)
    wait_until(lambda: other.exists("/ephemeral") is None, 10, "the session's end")
    assert not lost.is_set()
    proxy.release()
    assert lost.wait(10)
    for client in (held, other):
        client.stop()
        client.close()
    proxy.close()
