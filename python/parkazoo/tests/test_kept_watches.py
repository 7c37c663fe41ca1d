"""Watches of a client whose connection to one ensemble drops and comes back while its
logical state does not change, since another ensemble is away all the time: nobody was
told of anything, and nothing was left at the server. A lock waited for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import EventType, KazooState

from conftest import EnsembleFactory
from parkazoo import ParKazooClient, PooledClient
from parkazoo.keeping import WATCHES_BYTES_MAX
from servers import PATIENCE_SECONDS, Ensemble, wait_until

Change = Callable[[], Any]


class Lame(NamedTuple):
    """`client` and `other` of two ensembles, one of which is away. The children of
    `path` are on the one that is not, named `well`."""

    client: Any
    other: Any
    path: str
    well: str
    broken: Ensemble

    @property
    def carrier(self) -> Any:
        return getattr(self.client, "_carrier", self.client)

    @property
    def session(self) -> Any:
        return self.carrier._sessions.by_name[self.well]

    def drop(self, monkeypatch: Any, change: Change = lambda: None) -> None:
        """Drop the connection that there is, and change something before it is back."""
        session, sessions = self.session, self.session.owner
        asked, told = session.asked, sessions.ensemble_changed

        def noted(ensemble: Any, state: str) -> None:
            if ensemble is session and state == KazooState.SUSPENDED:
                change()
            told(ensemble, state)

        with monkeypatch.context() as patched:
            patched.setattr(sessions, "ensemble_changed", noted)
            session._call(_CONNECTION_DROP, None)
            wait_until(
                lambda: session.asked > asked and not session.suspect, "it is back"
            )


def owner_of_children(client: Any, path: str) -> str:
    assert client.table is not None
    layout = getattr(client, "_carrier", client)._layout
    return str(client.table.owners[layout.buckets(path)[0].shard])


def made_lame(
    ensembles: EnsembleFactory,
    kind: Any,
    before: Callable[[Any, str], None] = lambda client, path: None,
) -> Iterator[Lame]:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    client = kind(hosts, timeout=40, degraded=True)
    other = ParKazooClient(hosts, timeout=40, degraded=True)
    clients = (client, other)
    try:
        for each in clients:
            each.start(PATIENCE_SECONDS)
        table = other.table
        assert table is not None
        well = owner_of_children(other, "/")
        path = next(
            path
            for path in (f"/w{number}" for number in range(1000))
            if owner_of_children(other, path) == well
        )
        other.create(f"{path}/x", b"old", makepath=True)
        before(client, path)
        gone = next(hosts for name, hosts in table.ensembles.items() if name != well)
        broken = next(ensemble for ensemble in taken if ensemble.hosts == gone)
        broken.kill()
        for each in clients:
            wait_until(lambda c=each: c.state == KazooState.SUSPENDED, "suspended")
        yield Lame(client, other, path, well, broken)
    finally:
        for each in clients:
            each.stop()
            each.close()


@pytest.fixture
def lame(ensembles: EnsembleFactory) -> Iterator[Lame]:
    yield from made_lame(ensembles, ParKazooClient)


@pytest.fixture(params=[ParKazooClient, PooledClient], ids=["alone", "pooled"])
def lame_of_both_kinds(ensembles: EnsembleFactory, request: Any) -> Iterator[Lame]:
    yield from made_lame(ensembles, request.param)


WHEN = pytest.mark.parametrize("away", [True, False], ids=["away", "back"])


@WHEN
def test_each_watch_is_told_once_of_what_happens(
    lame_of_both_kinds: Lame, monkeypatch: Any, away: bool
) -> None:
    lame = lame_of_both_kinds
    client, other, path = lame.client, lame.other, lame.path
    for name in ("kept", "gone", "full", "empty", "still"):
        other.create(f"{path}/{name}")
    other.create(f"{path}/full/child")
    told: list[tuple[str, str, str]] = []

    def watch(word: str) -> Callable[[Any], None]:
        return lambda event: told.append((word, event.type, event.path))

    client.get(f"{path}/x", watch=watch("get"))
    client.get(f"{path}/gone", watch=watch("get"))
    client.exists(f"{path}/kept", watch=watch("exists"))
    client.exists(f"{path}/made", watch=watch("exists"))
    client.get_children(path, watch=watch("children"))
    client.get(f"{path}/still", watch=watch("unchanged"))
    client.exists(f"{path}/never", watch=watch("unchanged"))

    def change() -> None:
        other.set(f"{path}/x", b"new")
        other.delete(f"{path}/gone")
        other.set(f"{path}/kept", b"new")
        other.create(f"{path}/made")

    if away:
        lame.drop(monkeypatch, change)
    else:
        lame.drop(monkeypatch)
        change()
    wait_until(lambda: len(told) >= 5, f"all are told: {told}")
    lame.drop(monkeypatch)
    assert client.get(f"{path}/x")[0] == b"new"
    assert sorted(told) == [
        ("children", EventType.CHILD, path),
        ("exists", EventType.CHANGED, f"{path}/kept"),
        ("exists", EventType.CREATED, f"{path}/made"),
        ("get", EventType.CHANGED, f"{path}/x"),
        ("get", EventType.DELETED, f"{path}/gone"),
    ]
    other.set(f"{path}/still", b"new")
    other.create(f"{path}/never")
    wait_until(lambda: len(told) == 7, "those that were left twice are told, too")


@WHEN
def test_who_waits_for_a_lock_gets_it(
    lame_of_both_kinds: Lame, monkeypatch: Any, away: bool
) -> None:
    lame = lame_of_both_kinds
    lock = lame.other.Lock(lame.path, "holder")
    lock.acquire()
    got = threading.Event()
    waiter = lame.client.Lock(lame.path, "waiter")
    thread = threading.Thread(target=lambda: waiter.acquire() and got.set())
    thread.start()
    wait_until(lambda: any(lame.carrier._data_watchers.values()), "it waits")
    if away:
        lame.drop(monkeypatch, lock.release)
    else:
        lame.drop(monkeypatch)
        lock.release()
    try:
        assert got.wait(PATIENCE_SECONDS)
    finally:
        waiter.cancel()
        thread.join(1)


@WHEN
def test_data_and_children_watches_stay_up_to_date(
    lame: Lame, monkeypatch: Any, away: bool
) -> None:
    data: list[Any] = []
    names: list[Any] = []
    lame.client.DataWatch(f"{lame.path}/x", lambda value, stat: data.append(value))
    lame.client.ChildrenWatch(lame.path, names.append)

    def change() -> None:
        lame.other.set(f"{lame.path}/x", b"new")
        lame.other.create(f"{lame.path}/y")

    if away:
        lame.drop(monkeypatch, change)
    else:
        lame.drop(monkeypatch)
        change()
    wait_until(lambda: data == [b"old", b"new"], "the data is told")
    wait_until(lambda: sorted(names[-1]) == ["x", "y"], "the children are told")
    assert len(names) == 2


def test_more_watches_than_fit_in_one_request_are_left_again(
    lame: Lame, monkeypatch: Any
) -> None:
    stem = f"{lame.path}/{'n' * 200}"
    count = 2 * WATCHES_BYTES_MAX // len(stem)
    told: list[str] = []
    asked = [
        lame.client.exists_async(
            f"{stem}{number}", watch=lambda event: told.append(event.path)
        )
        for number in range(count)
    ]
    for result in asked:
        assert result.get() is None
    lame.drop(monkeypatch)
    made = [f"{stem}{number}" for number in (0, count // 2, count - 1)]
    for path in made:
        lame.other.create(path)
    wait_until(lambda: sorted(told) == sorted(made), "they are told")


def test_a_watch_that_is_left_while_another_member_is_away_is_kept(
    ensembles: EnsembleFactory, monkeypatch: Any
) -> None:
    """Not degraded: its read was asked before the other one went."""
    taken = ensembles(2)
    client = ParKazooClient(";".join(e.hosts for e in taken), timeout=40)
    client.start(PATIENCE_SECONDS)
    try:
        path = next(
            path
            for path in (f"/w{number}" for number in range(1000))
            if owner_of_children(client, path) == "e1"
        )
        client.create(f"{path}/x", b"old", makepath=True)
        assert client.table is not None
        hosts = client.table.ensembles
        away, well = (
            next(e for e in taken if e.hosts == hosts[name]) for name in ("e0", "e1")
        )
        told: list[Any] = []
        well.pause()
        asked = client.get_async(f"{path}/x", watch=told.append)
        away.pause()
        client._sessions.by_name["e0"]._call(_CONNECTION_DROP, None)
        wait_until(lambda: client.state == KazooState.SUSPENDED, "it is suspended")
        well.resume()
        assert asked.get(PATIENCE_SECONDS)[0] == b"old"
        Lame(client, None, path, "e1", away).drop(monkeypatch)
        away.resume()
        wait_until(lambda: client.connected, "it is connected", 60)
        client.set(f"{path}/x", b"new")
        wait_until(lambda: [e.type for e in told] == [EventType.CHANGED], "told once")
    finally:
        for ensemble in taken:
            ensemble.resume()
        client.stop()
        client.close()


def test_watches_of_a_degraded_client_are_not_interrupted(
    ensembles: EnsembleFactory,
) -> None:
    """`ChildrenWatch` passes over an interruption, and was old until all were back."""
    names: list[Any] = []
    told: list[Any] = []
    heard: list[str] = []
    away: list[str] = []

    def before(client: Any, path: str) -> None:
        client.ChildrenWatch(path, names.append)
        well = owner_of_children(client, path)
        away.extend(
            other
            for other in (f"/v{number}" for number in range(100))
            if owner_of_children(client, other) != well
        )
        client.create(f"{away[0]}/x", makepath=True)
        client.get(f"{away[0]}/x", watch=told.append)
        client.add_listener(heard.append)

    for lame in made_lame(ensembles, ParKazooClient, before):
        lame.other.create(f"{lame.path}/y")
        wait_until(lambda: sorted(names[-1]) == ["x", "y"], "it is told at once")
        lame.broken.start()
        lame.other.set(f"{away[0]}/x", b"new")
        wait_until(lambda: bool(told), "what was away is told when it is back")
        assert [event.type for event in told] == [EventType.CHANGED]
        wait_until(lambda: heard[1:] == [KazooState.CONNECTED], "it is whole")
        assert heard == [KazooState.SUSPENDED, KazooState.CONNECTED]


def test_a_watch_that_is_left_after_suspended_was_told_is_kept(
    ensembles: EnsembleFactory,
) -> None:
    """Its user takes it for a new one: `ChildrenWatch` did not leave another."""
    taken = ensembles(2)
    client = ParKazooClient(";".join(e.hosts for e in taken), timeout=40)
    client.start(PATIENCE_SECONDS)
    try:
        paths = (f"/w{number}" for number in range(1000))
        path = next(p for p in paths if owner_of_children(client, p) == "e1")
        client.create(f"{path}/x", makepath=True)
        assert client.table is not None
        hosts = client.table.ensembles["e1"]
        well = next(e for e in taken if e.hosts == hosts)
        told: list[str] = []
        seen: list[Any] = []
        client.get(f"{path}/x", watch=lambda event: told.append(f"old {event.type}"))
        well.pause()
        asked = client.get_children_async(path, lambda event: told.append(event.type))

        def listener(state: str) -> None:
            if state == KazooState.SUSPENDED:
                well.resume()
                seen.append(asked.get(timeout=PATIENCE_SECONDS))

        client.add_listener(listener)
        client._sessions.by_name["e0"]._call(_CONNECTION_DROP, None)
        wait_until(lambda: bool(seen) and client.connected, "it is back")
        client.create(f"{path}/y")
        wait_until(lambda: len(told) >= 2, "both are told")
        assert told == ["old NONE", "CHILD"]
    finally:
        well.resume()
        client.stop()
        client.close()


@pytest.mark.parametrize("degraded", [False, True])
def test_a_connection_ends_while_watches_are_left_again(
    ensembles: EnsembleFactory, degraded: bool
) -> None:
    """Each was asked for again at once, on the connection that was ending all that it
    owed: so it never ended, and SUSPENDED was never told."""
    (only,) = ensembles(1)
    client = ParKazooClient(only.hosts, timeout=40, degraded=degraded)
    client.start(PATIENCE_SECONDS)
    states: list[str] = []
    client.add_listener(states.append)
    paths = [f"/w{number}" for number in range(20)]
    for path in paths:
        client.exists(path, watch=lambda event: None)
    only.pause()
    try:
        for path in paths:
            client._watches._arm_again(path)  # as after a move
        assert client.table is not None
        client._sessions.by_name[client.table.seat]._call(_CONNECTION_DROP, None)
        wait_until(lambda: KazooState.SUSPENDED in states, "it is told", 20)
    finally:
        only.resume()
    wait_until(lambda: client.state == KazooState.CONNECTED, "it is back")
    client.stop()
    client.close()
