"""A watch that a held answer leaves, and the events that are held with it, on
connections that only note what they would send (`test_held_reads.py`)."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import WatchedEvent

from fakes import stat
from parkazoo.watching import CHILDREN
from servers import wait_until
from test_held_reads import PATH, Moving, copy, value


class Watched(Moving):
    """`told` also says whose watch was told of what."""

    def __init__(self) -> None:
        super().__init__()
        self.client._stopped.clear()  # else no watch is entered

    def read(self, kind: str, word: str) -> tuple[Any, Any]:
        """Read with a watch that is called `word`; what is on the wire for it."""
        ask = {"get": self.client.get_async, "exists": self.client.exists_async}[kind]

        def watch(event: Any) -> None:
            self.told.append(f"{word}: {event.type}")

        self._noted(word, ask(PATH, watch))
        ((request, reply),) = self.sent(self.old)
        return request, reply

    def copies(self) -> Any:
        """Let its ensemble tell that the table has changed; what reads the copy."""
        self.announce(self.old)
        ((_, reply),) = self.replies(self.old)
        return reply


def fire(request: Any, kind: str = "CHANGED") -> None:
    """The event of the watch that a request has left; a server tells it once."""
    request.watcher(WatchedEvent(kind, "CONNECTED", request.path))


@pytest.mark.parametrize("kind", ["get", "exists"])
def test_the_event_of_a_watch_that_a_held_answer_left_is_told_after_it(
    kind: str,
) -> None:
    """It was told to nobody, and nothing was left at the server: a lock waited
    for ever."""
    fake = Watched()
    request, reply = fake.read(kind, "w")
    table = fake.copies()
    reply.set(value(b"x") if kind == "get" else stat())
    fire(request)
    assert fake.told == [], "the shard may have left"
    table.set(copy(fake.table))
    assert fake.told == ["w", "w: CHANGED"]


def test_the_event_that_makes_an_absent_node_is_told_after_the_held_answer() -> None:
    fake = Watched()
    request, reply = fake.read("exists", "w")
    table = fake.copies()
    reply.set(None)
    fire(request, "CREATED")
    table.set(copy(fake.table.next()))
    assert fake.told == ["w", "w: CREATED"]


@pytest.mark.parametrize("by_write", [False, True], ids=["by copy", "by write"])
def test_an_event_is_told_before_the_held_answer_that_shows_what_it_tells(
    by_write: bool,
) -> None:
    """And not to the watch that this answer leaves."""
    fake = Watched()
    first, reply = fake.read("get", "w1")
    reply.set(value(b"x"))
    _, reply = fake.read("get", "w2")
    fake.set()
    ((_, write),) = fake.replies(fake.old)
    table = fake.copies()
    fire(first)
    reply.set(value(b"y"))
    assert fake.told == ["w1"]
    if by_write:
        write.set([stat(1)])
        assert fake.told == ["w1", "w1: CHANGED", "w2", "set"]
    else:
        table.set(copy(fake.table))
        assert fake.told == ["w1", "w1: CHANGED", "w2"]


def test_the_event_of_a_node_cleaned_up_after_a_move_is_told_to_nobody() -> None:
    fake = Watched()
    request, reply = fake.read("get", "w")
    reply.set(value(b"x"))
    table = fake.copies()
    fire(request, "DELETED")
    table.set(copy(fake.switched))
    assert fake.told == ["w"]


def test_the_event_of_a_listing_is_not_missed_as_its_watch_is_entered() -> None:
    """It comes on another connection's thread than the last answer."""
    fake = Watched()
    watches, told = fake.client._watches, fake.told
    asked = fake.client.get_children_async("/d", lambda event: told.append(event.type))

    class Busy:
        """A lock that another thread takes as soon as it is free."""

        def __init__(self) -> None:
            self.lock, self.waiting = watches.lock, True

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()
            if self.waiting:
                self.waiting = False
                watches.happened(CHILDREN, "/d", "CHILD")

    ((_, reply),) = fake.sent("e0") + fake.sent("e1")
    watches.lock = Busy()
    reply.set((["x"], stat(0, 1)))
    assert asked.get_nowait() == ["x"]
    assert told == ["CHILD"]


@pytest.mark.parametrize("kind", ["data", "children"])
def test_what_a_watch_rests_on_is_left_though_the_connection_drops_meanwhile(
    kind: str,
) -> None:
    """After a move, or when a bucket has gone: nothing was left, and nobody told."""
    fake = Watched()
    fake.client.handler.spawn = lambda work, *about: work(*about)
    watches, told = fake.client._watches, fake.told

    def again() -> Any:
        wait_until(
            lambda: any(fake[name]._queue for name in ("e0", "e1")), "it is asked for"
        )
        ((_, reply),) = fake.sent("e0") + fake.sent("e1")
        return reply

    def watch(event: Any) -> None:
        told.append(event.type)

    if kind == "data":
        fake.client.get_async("/d", watch)
        again().set(value(b"x"))
        watches._arm_again("/d")
    else:
        fake.client.get_children_async("/d", watch)
        again().set((["x"], stat(0, 1)))
        watches.look_again("/d")
    again().set_exception(ConnectionLoss())
    again().set(stat(1) if kind == "data" else (["y"], stat(0, 1)))
    assert told == ["CHANGED" if kind == "data" else "CHILD"]
