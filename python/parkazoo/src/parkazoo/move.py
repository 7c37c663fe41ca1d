"""Moving shards between ensembles while everybody works.

What, for a few shards at a time:

    1 plan     the table says which shards are on their way; nothing else changes
    2 copy     their nodes are copied while in use, again until little is left
    3 freeze   the table says so, and each fence changes: no write passes any more
    4 copy     what changed since; owners re-create their ephemerals at the target;
               then every copy is given its own ACL
    5 switch   the table names the new owner; clients send what they held back
    6 clean    the old copy goes, as far as ACLs let us; its fence stays, so that it
               refuses for ever

Why it is safe: between 3 and 5 nothing can write, because every write carries the
fence's version. The freeze and the ensemble's copy of the table change in one
transaction, and clients watch that copy, so a client that could see the frozen
shard's stale side has been told before. Until 5 the move can be given up: the
fence changes once more and the shard is where it was, whole.

Must never: switch while an ephemeral has not arrived, clean before the old
ensemble's copy of the table is written, or run twice at once in a namespace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
)

from parkazoo import failpoints, namespace
from parkazoo.adopting import has_caught_up
from parkazoo.clearing import NotCleared, clear, erase, overtaken
from parkazoo.copying import ACTIVE, GONE, Copier, version_of
from parkazoo.errors import MemberAway, MoveFailed, Unmovable
from parkazoo.layout import CONFIG, INTENTS, fence, shown
from parkazoo.mapping import Table, balanced
from parkazoo.membership import (
    CONNECT_SECONDS,
    end_farewell,
    furnish,
    member,
    note_farewell,
)
from parkazoo.seat import Seat

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# Shards frozen together. Few, so that the pause is short.
BATCH = 8
# Empty shards frozen together: there is next to nothing to copy.
BATCH_EMPTY = 64
# Copies of a shard in use before the freeze; each is shorter than the one before.
PASSES = 3
# An owner that does not re-create its ephemerals in this time stops the move.
EPHEMERAL_SECONDS = 20.0
# How long work recorded on an ensemble that is to go may take to its end.
INTENT_SECONDS = 15.0
# How often it is tried to undo what could not be done, each time connected anew.
RECOVER_ATTEMPTS = 3
_LOST = "a connection to a member was lost while shards were moved"

Progress = Callable[["State"], None]


@dataclass
class State:
    """How far a move is. Times in seconds."""

    shards_total: int = 0
    shards_moved: int = 0
    nodes_copied: int = 0
    pause_max: float = 0.0


class Mover(Seat):
    """Changes who holds what. `client` is started; one at a time per namespace."""

    def __init__(
        self,
        client: ParKazooClient,
        progress: Progress | None = None,
        ephemeral_seconds: float = EPHEMERAL_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        super().__init__(client)
        self.connect_seconds = connect_seconds
        self.progress = progress or (lambda state: None)
        self.ephemeral_seconds = ephemeral_seconds
        self.state = State()
        self.stopped = False
        # What stayed where it is of no use any more, for want of rights.
        self.left: dict[str, list[str]] = {}  # by ensemble
        # Shards that a node has kept where they are.
        self.kept: dict[int, Unmovable] = {}
        # Whose removal, which somebody else had not ended, we have ended.
        self.farewell_said: str | None = None

    # -- moving ------------------------------------------------------------------

    def rebalance(self, among: list[str] | None = None) -> State:
        """Give each of `among` (default: all) its even share of the shards."""
        with self.alone():
            self._recover()
            table = self.table
            return self._move(balanced(table, among or list(table.ensembles)))

    def move(self, shards: Mapping[int, str]) -> State:
        """Move these shards to these ensembles."""
        with self.alone():
            self._recover()
            return self._move(shards)

    def _move(self, shards: Mapping[int, str]) -> State:
        """All but those that a node keeps.

        :raises Unmovable: there are such; at the end.
        """
        table = self.table
        self.kept = {}
        due = {s: to for s, to in shards.items() if table.owners[s] != to}
        self.state = State(shards_total=len(due))
        self.progress(self.state)
        for numbers in self._batches(table, sorted(due)):
            if self.stopped:
                break
            batch = {shard: due[shard] for shard in numbers}
            while batch:
                try:
                    self._move_batch(batch)
                    break
                except Unmovable:  # they are all where they were
                    rest = {s: to for s, to in batch.items() if s not in self.kept}
                    batch = {} if self.stopped else rest
            self.state.shards_moved += len(batch)
            self.progress(self.state)
        if self.kept:
            first, *others = (self.kept[shard] for shard in sorted(self.kept))
            raise Unmovable(first.why, first.advice, [other.why for other in others])
        return self.state

    def _batches(self, table: Table, shards: list[int]) -> Iterator[list[int]]:
        """Which shards are frozen together; empty ones are quick, so many of them."""
        asked = [
            (s, self._at(table.owners[s]).get_children_async(fence(s))) for s in shards
        ]
        empty: list[int] = []
        used: list[int] = []
        for shard, result in asked:
            (used if result.get() else empty).append(shard)
        for start in range(0, len(empty), BATCH_EMPTY):
            yield empty[start : start + BATCH_EMPTY]
        for start in range(0, len(used), BATCH):
            yield used[start : start + BATCH]

    def _move_batch(self, batch: dict[int, str]) -> None:
        table = self.table
        copiers = [
            Copier(shard, self._at(table.owners[shard]), self._at(target))
            for shard, target in batch.items()
        ]
        self._each(copiers, Copier.look)
        try:
            table = self.publish(table.with_plan(batch))
            failpoints.reached("move.1.plan", failpoints.AFTER)
            self._each(copiers, self._copy_in_use)
            failpoints.reached("move.2.copy", failpoints.AFTER)
            begun = time.monotonic()
            table = self._freeze(table, batch)
            failpoints.reached("move.3.freeze", failpoints.AFTER)
            used = self._used(copiers)
            self._each(used, lambda copier: copier.copy(frozen=True))
            self._await_ephemerals(used)
            self._each(used, Copier.settle)
            failpoints.reached("move.4.copy", failpoints.AFTER)
            self._each(used, Copier.close)
            failpoints.reached("move.4.close", failpoints.AFTER)
            self._switch(table, batch, copiers)
        except Exception as error:
            self._undo(list(batch), error)
        failpoints.reached("move.5.switch", failpoints.AFTER)
        pause = time.monotonic() - begun
        self.state.pause_max = max(self.state.pause_max, pause)
        self.state.nodes_copied += sum(copier.copied for copier in copiers)
        # The freeze has set the fence there once.
        frozen = {shard: table.fences[shard] + 1 for shard in batch}
        self._each(copiers, lambda c: self._clear(c.source, c.shard, frozen[c.shard]))
        failpoints.reached("move.6.clean", failpoints.AFTER)

    def _each(self, copiers: list[Copier], work: Callable[[Copier], Any]) -> None:
        """The same for several shards at once: most of it is waiting for servers."""

        def noting(copier: Copier) -> None:
            try:
                work(copier)
            except Unmovable as why:
                self.kept[copier.shard] = why
                raise

        self.client._sessions.in_parallel([partial(noting, each) for each in copiers])

    @staticmethod
    def _used(copiers: list[Copier]) -> list[Copier]:
        """Those that are not empty on either side, looked up all at once.

        This and the switch are in the pause, so nothing in them is done in turn.
        """
        asked = [
            (c, c.source.sync_async(c.root), c.source.get_children_async(c.root))
            for c in copiers
        ]
        used = []
        for copier, synced, names in asked:
            synced.get()
            if names.get() or copier.seen:
                used.append(copier)
        return used

    @staticmethod
    def _copy_in_use(copier: Copier) -> None:
        copier.prepare()
        for _ in range(PASSES):
            if copier.copy() == 0:
                break

    def _freeze(self, table: Table, batch: dict[int, str]) -> Table:
        by_owner: dict[str, list[int]] = {}
        for shard in batch:
            by_owner.setdefault(table.owners[shard], []).append(shard)
        return self.publish(table.with_frozen(batch), by_owner)

    def _await_ephemerals(self, copiers: list[Copier]) -> None:
        """Wait for each ephemeral to be at its new place, or gone from the old."""
        deadline = time.monotonic() + self.ephemeral_seconds
        for copier in copiers:
            for path in sorted(copier.ephemerals):
                while True:
                    there, here = copier.target.exists(path), copier.source.exists(path)
                    if here is None:
                        if there is not None:
                            erase(copier.target, path, (copier.root, copier.fence))
                        break
                    if there is not None and has_caught_up(there, here):
                        break
                    if time.monotonic() > deadline:
                        raise MoveFailed(
                            f"the owner of {shown(path)} did not re-create it"
                            f" within {self.ephemeral_seconds:g} s; the shard stays"
                            " where it is. Its client may be old, or hang, or its ACL"
                            " keep its owner from reading it all: give the owner"
                            " ADMIN there; its log says so"
                        )
                    self.client.handler.sleep_func(0.01)

    def _switch(
        self, table: Table, batch: dict[int, str], copiers: list[Copier]
    ) -> None:
        switched = table
        asked = [
            (c.shard, c.target.set_async(c.root, ACTIVE, c.fence)) for c in copiers
        ]
        for shard, result in asked:
            try:
                version = result.get().version
            except BadVersionError:
                raise MoveFailed(overtaken(fence(shard))) from None
            switched = switched.with_owner(shard, batch[shard], version)
        self.publish(switched)

    def _clear(self, session: Any, shard: int, version: int) -> None:
        """What may not be deleted stays: nobody uses it, and all else can go on."""
        try:
            clear(session, shard, GONE, version)
        except NotCleared as left:
            self.left.setdefault(left.name, []).extend(left.nodes)

    # -- giving up, and after a crash ----------------------------------------------

    def abort(self) -> list[int]:
        """Undo a move that was left unfinished. Returns the shards that stay."""
        with self.alone():
            return self._recover()

    def _undo(self, shards: list[int], why: Exception) -> NoReturn:
        """A batch could not be moved: it stays. If our session has ended meanwhile
        we do nothing that whoever comes next would not do, and only if that is us.

        What was switched stays so: the seat is asked what has been decided.
        """
        alone = self.still_alone
        try:
            if alone:
                self._recover_with_patience()
            else:
                self.abort()
        except (ConnectionLoss, MemberAway, SessionExpiredError) as error:
            away = error if isinstance(error, MemberAway) else _LOST
            raise MemberAway(
                f"{away}. A move is left unfinished: requests to some of {len(shards)}"
                " shards may wait until the same command is given again, or `parkazoo"
                " rebalance --abort` to undo what it had begun"
            ) from why
        except KazooException:
            if alone:
                raise
        # Who is not on record any more must not go on with the other shards.
        ended = isinstance(why, Unmovable) and not alone
        if ended or isinstance(why, (ConnectionLoss, SessionExpiredError)):
            raise MoveFailed(
                f"{_LOST}. What was not switched yet is where it was; give the same"
                " command again"
            ) from why
        raise why

    def _recover_with_patience(self) -> None:
        """A connection that is lost here may be back in time: look again then."""
        for _ in range(RECOVER_ATTEMPTS - 1):
            with suppress(ConnectionLoss):
                self._recover()
                return
        self._recover()

    def stop(self) -> None:
        """Stop after the shards that are being moved now."""
        self.stopped = True

    def _recover(self) -> list[int]:
        table = self.table
        seat = self._at(table.seat)
        self._tell(seat, table)  # who handed the seat over may have died before
        unfinished = sorted({*table.planned, *table.moving})
        if unfinished:
            self._give_up(unfinished)
        else:
            self._tell_the_others(table)
        end_farewell(self)
        return unfinished

    def _tell_the_others(self, table: Table) -> None:
        """Who decided this table may have died before every ensemble had it."""
        for name in table.ensembles:
            self._tell(self._at(name), table)

    @staticmethod
    def _tell(session: Any, table: Table) -> None:
        """Write the table where an older one is, or none was ever written."""
        copy = namespace.copy_at(session, session.name, table)
        if copy is None:
            namespace._create(session, CONFIG, table.serialize())
        elif copy[0].generation < table.generation:
            session.set(CONFIG, table.serialize(), copy[1])

    def _give_up(self, shards: list[int]) -> None:
        """Thaw what is frozen, forget what is staged; the owner stays the same.

        The fences are read first and the table's generation grows then: whoever
        still works on the older table cannot switch any more, and if they, or
        anybody later, have touched a fence since it was read, it is left to them.
        """
        table = self.table
        going: list[tuple[int, str, int | None, int]] = []
        for shard in shards:
            target = table.moving.get(shard) or table.planned.get(shard)
            if target is None:
                continue  # it had been switched
            staged = None
            if target in table.ensembles:
                staged = version_of(self._at(target), shard)
            owned = version_of(self._at(table.owners[shard]), shard)
            assert owned is not None, f"{fence(shard)} is missing at its owner"
            going.append((shard, target, staged, owned))
        if not going:
            return
        undone = table = self.publish(table)
        for shard, target, staged, owned in going:
            if staged is not None:
                self._clear(self._at(target), shard, staged)
                failpoints.reached("abort.1.clear", failpoints.AFTER)
            owner = self._at(table.owners[shard])
            try:
                version = owner.set(fence(shard), ACTIVE, owned).version
            except BadVersionError:
                raise MoveFailed(overtaken(fence(shard))) from None
            failpoints.reached("abort.2.thaw", failpoints.AFTER)
            undone = undone.with_owner(shard, table.owners[shard], version)
        self.publish(undone)

    # -- ensembles ---------------------------------------------------------------

    def add_ensemble(
        self, hosts: str, name: str | None = None, beside: bool = False
    ) -> str:
        """Make an ensemble part of the namespace; it holds no shard yet.

        `beside`: also if it has data that is not ParKazoo's, which is left aside.
        """
        with self.alone():
            self._recover()
            table = self._without_import()
            known = member(table.ensembles, hosts)
            if known is not None:
                return known  # it had joined already
            if name is None:
                taken = table.ensembles.keys() | table.gone
                name = next(f"e{n}" for n in range(10**6) if f"e{n}" not in taken)
            if name in table.ensembles:
                raise MoveFailed(f"there is an ensemble named {name} already")
            if name in table.gone:
                raise MoveFailed(
                    f"there was an ensemble named {name}, and a client that has not"
                    " heard yet that it left would take this one for it; choose"
                    " another name"
                )
            # It is given the table without it: none that was not decided may be seen.
            furnish(self, table, name, hosts, beside)
            failpoints.reached("add.1.furnish", failpoints.AFTER)
            self.publish(table.with_ensembles({**table.ensembles, name: hosts}))
            return name

    def _without_import(self) -> Table:
        """
        :raises NotInitialized: data is to be brought in, from just these members.
        """
        table = self.table
        if table.importing:
            raise namespace.unfinished()
        return table

    def remove_ensemble(self, name: str) -> State:
        """Move everything away from an ensemble, then let it go."""
        with self.alone(), ExitStack() as also:
            self._recover()
            if name == self.farewell_said:
                return self.state  # only this was missing
            table = self._without_import()
            others = [other for other in table.ensembles if other != name]
            if name not in table.ensembles:
                raise MoveFailed(
                    f"there is no ensemble named {name}; there are"
                    f" {', '.join(table.ensembles)}"
                )
            if not others:
                raise MoveFailed(
                    f"{name} is the only ensemble; first `parkazoo add-ensemble`"
                )
            if name == table.seat:
                also.enter_context(self._alone_at(self._at(others[0])))
                self._hand_over(table, others[0])
                failpoints.reached("remove.1.handover", failpoints.AFTER)
            state = self._move(balanced(self.table, others))
            table = self.table
            if self.stopped or table.shards(name):
                return state
            self._await_intents(name)
            failpoints.reached("remove.2.empty", failpoints.AFTER)
            note_farewell(self, table, name)
            failpoints.reached("remove.3.noted", failpoints.AFTER)
            smaller = {n: h for n, h in table.ensembles.items() if n != name}
            self.publish(table.with_ensembles(smaller))
            end_farewell(self)
            return state

    def _hand_over(self, table: Table, seat: str) -> None:
        """Make another ensemble the seat; who holds that now decides it.

        Whoever knows the new table takes the new seat's word, and we are alone at
        both; whoever knows the older one is told by the old seat. Should we die in
        between, the next to change anything tells the new seat (`_recover`). From
        then on only our record at the new seat counts; the old one may be gone.
        """
        rest = {n: hosts for n, hosts in table.ensembles.items() if n != seat}
        ordered = table.with_ensembles({seat: table.ensembles[seat], **rest})
        self.publish(ordered, decides=table.seat)
        self.records = [r for r in self.records if r[0].name != table.seat]

    def _await_intents(self, name: str) -> None:
        """No unfinished work may be recorded on an ensemble that goes.

        None can be added: it holds no shard and is not the seat, and recording is
        fenced by the one, or checks the table's copy for the other.
        """
        session = self._at(name)
        if not self.client._sessions.wait(
            lambda: not session.get_children(INTENTS), INTENT_SECONDS
        ):
            raise MoveFailed(
                f"a recursive delete or a transaction recorded on {name} is not"
                " finished; run `parkazoo check --repair` and try again"
            )
