"""Transactions over several shards while one of these moves, on connections that only
note what they would send (`test_held_reads.py`)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.protocol.serialization import Delete, GetChildren

from fakes import Fake, stat
from parkazoo import CrossShardTransaction, intents, remove
from parkazoo.layout import fence
from parkazoo.mapping import Table
from parkazoo.steps import MultiFailed
from parkazoo.wire import Fenced, ShardMoved
from servers import PATIENCE_SECONDS
from test_held_reads import copy, value

ONE = Table.initial({"e0": "h0:1"})
TWO = ONE.with_ensembles({"e0": "h0:1", "e1": "h1:1"}).next()


class Together(Fake):
    """All shards on the first ensemble; `/a/x` is a directory in one shard, with its
    bucket in another, and `/b/y` is in a third."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.silent()
        self.client._sessions.table = table
        layout = self.client._layout
        self.a, self.b = layout.node("/a/x").shard, layout.node("/b/y").shard
        self.bucket = layout.buckets("/a/x")[0].shard
        assert len({self.a, self.b, self.bucket}) == 3

    def adopt(self, table: Table) -> None:
        self.client._sessions.adopt(table)

    def one(self, name: str = "e0") -> tuple[Any, Any]:
        """The only request that is on the wire to an ensemble."""
        ((request, reply),) = self.sent(name)
        return request, reply

    def awaited(self) -> tuple[Any, Any]:
        """What another thread sends to the first ensemble, in a moment."""
        deadline = time.monotonic() + 10
        while not self["e0"]._queue and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.one()

    def refused(self, reply: Any) -> Any:
        """Refuse to delete the directory, and show its link. The reply to what then
        looks into its bucket."""
        reply.set(MultiFailed(0, NotEmptyError()))
        request, reply = self.one()
        assert type(request) is GetChildren
        reply.set(["link"])
        request, reply = self.one()
        assert type(request) is GetChildren
        return reply


def fences(request: Any) -> list[str]:
    assert isinstance(request, Fenced)
    return [path for path, _ in request.fences]


def test_a_second_attempt_is_not_sent_to_where_a_shard_has_left() -> None:
    """There a fence may stand with the same version until it is cleaned up, and what
    passes it is lost with it."""
    fake = Together(ONE)
    asked = fake.client.transaction()
    asked.delete("/a/x")
    asked.set_data("/b/y", b"")
    done = asked.commit_async()
    request, reply = fake.one()
    assert set(fences(request)) == {fence(fake.a), fence(fake.b)}
    reply = fake.refused(reply)
    fake.adopt(TWO.with_owner(fake.b, "e1", 1))
    reply.set_exception(NoNodeError())
    assert fake.sent("e0") == fake.sent("e1") == []
    with pytest.raises(CrossShardTransaction):
        done.get_nowait()


def test_a_bucket_that_leaves_meanwhile_is_closed_where_it_is() -> None:
    fake = Together(TWO)
    asked = fake.client.transaction()
    asked.delete("/a/x")
    done = asked.commit_async()
    _, reply = fake.one()
    reply = fake.refused(reply)
    fake.adopt(TWO.with_owner(fake.bucket, "e1", 1).next())
    reply.set_exception(NoNodeError())
    request, reply = fake.one()
    assert fences(request) == [fence(fake.a)], "begun anew"
    reply.set(MultiFailed(0, NotEmptyError()))
    fake.one()[1].set(["link"])
    request, reply = fake.one("e1")
    reply.set_exception(NoNodeError())
    request, reply = fake.one("e1")
    assert fences(request) == [fence(fake.bucket)]
    reply.set([None, None])
    request, reply = fake.one()
    assert fences(request) == [fence(fake.a)]
    reply.set([True, True])
    assert done.get_nowait() == [True]


def test_it_waits_while_any_of_its_shards_is_on_its_way() -> None:
    fake = Together(TWO)
    asked = fake.client.transaction()
    asked.delete("/a/x")
    asked.commit_async()
    _, reply = fake.one()
    reply = fake.refused(reply)
    frozen = TWO.with_frozen({fake.bucket: "e1"}).next()
    fake.adopt(frozen)
    reply.set_exception(NoNodeError())
    assert fake.sent("e0") == fake.sent("e1") == []
    fake.announce("e0")
    (_, _), (_, table) = fake.sent("e0")
    table.set(copy(frozen.with_owner(fake.bucket, "e0", 2).next()))
    request, _ = fake.one()
    assert set(fences(request)) == {fence(fake.a), fence(fake.bucket)}


def test_it_proves_the_reads_of_all_its_shards() -> None:
    fake = Together(ONE)
    told: list[str] = []
    read = fake.client.get_async("/b/y")
    read.rawlink(lambda _: told.append("get"))
    _, get = fake.one()
    asked = fake.client.transaction()
    asked.set_data("/a/x", b"")
    asked.set_data("/b/y", b"after")
    done = asked.commit_async()
    done.rawlink(lambda _: told.append("set"))
    request, write = fake.one()
    assert set(fences(request)) == {fence(fake.a), fence(fake.b)}
    fake.announce("e0")
    get.set(value(b"before"))
    assert told == []
    write.set([stat(1), stat(1)])
    assert told == ["get", "set"]


def test_what_waits_for_it_in_session_order_waits_until_it_is_answered() -> None:
    """It was put behind what had come later, when a fence had refused it."""
    fake = Together(ONE)
    fake.client._ordering.across = True
    asked = fake.client.transaction()
    asked.set_data("/a/x", b"")
    asked.set_data("/b/y", b"")
    done = asked.commit_async()
    fake.client.set_async("/a/x", b"later")
    table = ONE
    for shard in (fake.a, fake.b):
        request, reply = fake.one()
        assert set(fences(request)) == {fence(fake.a), fence(fake.b)}
        reply.set(ShardMoved(fences(request).index(fence(shard))))
        assert fake.sent("e0") == []
        table = table.with_owner(shard, "e0", 2).next()
        fake.adopt(table)
    request, reply = fake.one()
    assert set(fences(request)) == {fence(fake.a), fence(fake.b)}
    reply.set([stat(1), stat(1)])
    assert len(done.get_nowait()) == 2
    request, _ = fake.one()
    assert fences(request) == [fence(fake.a)]


@pytest.mark.parametrize("undo", [False, True], ids=["do", "undo"])
def test_a_part_of_an_intent_is_done_where_its_bucket_has_gone(undo: bool) -> None:
    """An error that is no Kazoo exception came out, and the rest was left to others."""
    fake = Together(TWO)
    found: list[Any] = []

    def part() -> None:
        client, work = fake.client, [Delete("/a/x", 0)]
        if undo:
            found.append(intents._try_undo(client, fake.a, "id", work))
        else:
            records = [{"version": 0}]
            found.extend(intents._do(client, fake.a, [0], work, records, "id"))

    thread = threading.Thread(target=part, daemon=True)
    thread.start()
    _, reply = fake.awaited()
    reply = fake.refused(reply)
    fake.adopt(TWO.with_owner(fake.bucket, "e1", 1).next())
    reply.set_exception(NoNodeError())
    request, reply = fake.awaited()
    assert fences(request) == [fence(fake.a)]
    reply.set([True, True])
    thread.join(PATIENCE_SECONDS)
    assert found == ([None] if undo else [True])


def test_the_watchman_goes_on_whatever_happens_to_him(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Together(TWO)
    sessions, rounds = fake.client._sessions, iter([ShardMoved(), KeyError("e1")])
    sessions.running = True

    def roll_forward(client: Any) -> list[str]:
        for error in rounds:
            raise error
        sessions.running = False
        return []

    monkeypatch.setattr(remove, "roll_forward", roll_forward)
    remove.watchman(fake.client, sessions.opening)
    assert not sessions.running
