"""The harness itself: it starts, pauses and kills what it says it does."""

from __future__ import annotations

import threading

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory
from proxy import Proxy
from servers import PATIENCE_SECONDS, wait_until


def test_ensembles_are_separate_and_empty(ensembles: EnsembleFactory) -> None:
    first, second = ensembles(2)
    clients = [KazooClient(ensemble.hosts) for ensemble in (first, second)]
    for client in clients:
        client.start(PATIENCE_SECONDS)
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
    client.start(PATIENCE_SECONDS)
    client.create("/kept", b"value")
    client.stop()
    ensemble.kill()
    assert not ensemble.serving()
    ensemble.start()
    client.start(PATIENCE_SECONDS)
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
    ensemble.wait_serving()


def test_three_servers_elect_one_leader(ensembles: EnsembleFactory) -> None:
    (ensemble,) = ensembles(1, size=3)
    leader = ensemble.leader()
    wait_until(lambda: len(ensemble.followers()) == 2, "two followers")
    leader.kill()
    client = KazooClient(ensemble.hosts)
    client.start(PATIENCE_SECONDS)
    client.create("/after-the-leader-died")
    client.stop()
    client.close()
    ensemble.start()
    wait_until(lambda: len(ensemble.followers()) == 2, "two followers again")


def test_a_client_whose_packets_are_held_loses_its_session(
    ensembles: EnsembleFactory,
) -> None:
    """Also though it notices that no ping is answered, and tries to reconnect."""
    server = ensembles(1)[0].servers[0]
    proxy = Proxy(server.client_port)
    held = KazooClient(proxy.address, timeout=4)
    held.start(PATIENCE_SECONDS)
    other = KazooClient(server.address, timeout=30)
    other.start(PATIENCE_SECONDS)
    lost = threading.Event()
    held.add_listener(lambda state: state == KazooState.LOST and lost.set())
    held.retry(held.create, "/ephemeral", ephemeral=True)
    proxy.hold()
    wait_until(lambda: other.exists("/ephemeral") is None, "the session's end")
    proxy.release()
    assert lost.wait(PATIENCE_SECONDS)
    for client in (held, other):
        client.stop()
        client.close()
    proxy.close()
