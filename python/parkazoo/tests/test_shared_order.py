"""Who shares the read of a bucket: on connections that only note what they would
send, so that an answer can come from any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KeeperState

from fakes import Fake
from parkazoo.sharing import Shared


def shares(fake: Fake, name: str) -> int:
    return sum(type(request) is Shared for request, _ in fake[name]._queue)


@pytest.mark.parametrize(
    "between",
    [
        lambda client, path: client.sync_async(path),
        lambda client, path: client.get_children_async(path),
        lambda client, path: client.get_async(f"{path}/c0"),
        lambda client, path: client.exists_async(f"{path}/c0"),
        lambda client, path: client.get_acls_async(f"{path}/c0"),
        lambda client, path: client.set_async(f"{path}/c0", b""),
        lambda client, path: client.create_async(f"{path}/c0"),
        lambda client, path: client.delete_async(f"{path}/c0"),
    ],
    ids=["sync", "list", "get", "exists", "acls", "set", "create", "delete"],
)
def test_no_read_is_told_of_a_moment_before_an_earlier_request(
    between: Callable[[Any, str], Any],
) -> None:
    """It was joined to one that was still queued, ahead of what it must see."""
    fake = Fake()
    path = fake.directory("e0", "e1")
    first = fake.client.get_async(path)
    between(fake.client, path)
    last = fake.client.get_async(path)
    sent = fake.sent("e1")
    # The server catches up behind its answer to the first.
    for number, (request, reply) in enumerate(sent):
        if type(request) is Shared:
            fake.answer(request, reply, children=number)
    for request, reply in fake.sent("e0"):
        fake.answer(request, reply)
    assert first.get_nowait()[1].numChildren == 0
    assert last.get_nowait()[1].numChildren == len(sent) - 1 > 0


def test_requests_about_the_directory_itself_share_one_read() -> None:
    fake = Fake()
    path = fake.directory("e1", "e1")
    for _ in range(3):
        fake.client.set_async(path, b"")
        fake.client.get_async(path)
        fake.client.exists_async(path)
        fake.client.get_acls_async(path)
    assert shares(fake, "e1") == 1


def test_nobody_shares_where_the_directory_and_its_children_are_on_one_shard() -> None:
    """One who made a child and then set the value is seen to have done both."""
    fake = Fake()
    fake.client.rules = fake.client._layout.rules = type(fake.client.rules)(
        colocate=("/app",)
    )
    layout = fake.client._layout
    layout.learn("/app/d", True)
    assert layout.node("/app/d").shard == layout.buckets("/app/d")[0].shard
    for _ in range(3):
        fake.client.get_async("/app/d")
    name = fake.table.owners[layout.node("/app/d").shard]
    assert shares(fake, name) == 3


@pytest.mark.parametrize("first", ["e0", "e1"])
def test_joined_replies_are_told_in_the_order_in_which_they_were_asked_for(
    first: str,
) -> None:
    """Whichever of the two ensembles answers first."""
    fake, told = Fake(), list[int]()
    path = fake.directory("e0", "e1")
    for number in range(4):
        result = fake.client.get_async(path)
        result.rawlink(lambda _, n=number: told.append(n))
    for name in sorted(["e0", "e1"], reverse=first == "e1"):
        for request, reply in fake.sent(name):
            fake.answer(request, reply)
    assert told == [0, 1, 2, 3]


def test_all_who_share_a_read_hear_that_it_could_not_be_sent() -> None:
    fake = Fake()
    path = fake.directory("e0", "e1")
    wake = fake["e1"]._connection.wake

    def joined_meanwhile() -> None:
        fake["e1"]._connection.wake = wake  # type: ignore[method-assign]
        results.append(fake.client.get_async(path))
        fake.cut("e1")
        fake["e1"]._connection.wake()

    results: list[Any] = []
    fake["e1"]._connection.wake = joined_meanwhile  # type: ignore[method-assign]
    results.append(fake.client.get_async(path))
    for request, reply in fake.sent("e0"):
        fake.answer(request, reply)
    for result in results:
        with pytest.raises(Exception, match="closed"):
            result.get_nowait()


def test_nobody_joins_a_read_that_was_lost_with_its_connection() -> None:
    """Kazoo forgets what is queued just as it empties its queue."""
    fake = Fake()
    path = fake.directory("e0", "e1")
    fake.client.get_async(path)
    fake["e1"]._queue.clear()
    fake["e1"]._session_callback(KeeperState.CONNECTING)
    fake["e1"]._session_callback(KeeperState.CONNECTED)
    fake["e1"]._look_there = lambda: None  # type: ignore[method-assign]
    fake["e1"].connection_made()
    fake.client.get_async(path)
    assert shares(fake, "e1") == 1


def test_who_joins_while_others_are_told_is_told_after_them() -> None:
    shared: Any = Shared(None)  # type: ignore[arg-type]
    told: list[int] = []

    class Told:
        def __init__(self, number: int) -> None:
            self.number = number

        def set(self, value: Any = None) -> None:
            if self.number == 0:
                shared.join(Told(2))  # it had looked before, and was slow
            told.append(self.number)

        def set_exception(self, error: Exception) -> None:
            raise ConnectionLoss

    shared.join(Told(0))
    shared.join(Told(1))
    shared.set("stat")
    assert told == [0, 1, 2]
