"""What a client does while a shard it uses is on its way to another ensemble.

What: calls that a fence refused, and all later calls to that shard, wait here in
the order in which they were made. When the table says where the shard is now they
are sent there, refused ones first. Reads that were answered after the ensemble's
copy of the table changed, and before it was read, are asked again.

Why a single call is sent again, and not its whole operation: the step machines
are correct for any delay between their steps, and a move is a delay. A claim does
not move; a machine whose claim is gone begins anew by itself.

Must never: reorder two calls of one client to one shard, or release a shard before
every call that was in flight to its old ensemble has come back.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

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
from parkazoo.mapping import Table
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
        self.moved = stat is None or stat.version != self.reply.fence

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
        reply = self.reply
        self.fencing.refused(self.call, reply, reply.ensemble.name, reply.fence)


class _Waiting:
    """The calls waiting for one shard, and the place they were refused at."""

    def __init__(self, owner: str, fence: int) -> None:
        self.owner, self.fence = owner, fence
        self.since = time.monotonic()
        self.refused: deque[tuple[Call, Any]] = deque()
        self.unsent: deque[tuple[Call, Any]] = deque()


class Fencing:
    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        self.lock = client.handler.rlock_object()
        self.waiting: dict[int, _Waiting] = {}
        self.held: dict[str, list[tuple[Call, Any]]] = {}
        self.polling = False

    def refused(self, call: Call, reply: Any, owner: str, fence: int) -> None:
        """The fence refused this call at `owner`. It will be sent again."""
        with self.lock:
            waiting = self.waiting.setdefault(call.shard, _Waiting(owner, fence))
            waiting.refused.append((call, reply))
            start, self.polling = not self.polling, True
        if start:
            self.client.handler.spawn(self._poll)

    def must_wait(self, call: Call, reply: Any, table: Table) -> bool:
        """Is the shard on its way? Then the call waits behind those before it.

        Reads wait, too: what the old ensemble answers after the switch is old.
        """
        shard = call.shard
        with self.lock:
            waiting = self.waiting.get(shard)
            if waiting is None:
                if shard not in table.moving:
                    return False
                waiting = self.waiting[shard] = _Waiting(
                    table.owners[shard], table.fences[shard]
                )
            waiting.unsent.append((call, reply))
            start, self.polling = not self.polling, True
        if start:
            self.client.handler.spawn(self._poll)
        return True

    def hold(self, ensemble: EnsembleClient, call: Call, reply: Any) -> None:
        """A read answered by an ensemble whose table we have yet to read."""
        with self.lock:
            self.held.setdefault(ensemble.name, []).append((call, reply))

    def copy_read(self, ensemble: EnsembleClient) -> None:
        """An ensemble's copy of the table has been read, or could not be."""
        with self.lock:
            again = self.held.pop(ensemble.name, [])
            table = self.client._sessions.table
            if table is not None:
                for shard, waiting in list(self.waiting.items()):
                    here = (table.owners[shard], table.fences[shard])
                    if (
                        waiting.owner == ensemble.name
                        and here != (waiting.owner, waiting.fence)
                        and shard not in table.moving
                    ):
                        again += [*waiting.refused, *waiting.unsent]
                        del self.waiting[shard]
            # Sent under the lock, so that no later call slips in between.
            for call, reply in again:
                self.client._submit(call, reply)

    def give_up(self, error: Exception) -> None:
        """The session is lost: nothing that waits will be sent."""
        with self.lock:
            calls = [c for w in self.waiting.values() for c in [*w.refused, *w.unsent]]
            calls += [c for held in self.held.values() for c in held]
            self.waiting.clear()
            self.held.clear()
        for _, reply in calls:
            reply.set_exception(error)

    def _poll(self) -> None:
        """Read the copies again and again while anything waits."""
        while True:
            self._end_long_waits()
            with self.lock:
                owners = {waiting.owner for waiting in self.waiting.values()}
                if not owners:
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
        for shard, waiting in ended:
            error = Contention(
                f"shard {shard} of ensemble {waiting.owner} takes no requests for"
                f" {WAIT_SECONDS_MAX:g} s: a move of it may have been left unfinished."
                " `parkazoo status` shows it, `parkazoo rebalance --abort` ends it"
            )
            for _, reply in [*waiting.refused, *waiting.unsent]:
                reply.set_exception(error)
