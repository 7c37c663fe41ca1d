"""The sessions that the logical clients of a pool share.

What: a `ParKazooClient` that tells its members every change of its state, in one
order, and takes away what a member leaves (`estates`). See `pool` for the whole.

Must never: start or stop while a member is joining, or delete a node that is not an
ephemeral of its own sessions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.client import CLOSED_STATES
from kazoo.exceptions import BadVersionError, KazooException, NoNodeError
from kazoo.protocol.serialization import Delete, Exists, Sync
from kazoo.protocol.states import KeeperState

from parkazoo.adopting import GetEphemerals
from parkazoo.client import ParKazooClient
from parkazoo.estates import Doubt, Estate, Estates
from parkazoo.layout import BASE, Layout
from parkazoo.operation import Make, run
from parkazoo.steps import Call, Machine, Multi, MultiFailed

if TYPE_CHECKING:
    from parkazoo.pool import PooledClient

# Between two attempts to delete what a client left while an ensemble was away.
RETRY_SECONDS = 0.2


class Carrier(ParKazooClient):
    """The sessions that logical clients share. Its own state is told to all of them.

    `gate` is held while it starts and stops; `members` are the clients that are
    started, `count` those that have not yet let go. All that members are told is told
    under the sessions' own lock: it is held where a state changes, and what a listener
    asks may need it, for another ensemble to be connected to.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.members: set[PooledClient] = set()
        self.count = 0
        super().__init__(*args, **options)
        self.gate = self.handler.rlock_object()
        self.estates = Estates(self.handler.lock_object())

    def _session_callback(self, state: Any) -> None:
        # So that every member hears the same states in one order.
        with self._sessions.lock:
            self._interrupt(state)
            for member in list(self.members):
                member._session_callback(state)
            super()._session_callback(state)
            if state in CLOSED_STATES:
                self.estates.lost()

    def join(self, member: PooledClient) -> None:
        with self.gate:
            self.count += 1
        self.begin()
        with self._sessions.lock:
            self.members.add(member)
            member._session_callback(KeeperState.CONNECTING)
            if self._state in (
                KeeperState.CONNECTED,
                KeeperState.CONNECTED_RO,
                KeeperState.AUTH_FAILED,
            ):
                member._session_callback(self._state)

    def begin(self) -> None:
        """Connect, if nobody has begun to, or it gave up."""
        with self.gate:
            if self._stopped.is_set() or self.gave_up:
                self._sessions.error = None
                self.start_async()

    def goes_on(self) -> bool:
        """Is it degraded, or can it begin to be?"""
        return self._may_send() or self._sessions.go_on_without()

    def part(self, member: PooledClient) -> None:
        with self._sessions.lock:
            self.members.discard(member)
            member._session_callback(KeeperState.CLOSED)

    def let_go(self, only_if_last: bool = False) -> bool:
        """A member needs the sessions no more; the last one ends them. Was it that?"""
        with self.gate:
            last = self.count == 1
            if only_if_last and not last:
                return False
            self.count -= 1
            if last:
                self.stop()
                self.close()
                # Who comes next may come to other servers, or to another namespace.
                self._sessions.forget()
            return last

    # -- what members leave ----------------------------------------------------------

    def bury(self, estate: Estate) -> None:
        """Runs until nothing of the estate is left, or the sessions have ended."""
        while not self._stopped.is_set():
            try:
                doubts = self.estates.doubtful(estate)
                self._together([partial(self._find, d, estate) for d in doubts])
                paths = self.estates.owned(estate)
                self._together([partial(self._delete, p, estate) for p in paths])
                return
            except KazooException as error:
                if self._state in CLOSED_STATES:
                    return
                self.logger.debug("ephemerals not deleted yet: %r", error)
            self.handler.sleep_func(RETRY_SECONDS)

    def _together(self, makes: list[Make]) -> None:
        """Run operations side by side, and raise what one of them failed with."""
        results = []
        for make in makes:
            result = self.handler.async_result()
            run(self, make, result.set, result.set_exception)
            results.append(result)
        for result in results:
            result.get()

    def _ours(self) -> set[int]:
        sessions = list(self._sessions.by_name.values())
        return {e._session_id for e in sessions if e._session_id is not None}

    def _delete(self, path: str, estate: Estate, layout: Layout) -> Machine:
        """Delete a node if it is an ephemeral of these sessions, and the estate's."""
        node = layout.node(path)
        while True:
            stat = yield Call(node.shard, Exists(node.path, None))
            ours = stat is not None and stat.ephemeralOwner in self._ours()
            if not ours or not self.estates.may_delete(estate, path):
                break
            away = Multi((Delete(node.path, stat.version),))
            try:
                yield Call(node.shard, away)
                break
            except MultiFailed as failed:
                if isinstance(failed.error, NoNodeError):
                    break
                if not isinstance(failed.error, BadVersionError):
                    raise failed.error from None
        if self.estates.may_delete(estate, path):
            self.estates.deleted(path)

    def _find(self, doubt: Doubt, estate: Estate, layout: Layout) -> Machine:
        """What did a creation make whose answer was lost? It becomes the estate's."""
        node = layout.node(doubt.path)
        yield Call(node.shard, Sync(node.path))
        found = yield Call(node.shard, GetEphemerals(node.path))
        for physical in found:
            rest = physical[len(node.path) :]
            numbered = doubt.sequence and rest.lstrip("-").isdigit() and len(rest) >= 10
            if not (numbered or (not rest and not doubt.sequence)):
                continue
            path = layout.logical(node.bucket, physical)
            if self.estates.may_delete(estate, path):
                self.estates.created(estate, path)
        self.estates.resolved(estate, doubt)

    def prune(self, serial: int) -> None:
        """Forget ephemerals that are noted and were deleted by others."""
        present: set[str] = set()
        try:
            for ensemble in list(self._sessions.by_name.values()):
                if not ensemble.opened:
                    continue  # lazy: it has none of ours
                result = self.handler.async_result()
                ensemble._call(GetEphemerals(BASE), result)
                present |= set(result.get())
        except KazooException as error:
            self.logger.debug("ephemerals not counted: %r", error)
            return
        layout, noted = self._layout, list(self.estates.owners)
        here = {path for path in noted if layout.node(path).path in present}
        self.estates.prune(here, serial)
