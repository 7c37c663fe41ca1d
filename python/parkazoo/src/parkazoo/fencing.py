"""What a client does while a shard it uses is on its way to another ensemble.

What: calls that a fence refused, and all later calls to that shard, wait here in
the order in which they were made. When the table says where the shard is now they
are sent there, refused ones first.

A read has no fence. If its ensemble's copy of the table has changed since it was
sent, its answer is held until that copy has been read. It is good if the shard was
still there, by that copy, or if a write behind it passed the shard's fence: servers
answer in order, and a fence that has changed never changes back. Else it is asked
again, in its turn among the refused writes. A watch's event is held in the same
line, so that it is told after the answer that left the watch, and before an answer
that shows what it tells of.

Why a single call is sent again, and not its whole operation: the step machines
are correct for any delay between their steps, and a move is a delay. A claim does
not move; a machine whose claim is gone begins anew by itself.

What was asked before the session was lost is never sent in the next one.

Must never: reorder two calls of one client to one shard, release a shard before
every call that was in flight to its old ensemble has come back, or ask a read
again behind a later write that has had its effect.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import (
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    Sync,
)

from parkazoo.ensemble import EnsembleClient, Reply
from parkazoo.errors import Contention
from parkazoo.layout import BucketStat, fence
from parkazoo.mapping import SHARDS, ConfigurationInvalid, Table
from parkazoo.steps import Call

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

READS = frozenset((BucketStat, Exists, GetACL, GetChildren, GetChildren2, GetData))
# A table that changes is announced by a watch; this is for an announcement lost.
POLL_SECONDS = 0.1
# A move pauses a shard for well under a second, or for as long as an owner takes to
# re-create its ephemerals. Longer than this, the caller had better know.
WAIT_SECONDS_MAX = 60.0


class StrictReply:
    """Takes the reply to a strict read, and to the two requests ahead of it.

    The connection answers in order: a sync, so that what follows is as new as the
    leader; the fence, which must still have the version that the table says; the
    read. If the fence has another version the shard is moving or has moved, and the
    read is sent again where it is then. A freeze after the fence was read is heard
    of before the answer to the read, as always (`suspect`).
    """

    __slots__ = ("call", "fencing", "moved", "reply")

    def __init__(self, fencing: Fencing, call: Call, reply: Any) -> None:
        self.fencing, self.call, self.reply = fencing, call, reply
        self.moved = True

    def ahead(self, shard: int) -> list[tuple[Any, Any]]:
        path = fence(shard)
        return [
            (Sync(path), Reply(lambda value: None, lambda error: None)),
            (Exists(path, None), Reply(self._fence, lambda error: None)),
        ]

    def _fence(self, stat: Any) -> None:
        fences = self.reply.table.fences
        self.moved = stat is None or stat.version != fences[self.call.shard]

    def set(self, value: Any = None) -> None:
        if self.moved:
            self._refused()
        else:
            self.reply.set(value)

    def set_exception(self, error: Exception) -> None:
        # Whatever else fails with the connection is the read's own failure.
        if self.moved and isinstance(error, (NoNodeError, NoAuthError)):
            self._refused()
        else:
            self.reply.set_exception(error)

    def _refused(self) -> None:
        self.fencing.refused(self.call, self.reply)


class _Held(NamedTuple):
    """What was heard of a shard while its ensemble's copy of the table was unread:
    the answer to a read, or, without a call, the event of a watch."""

    shard: int
    call: Call | None
    reply: Any
    answer: Any


class _Waiting:
    """The calls waiting for one shard, and the place that it leaves.

    `after`: how often that ensemble's copy had been asked for when calls began to
    wait. The answer to a later one comes behind all that was sent before.
    """

    def __init__(self, ensemble: EnsembleClient | None, owner: str, fence: int) -> None:
        self.ensemble = ensemble
        self.owner, self.fence = owner, fence
        self.after = ensemble.asked if ensemble is not None else 0
        self.since = time.monotonic()
        self.refused: deque[tuple[Call, Any]] = deque()
        self.unsent: deque[tuple[Call, Any]] = deque()

    def all_came_before(self, ensemble: EnsembleClient | None, number: int) -> bool:
        """Had all calls to the old place come back when this copy was read?"""
        return self.ensemble is ensemble and number > self.after


class Fencing:
    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        self.lock = client.handler.rlock_object()
        self.waiting: dict[int, _Waiting] = {}
        # True while anything waits, or is being sent that did.
        self.busy = False
        self.held: dict[EnsembleClient, list[_Held]] = {}
        self.polling = False

    # -- calls that wait -----------------------------------------------------------

    def refused(self, call: Call, reply: Any, number: int = 0) -> None:
        """The fence of one of its shards refused this call. It will be sent again."""
        shard = call.shards[number]
        with self.lock:
            lost = self._lost(reply)
            if not lost:
                entry = self._entry(shard, reply.ensemble, reply.table)
                entry.refused.append((call, reply))
        if lost:
            reply.set_exception(self.client._sessions.loss())
        else:
            self.see_to_it()

    def _lost(self, reply: Any) -> bool:
        """Has a session been lost since this was asked? Under our lock: whoever sees
        none is there to be given up when there is one."""
        return bool(reply.losses != self.client._sessions.losses)

    def must_wait(self, call: Call, reply: Any) -> bool:
        """Is a shard of it on its way? Then the call waits behind those before it.

        Reads wait, too: what the old ensemble answers after the switch is old.
        """
        with self.lock:
            table = self.client._sessions.table
            for shard in call.shards:
                waiting = self.waiting.get(shard)
                if waiting is None and table is not None and shard in table.moving:
                    waiting = self._entry(shard, self._at(table, shard), table)
                if waiting is not None:
                    waiting.unsent.append((call, reply))
                    break
            else:
                return False
        self.see_to_it()
        return True

    def shards_left(
        self, old: Table, table: Table, among: Iterable[int] = range(SHARDS)
    ) -> None:
        """Later calls to shards that have moved wait for those sent before.

        Also if there are none: until the newer table is used, there may be one yet.
        `look` then lets go.
        """
        with self.lock:
            for shard in among:
                if not _is_at(table, shard, old.owners[shard], old.fences[shard]):
                    self._entry(shard, self._at(old, shard), old)

    def look(self) -> None:
        """Let shards go whose old place owes no answer; see to the others."""
        self._release(None, 0)
        self.see_to_it()

    def _idle(self, ensemble: EnsembleClient | None) -> bool:
        """Has every call that was sent there come back, and has been dealt with?

        A request goes from the queue to what is pending, from there to its reply,
        and that may be held; it is looked for in this order, so that it is not missed
        on its way.
        """
        return ensemble is None or not (
            ensemble._queue
            or ensemble._pending
            or ensemble._connection.taking
            or ensemble.ending
            or ensemble in self.held
        )

    def _at(self, table: Table, shard: int) -> EnsembleClient | None:
        return self.client._sessions.by_name.get(table.owners[shard])

    def _entry(
        self, shard: int, ensemble: EnsembleClient | None, table: Table
    ) -> _Waiting:
        waiting = self.waiting.get(shard)
        if waiting is None:
            waiting = self.waiting[shard] = _Waiting(
                ensemble, table.owners[shard], table.fences[shard]
            )
            self.busy = True
        return waiting

    # -- reads in doubt ------------------------------------------------------------

    def doubted(self, call: Call, reply: Any, answer: Any) -> None:
        """A read was answered by an ensemble whose table is newer than the one that
        the read was sent by. `answer` may be an error."""
        ensemble = reply.ensemble
        with self.lock:
            waiting = self.waiting.get(call.shard)
            if waiting is not None and waiting.refused:
                waiting.refused.append((call, reply))
                return
            if ensemble.suspect and not ensemble.removed:
                self._hold(ensemble, _Held(call.shard, call, reply, answer))
                return
        if not ensemble.removed and _good(ensemble.copy, call, reply):
            reply.believe(answer)
        else:
            self.refused(call, reply)

    def event_doubted(self, ensemble: EnsembleClient, shard: int, event: Any) -> None:
        """An event has come from an ensemble whose copy of the table is unread."""
        with self.lock:
            self._hold(ensemble, _Held(shard, None, event, None))

    def _hold(self, ensemble: EnsembleClient, held: _Held) -> None:
        self.held.setdefault(ensemble, []).append(held)

    def passed(self, write: Any) -> None:
        """A write passed its fences: so had its shards been there before it."""
        ensemble, shards = write.ensemble, write.call.shards
        if ensemble not in self.held:
            return
        fences = write.table.fences
        proven: list[_Held] = []
        left: list[_Held] = []
        with self.lock:
            for held in self.held.pop(ensemble, []):
                shard, sent = held.shard, held.reply.table.fences
                same = shard in shards and sent[shard] == fences[shard]
                (proven if same else left).append(held)
            if left:
                self.held[ensemble] = left
        for held in proven:
            held.reply.believe(held.answer)

    def copy_read(self, ensemble: EnsembleClient, seen: Any, number: int) -> None:
        """An ensemble's copy of the table has been read, or could not be."""
        good, failed = [], []
        with self.lock:
            again: list[tuple[Call, Any]] = []
            for _, call, reply, answer in self.held.pop(ensemble, []):
                if call is None or (
                    isinstance(seen, Table) and _good(seen, call, reply)
                ):
                    good.append((reply, answer))
                elif self._lost(reply) or self._ended_with(seen, call, reply):
                    failed.append(reply)
                else:
                    again.append((call, reply))
            # They came before whatever was refused since they are held.
            for call, reply in reversed(again):
                entry = self._entry(call.shard, ensemble, reply.table)
                entry.refused.appendleft((call, reply))
        for reply, answer in good:
            reply.believe(answer)
        for reply in failed:
            reply.believe(seen)
        self._release(ensemble, number)
        self.see_to_it()

    def _ended_with(self, seen: Any, call: Call, reply: Any) -> bool:
        """Was the connection lost, and the shard is still there as far as we know?"""
        table = self.client._sessions.table
        return (
            isinstance(seen, Exception)
            and not isinstance(seen, (NoNodeError, ConfigurationInvalid))
            and table is not None
            and _good(table, call, reply)
        )

    def _release(self, ensemble: EnsembleClient | None, number: int) -> None:
        """Send what waited for shards that have arrived."""
        sessions = self.client._sessions
        table = sessions.table
        if table is None or not self.waiting:
            return
        asked_for = [s for s, w in list(self.waiting.items()) if w.refused or w.unsent]
        for owner in {table.owners[shard] for shard in asked_for}:
            with suppress(KeyError):  # it has left by a newer table
                sessions.session(owner)  # not under our lock
        # Whoever loses a session gives up, under the sessions' lock, what waits here;
        # so that lock is the outer one. And the table does not change under it.
        with sessions.lock, self.lock:
            table = sessions.table
            if table is None:
                return
            again: list[tuple[Call, Any]] = []
            lost: list[Any] = []
            for shard, waiting in list(self.waiting.items()):
                if (
                    shard not in table.moving
                    and not _is_at(table, shard, waiting.owner, waiting.fence)
                    and (
                        waiting.all_came_before(ensemble, number)
                        or self._idle(waiting.ensemble)
                    )
                ):
                    again += [*waiting.refused, *waiting.unsent]
                    del self.waiting[shard]
            # Sent under the lock, so that no later call slips in between.
            for call, reply in again:
                if self._lost(reply):
                    lost.append(reply)
                else:
                    self.client._submit(call, reply)
            self.busy = bool(self.waiting)
        for reply in lost:
            reply.set_exception(self.client._sessions.loss())

    def give_up(self, error: Exception) -> None:
        """The session is lost: nothing that waits will be sent."""
        with self.lock:
            calls = [c for w in self.waiting.values() for c in [*w.refused, *w.unsent]]
            replies = [reply for _, reply in calls]
            replies += [h.reply for held in self.held.values() for h in held]
            self.waiting.clear()
            self.busy = False
            self.held.clear()
        for reply in replies:
            reply.set_exception(error)

    def see_to_it(self) -> None:
        """Have the copies read as long as anything waits."""
        with self.lock:
            if self.polling or not self.waiting:
                return
            self.polling = True
        self.client.handler.spawn(self._poll)

    def _poll(self) -> None:
        """Read the copies again and again while anything waits."""
        while True:
            self._end_long_waits()
            with self.lock:
                if not self.waiting:
                    self.polling = False
                    return
            for ensemble in list(self.client._sessions.by_name.values()):
                if ensemble.connected:
                    ensemble.read_configuration()
            self.client.handler.sleep_func(POLL_SECONDS)

    def _end_long_waits(self) -> None:
        """Tell those who waited too long; nothing of theirs has been done."""
        now = time.monotonic()
        with self.lock:
            limit = now - WAIT_SECONDS_MAX
            late = [s for s, waiting in self.waiting.items() if waiting.since < limit]
            ended = [(shard, self.waiting.pop(shard)) for shard in late]
            self.busy = bool(self.waiting)
        for shard, waiting in ended:
            error = Contention(
                f"shard {shard} of ensemble {waiting.owner} takes no requests for"
                f" {WAIT_SECONDS_MAX:g} s: a move of it may have been left unfinished."
                " `parkazoo status` shows it, `parkazoo rebalance --abort` ends it. If"
                " there is none, `parkazoo check` says what is wrong"
            )
            for _, reply in [*waiting.refused, *waiting.unsent]:
                reply.set_exception(error)


def _is_at(table: Table, shard: int, owner: str, fence: int) -> bool:
    return table.owners[shard] == owner and table.fences[shard] == fence


def _good(copy: Table, call: Call, reply: Any) -> bool:
    """Was the shard where the read went, by that ensemble's copy or since?"""
    sent, shard = reply.table, call.shard
    return copy.generation <= sent.generation or (
        shard not in copy.moving
        and _is_at(copy, shard, sent.owners[shard], sent.fences[shard])
    )
