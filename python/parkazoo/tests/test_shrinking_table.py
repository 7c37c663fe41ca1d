"""Calls under way as an ensemble leaves the namespace or a session is lost, on
connections that only note what they would send (`test_held_reads.py`)."""

from __future__ import annotations

import threading
from typing import Any

from kazoo.exceptions import SessionExpiredError

from parkazoo.mapping import Table
from parkazoo.wire import ShardMoved
from servers import PATIENCE_SECONDS
from test_held_reads import Moving, copy


class Shrinking(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.sessions = self.client._sessions

    def without(self, name: str) -> Table:
        """A later table, by which all is on the other ensemble."""
        hosts = {n: h for n, h in self.table.ensembles.items() if n != name}
        table, (left,) = self.switched.next().next(), hosts
        for shard in range(len(table.owners)):
            table = table.with_owner(shard, left, 5)
        return table.with_ensembles(hosts)

    def leave(self, name: str) -> None:
        """An ensemble leaves just as its session is looked for."""
        session, table = self.sessions.session, self.without(name)

        def shrunk(name: str, openly: bool = True) -> Any:
            self.sessions.table = table
            return session(name, openly)

        self.sessions.session = shrunk  # type: ignore[method-assign]
        del self.sessions.by_name[name]


def test_a_call_to_an_ensemble_that_just_left_goes_where_its_shard_is() -> None:
    """A KeyError ended the connection of whoever met it."""
    fake = Shrinking()
    fake.leave(fake.old)
    fake.set()
    assert fake.words(fake.new) == ["set"]


def test_what_waited_goes_where_its_shard_is_by_the_newest_table() -> None:
    fake = Shrinking()
    fake.set("w1")
    ((_, reply),) = fake.replies(fake.old)
    reply.set(ShardMoved())
    fake.announce(fake.old)
    ((_, table),) = fake.replies(fake.old)
    fake.leave(fake.new)
    table.set(copy(fake.switched))
    assert fake.words(fake.old) == ["w1"]


def test_a_session_may_be_lost_as_calls_are_released() -> None:
    """Each had a lock that the other needed."""
    fake = Shrinking()
    fake.set()
    ((_, reply),) = fake.replies(fake.old)
    reply.set(ShardMoved())
    submit, free = fake[fake.new].submit, []

    def give_up() -> None:
        with fake.sessions.lock:
            fake.client._fencing.give_up(SessionExpiredError())

    losing = threading.Thread(target=give_up)

    def open_first(request: Any, reply: Any) -> None:
        losing.start()
        losing.join(0.3)
        free.append(fake.sessions.lock.acquire(timeout=10))  # as opening one does
        if free == [True]:
            fake.sessions.lock.release()
        submit(request, reply)

    fake[fake.new].submit = open_first  # type: ignore[method-assign]
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    losing.join(PATIENCE_SECONDS)
    assert free == [True]
    assert fake.words(fake.new) == ["set"]


def test_a_request_to_the_seat_goes_to_the_new_one_if_the_seat_just_left() -> None:
    fake = Shrinking()
    seat = fake.table.seat
    other = next(name for name in fake.table.ensembles if name != seat)
    fake.leave(seat)
    fake.client.exists_async("/zookeeper/x")
    ((request, _),) = fake.sent(other)
    assert request.path == "/zookeeper/x"
