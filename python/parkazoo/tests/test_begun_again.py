"""A client that gave up by itself can be started again, as Kazoo's can."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.protocol.states import KeeperState

from conftest import EnsembleFactory, running
from parkazoo import ParKazooClient, PooledClient
from parkazoo.connection import BatchingConnection
from servers import PATIENCE_SECONDS, wait_until

KINDS = [ParKazooClient, PooledClient]


@pytest.mark.parametrize("kind", KINDS)
def test_after_its_tries_were_used_up(kind: Any, ensembles: EnsembleFactory) -> None:
    """It waited for a connection that nobody made any more."""
    (taken,) = ensembles(1)
    options = {"timeout": 4, "connection_retry": {"max_tries": 1, "delay": 0.1}}
    with running(kind(taken.hosts, **options)) as client:
        client.create("/x")
        taken.kill()
        wait_until(lambda: client.client_state == KeeperState.CLOSED, "it gives up")
        taken.start()
        client.start(PATIENCE_SECONDS)
        assert client.exists("/x") is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["start", "stop and start", "restart"])
def test_after_a_connection_ended_by_a_fault_of_ours(
    kind: Any, how: str, ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was: a program that starts its client again goes on."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    receive = BatchingConnection._receive
    with running(kind(hosts, timeout=10)) as client:
        client.create("/x")

        def broken(connection: Any) -> Any:
            monkeypatch.setattr(BatchingConnection, "_receive", receive)
            raise RuntimeError("planted")

        monkeypatch.setattr(BatchingConnection, "_receive", broken)
        client.get_async("/x").wait(PATIENCE_SECONDS)
        wait_until(lambda: not client.connected, "it has ended")
        if how == "stop and start":
            client.stop()
            client.start(PATIENCE_SECONDS)
        elif how == "restart":
            client.restart()
        else:
            client.start(PATIENCE_SECONDS)
        wait_until(lambda: client.connected, "it is connected")
        assert client.retry(client.exists, "/x") is not None


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_answer_is_named(kind: Any) -> None:
    client = kind("127.0.0.1:1;127.0.0.1:2", timeout=4)
    with pytest.raises(client.handler.timeout_exception, match=r"127\.0\.0\.1:1, 127"):
        client.start(1)


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_may_start_it(kind: Any, ensembles: EnsembleFactory) -> None:
    """One took the other's start for one that had been given up, and ended it."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    for _ in range(5):
        client = kind(hosts, timeout=30)
        failed: list[BaseException] = []

        def start(client: Any = client, failed: Any = failed) -> None:
            try:
                client.start(PATIENCE_SECONDS)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == [] and client.connected
        stopping = [threading.Thread(target=client.stop) for _ in range(3)]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        client.close()
