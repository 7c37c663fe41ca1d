"""Requests to one shard stay in order while it moves, on connections that only note
what they would send, so that a table can change between any two replies."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.serialization import Exists, GetData
from kazoo.protocol.states import KeeperState

from fakes import Fake, stat
from parkazoo import CrossShardTransaction
from parkazoo.layout import CONFIG, fence
from parkazoo.mapping import Table
from parkazoo.wire import Fenced, ShardMoved

PATH = "/d/x"


class Moving(Fake):
    """One node whose shard goes from `old` to `new`, with a log of what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.silent()
        self.shard = self.client._layout.node(PATH).shard
        self.old = self.table.owners[self.shard]
        self.new = next(name for name in self.table.ensembles if name != self.old)
        self.told: list[str] = []
        self.asked: dict[str, Any] = {}
        self.frozen = self.table.with_frozen({self.shard: self.new}).next()
        self.switched = self.frozen.with_owner(self.shard, self.new, 3).next()

    def get(self, word: str = "get") -> None:
        self._noted(word, self.client.get_async(PATH))

    def set(self, word: str = "set") -> None:
        self._noted(word, self.client.set_async(PATH, word.encode()))

    def _noted(self, word: str, asked: Any) -> None:
        self.asked[word] = asked
        asked.rawlink(lambda _: self.told.append(word))

    def replies(self, name: str) -> list[tuple[str, Any]]:
        """What is put on the wire to an ensemble now, by kind."""
        words = {GetData: "get", Exists: "exists"}
        found = []
        for request, reply in self.sent(name):
            reply = Pending(self[name], request, reply)
            if isinstance(request, Fenced):
                found.append((request.operations[0].data.decode(), reply))
            elif request.path == CONFIG:
                if type(request) is GetData:
                    found.append(("copy", reply))
            else:
                found.append((words[type(request)], reply))
        return found

    def words(self, name: str) -> list[str]:
        return [word for word, _ in self.replies(name)]


class Pending:
    """A reply that is waited for until it has come."""

    def __init__(self, ensemble: Any, request: Any, reply: Any) -> None:
        self.reply, self.pending = reply, ensemble._pending
        self.entry = (request, reply, 1)
        self.pending.append(self.entry)

    def set(self, value: Any) -> None:
        self.pending.remove(self.entry)
        self.reply.set(value)

    def set_exception(self, error: Exception) -> None:
        self.pending.remove(self.entry)
        self.reply.set_exception(error)


def value(data: bytes) -> tuple[bytes, Any]:
    return data, stat()


def copy(table: Table) -> tuple[bytes, Any]:
    return table.serialize(), stat()


def test_a_read_is_answered_before_the_write_that_was_sent_behind_it() -> None:
    """Its answer was dropped, and it was asked again when the write was done."""
    fake = Moving()
    fake.get()
    fake.set()
    (_, get), (_, write) = fake.replies(fake.old)
    fake.announce(fake.old)
    get.set(value(b"before"))
    assert fake.told == [], "the shard may have left"
    write.set([stat(1)])
    assert fake.told == ["get", "set"]
    assert fake.asked["get"].get_nowait()[0] == b"before"
    ((_, table),) = fake.replies(fake.old)
    table.set(copy(fake.frozen))
    assert fake.words(fake.old) == fake.words(fake.new) == []


def test_a_read_of_a_shard_that_stays_is_not_asked_again() -> None:
    fake = Moving()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    fake.announce(fake.old)
    get.set(value(b"before"))
    fake.set()  # on its way when the copy is read
    (_, table), (_, write) = fake.replies(fake.old)
    table.set(copy(fake.table.next()))
    assert fake.told == ["get"]
    assert fake.asked["get"].get_nowait()[0] == b"before"
    write.set([stat(1)])
    assert fake.told == ["get", "set"]
    assert fake.words(fake.old) == []


@pytest.mark.parametrize("error", [False, True], ids=["found", "absent"])
def test_reads_and_refused_writes_go_to_the_new_place_in_their_order(
    error: bool,
) -> None:
    fake = Moving()
    fake.get("get1")
    fake.set("w1")
    fake.get("get2")
    fake.set("w2")
    before = dict(enumerate(reply for _, reply in fake.replies(fake.old)))
    fake.announce(fake.old)
    for number in (0, 2):
        if error:
            before[number].set_exception(NoNodeError())
        else:
            before[number].set(value(b"old"))
        before[number + 1].set(ShardMoved())
    ((_, table),) = fake.replies(fake.old)
    table.set(copy(fake.frozen))
    fake.set("w3")
    assert fake.told == []
    for _ in range(2):  # the second is asked for when all have come back
        fake.announce(fake.old)
        fake.replies(fake.old)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["get", "w1", "get", "w2", "w3"]
    assert fake.words(fake.old) == fake.told == []


def test_a_shard_waits_for_what_is_behind_the_copy_that_tells_of_its_move() -> None:
    fake = Moving()
    fake.set("w1")
    ((_, first),) = fake.replies(fake.old)
    fake.announce(fake.old)
    fake.set("w2")
    (_, table), (_, second) = fake.replies(fake.old)
    first.set(ShardMoved())
    table.set(copy(fake.switched))
    fake.set("w3")
    assert fake.words(fake.new) == [], "w2 has not come back"
    second.set(ShardMoved())
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["w1", "w2", "w3"]


def test_a_shard_waits_for_its_old_place_if_another_tells_of_its_move() -> None:
    fake = Moving()
    fake.set("w1")
    ((_, first),) = fake.replies(fake.old)
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    fake.set("w2")
    assert fake.words(fake.new) == [], "w1 has not come back"
    first.set(ShardMoved())
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["w1", "w2"]


def test_nobody_waits_for_an_old_place_that_owes_no_answer() -> None:
    """It may have stopped since the shard left."""
    fake = Moving()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    get.set(value(b"before"))
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    fake.set()
    assert fake.words(fake.new) == ["set"]


def test_a_reply_that_is_being_dealt_with_is_still_waited_for() -> None:
    fake = Moving()
    fake[fake.old]._connection.taking = True
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    fake.set()
    assert fake.words(fake.new) == []
    fake[fake.old]._connection.taking = False
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["set"]


def test_nobody_overtakes_calls_that_are_being_released() -> None:
    """A shard that waits no more was open to all before the last had been sent."""
    fake = Moving()
    for word in ("w1", "w2"):
        fake.set(word)
    for _, reply in fake.replies(fake.old):
        reply.set(ShardMoved())
    late = threading.Thread(target=fake.set, args=("late",))
    submit = fake[fake.new].submit

    def slowly(request: Any, reply: Any) -> None:
        submit(request, reply)
        if late.ident is None:
            late.start()
            late.join(0.3)

    fake[fake.new].submit = slowly  # type: ignore[method-assign]
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    late.join()
    assert fake.words(fake.new) == ["w1", "w2", "late"]


def test_a_copy_elsewhere_does_not_make_a_good_answer_doubtful() -> None:
    """The old place has not been told, so its fence is as it was."""
    fake = Moving()
    fake.get()
    fake.set()
    (_, get), (_, write) = fake.replies(fake.old)
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.frozen))
    get.set(value(b"before"))
    write.set([stat(1)])
    assert fake.told == ["get", "set"]


def test_what_was_sent_by_an_older_table_is_judged_by_the_newer_one() -> None:
    """It was on the wire behind the read of the table, whose move was over by then."""
    fake = Moving()
    fake.announce(fake.old)
    fake.get()
    (_, table), (_, get) = fake.replies(fake.old)
    table.set(copy(fake.switched))
    get.set_exception(NoNodeError())
    assert fake.told == [], "the old place says nothing of it"
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["get"]


def test_a_held_read_ends_with_its_connection() -> None:
    fake = Moving()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    fake.announce(fake.old)
    get.set(value(b"before"))
    ((_, table),) = fake.replies(fake.old)
    table.set_exception(ConnectionLoss())
    with pytest.raises(ConnectionLoss):
        fake.asked["get"].get_nowait()
    assert not fake.client._fencing.held


def test_answers_are_held_until_the_newest_copy_is_read() -> None:
    """Between the first copy and the second there was no watch to tell of a move."""
    fake = Moving()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    fake.announce(fake.old)
    fake.announce(fake.old)
    (_, first), (_, second) = fake.replies(fake.old)
    first.set(copy(fake.table))
    get.set(value(b"before"))
    assert fake.told == []
    second.set(copy(fake.table))
    assert fake.told == ["get"]


def test_a_transaction_over_shards_of_which_one_leaves_is_judged_anew() -> None:
    """It waited until its first shard would leave, and all of that shard with it."""
    fake = Moving()
    client = fake.client
    one = Table.initial({"e0": "h0:1"})
    client._sessions.table = one
    asked = client.transaction()
    asked.create("/a/x")
    asked.create("/b/x")
    done = asked.commit_async()
    ((request, reply),) = fake.sent("e0")
    shard = client._layout.node("/b/x").shard
    two = one.with_ensembles({"e0": "h0:1", "e1": "h1:1"}).next()
    fake.announce("e0")
    reply.set(ShardMoved([path for path, _ in request.fences].index(fence(shard))))
    (_, _), (_, table) = fake.sent("e0")
    table.set(copy(two.with_frozen({shard: "e1"}).next()))
    client.create_async("/a/y")
    ((_, other),) = fake.sent("e0")
    other.set(["/a/y"])
    assert not done.ready(), "but the other shard is in use"
    fake.announce("e0")
    (_, _), (_, table) = fake.sent("e0")
    table.set(copy(two.with_owner(shard, "e1", 1).next().next()))
    with pytest.raises(CrossShardTransaction):
        done.get_nowait()


def test_a_call_made_as_a_newer_table_is_taken_up_is_not_overtaken() -> None:
    """Its old place was found to owe no answer, and the call was sent there then."""
    fake = Moving()
    fencing = fake.client._fencing
    left = fencing.shards_left

    def and_a_call(old: Table, table: Table) -> None:
        left(old, table)
        fake.set("w1")  # by the old table still

    fencing.shards_left = and_a_call  # type: ignore
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    fake.set("w2")
    assert fake.words(fake.old) == []
    assert fake.words(fake.new) == ["w1", "w2"]


def test_a_held_answer_is_still_waited_for() -> None:
    """It is in no queue, and may have to be asked for again."""
    fake = Moving()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    fake.announce(fake.old)
    (_, (_, table)) = fake.sent(fake.old)
    get.set(value(b"before"))
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    fake.set()
    assert fake.words(fake.new) == []
    table.set_exception(ConnectionLoss())
    assert fake.words(fake.new) == ["get", "set"]


def test_a_call_that_ends_with_its_connection_is_still_waited_for() -> None:
    fake = Moving()
    fake.set("w1")
    ((_, write),) = fake.sent(fake.old)
    old, seen = fake[fake.old], []

    class Ending:
        """It is not pending any more, and its caller has not been told."""

        def set_exception(self, error: Exception) -> None:
            fake.announce(fake.new)
            fake.replies(fake.new)[0][1].set(copy(fake.switched))
            fake.set("w2")
            seen.append(fake.words(fake.new))
            write.set_exception(error)

    old._pending.append((None, Ending(), 1))
    old._notify_pending(KeeperState.CONNECTING)
    assert seen == [[]]
    fake.announce(fake.new)
    fake.replies(fake.new)[0][1].set(copy(fake.switched))
    assert fake.words(fake.new) == ["w2"]
    assert fake.told == ["w1"]


def test_a_move_that_concerns_nobody_opens_no_session() -> None:
    fake = Moving()
    fake[fake.new].opened = False
    fake.announce(fake.old)
    fake.replies(fake.old)[0][1].set(copy(fake.switched))
    assert not fake[fake.new].opened
