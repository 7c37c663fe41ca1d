"""Calls that few make, beside Kazoo on a plain ensemble: the same answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError, KazooException
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory, Maker, running, started
from parkazoo import ParKazooClient, PooledClient
from parkazoo.check import Checker
from servers import PATIENCE_SECONDS, wait_until
from test_recursive import one_away


@pytest.fixture(params=[KazooClient, ParKazooClient, PooledClient])
def any_client(request: Any, ensembles: EnsembleFactory) -> Iterator[Any]:
    """One after the other: whatever is said of one must be so of all."""
    count = 1 if request.param is KazooClient else 3
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(count))
    with running(request.param(hosts, timeout=30)) as client:
        yield client


def test_a_transaction_does_not_delete_the_root(any_client: Any) -> None:
    """It did: its data and ACL were gone, also for who had no rights there."""
    any_client.set("/", b"mine")
    transaction = any_client.transaction()
    transaction.delete("/")
    (refused,) = transaction.commit()
    assert isinstance(refused, BadArgumentsError)
    assert any_client.get("/")[0] == b"mine"


def test_a_transaction_over_shards_does_not_either(make: Maker) -> None:
    client = make(cross_shard="intent")
    client.ensure_path("/a/b")
    transaction = client.transaction()
    transaction.create("/a/b/c")
    transaction.create("/a/x")
    transaction.delete("/")
    assert isinstance(transaction.commit()[2], BadArgumentsError)
    assert client.exists("/") and not client.exists("/a/x")
    assert list(Checker(client).run()) == []


def test_a_sequence_node_of_the_root_needs_no_prefix(any_client: Any) -> None:
    """It was answered with "/", and was nowhere to be found."""
    first = any_client.create("/", b"1", sequence=True)
    second, stat = any_client.create("/", b"2", sequence=True, include_data=True)
    third = any_client.create("/", b"3", sequence=True, ephemeral=True)
    transaction = any_client.transaction()
    transaction.create("/", b"4", sequence=True)
    (fourth,) = transaction.commit()
    made = [first, second, third, fourth]
    numbers = [int(path[1:]) for path in made]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert [any_client.get(path)[0] for path in made] == [b"1", b"2", b"3", b"4"]
    assert {path[1:] for path in made} <= set(any_client.get_children("/"))
    assert stat.dataLength == 1
    with pytest.raises(KazooException):
        any_client.create("/")


def test_it_may_wait_for_ever_to_start(ensembles: EnsembleFactory) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    for kind in ParKazooClient, PooledClient:
        client = kind(hosts, timeout=30)
        client.start(None)
        assert client.connected
        client.stop()
        client.close()


@pytest.mark.parametrize("path", [5, None, b"/t"])
def test_what_is_no_path_is_a_type_error(any_client: Any, path: Any) -> None:
    with pytest.raises(TypeError):
        any_client.delete(path, recursive=True)
    with pytest.raises(TypeError):
        any_client.get(path)


def test_no_watch_is_called_when_its_client_stops(any_client: Any) -> None:
    called: list[Any] = []
    any_client.create("/w")
    any_client.get("/w", watch=called.append)
    any_client.get_children("/w", watch=called.append)
    any_client.exists("/none", watch=called.append)
    any_client.stop()
    wait_until(lambda: not any_client.connected, "stopped")
    assert called == []


ALICE = make_digest_acl("alice", "pw", all=True)
BEFORE_STOP: dict[str, Callable[[Any], list[Any]]] = {
    "first children": lambda c: [c.create_async(f"/d{n}/x") for n in range(20)],
    "removals": lambda c: [
        asked
        for n in range(6)
        for asked in (c.delete_async(f"/e{n}/x"), c.delete_async(f"/e{n}"))
    ],
    "ACLs": lambda c: [
        asked
        for n in range(6)
        for asked in (
            c.set_acls_async(f"/e{n}", [make_acl("world", "anyone", all=True), ALICE]),
            c.create_async(f"/e{n}/y"),
        )
    ],
}


@pytest.mark.parametrize("what", BEFORE_STOP)
def test_what_was_asked_for_before_a_stop_is_done(any_client: Any, what: str) -> None:
    """What takes several steps was dropped."""
    for n in range(20):
        any_client.create(f"/d{n}")
    for n in range(6):
        any_client.create(f"/e{n}/x", makepath=True)
    asked = BEFORE_STOP[what](any_client)
    any_client.stop()
    for each in asked:
        each.wait(PATIENCE_SECONDS)
    assert [each.exception for each in asked] == [None] * len(asked)


def test_a_transaction_over_shards_is_done_before_a_stop(make: Maker) -> None:
    client, other = make(cross_shard="intent"), make()
    for path in "/p/n", "/q/n":
        client.create(path, b"old", makepath=True)
    transaction = client.transaction()
    for path in "/p/n", "/q/n":
        transaction.set_data(path, b"new")
    asked = transaction.commit_async()
    client.stop()
    assert [stat.version for stat in asked.get(PATIENCE_SECONDS)] == [1, 1]
    assert [other.get(path)[0] for path in ("/p/n", "/q/n")] == [b"new", b"new"]


def test_a_degraded_client_syncs_with_those_that_are_there(
    ensembles: EnsembleFactory,
) -> None:
    """It waited for the one that was away, and a LockingQueue's `consume` with it."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=40, degraded=True) as client:
        with one_away(client, taken) as path:
            done = threading.Event()
            threading.Thread(
                target=lambda: client.sync(path) and done.set(), daemon=True
            ).start()
            assert done.wait(PATIENCE_SECONDS)
        assert client.sync(path) == path


def test_a_listener_that_stops_its_client_hears_that_it_cannot(
    ensembles: EnsembleFactory,
) -> None:
    """It hung, unless it was told by the first ensemble of all."""
    taken = ensembles(3)
    heard: list[BaseException | None] = []

    def stop(state: str) -> None:
        if state == KazooState.SUSPENDED and not heard:
            try:
                client.stop()
                heard.append(None)
            except RuntimeError as error:
                heard.append(error)

    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=10) as client:
        client.add_listener(stop)
        *_, last = client._sessions.by_name.values()
        last._call(_CONNECTION_DROP, None)
        wait_until(lambda: heard, "as Kazoo's, after ten seconds")
        assert "cannot join" in str(heard[0])
        assert client.state == KazooState.LOST
        wait_until(last._connection.connection_stopped.is_set, "it ends behind that")


def test_a_stop_that_is_interrupted_stops(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted as it waited for what was asked before, and its sessions, with
    the locks held there, went on."""
    client, other = make(), make()
    client.create("/mine", ephemeral=True)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client._ordering, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.stop()
    assert not client.connected
    wait_until(lambda: other.exists("/mine") is None, "its sessions have ended", 20)
