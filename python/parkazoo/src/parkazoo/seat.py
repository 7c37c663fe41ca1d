"""The table, and being the only one who changes it.

What: reads the table where it is decided, at the *seat*; keeps everybody else from
changing it, with an ephemeral there; writes a new one, first at the seat, then on
every other ensemble.

Why the seat decides: ensembles do not know each other, so of two who change the
table at once one must be refused by a single server.

Must never: change a fence without the copy of the table on the same ensemble,
leave the record of who is at work behind when its session lives on, or go on when
that session has ended: another may have taken over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)

from parkazoo import failpoints, namespace
from parkazoo.copying import FROZEN
from parkazoo.errors import MemberAway, MoveFailed
from parkazoo.layout import BASE, CONFIG, fence
from parkazoo.mapping import Table
from parkazoo.patience import LOOK_SECONDS, Patient

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from parkazoo.client import ParKazooClient

# How long the seat may be away when we have ended and want to say so.
LEAVE_ATTEMPTS, LEAVE_PAUSE = 120, 0.5
ADMIN = BASE + "/admin"


class Seat:
    """Reads and writes the table for `client`, which is started."""

    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        # When we began what we are at.
        self.begun = time.monotonic()
        # Where we are recorded as being at work, with the session that was then.
        self.records: list[tuple[Any, int]] = []

    @property
    def table(self) -> Table:
        """The table as the seat has it now."""
        known = self.client.table
        assert known is not None
        while True:
            seat = self._at(known.seat)
            seat.sync(CONFIG)
            copy = namespace.copy_at(seat, seat.name, known)
            if copy is None or copy[0].generation < known.generation:
                return known  # it became the seat and was not told; see `_recover`
            table = copy[0]
            # Our own client would hear of it a moment later; we are about to need it.
            self.client._sessions.adopt(table)
            if table.seat == seat.name:
                return table
            known = table

    def _at(self, name: str) -> Any:
        """The session with a member, which is not waited for longer than `patience`
        allows, now or when it is used."""
        try:
            session = self.client._sessions.session(name)
        except KeyError:
            raise MoveFailed(
                f"somebody else has taken {name} out of the namespace meanwhile"
            ) from None
        if not self.records:
            self.begun = time.monotonic()
        patient = Patient(session, self.begun)
        while (why := patient.hopeless()) is None and not session.connected:
            self.client.handler.sleep_func(LOOK_SECONDS)
        if why is not None:
            raise why
        if not self.still_alone:
            raise MoveFailed(
                "this process was away for so long that its session has ended;"
                " somebody else may have taken over. `parkazoo status` shows what is"
                " unfinished"
            )
        return patient

    @property
    def still_alone(self) -> bool:
        """Do the sessions live in which we are recorded, as far as we have heard?"""
        return all(seat._session_id == session for seat, session in self.records)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one who changes the table; ends with the session, too.

        If it has ended, what was begun in it must not be gone on with.
        """
        if not self.still_alone:
            self.records.clear()
        self.begun = time.monotonic()
        with self._alone_at(self._at(self.table.seat)):
            yield

    @contextmanager
    def _alone_at(self, seat: Any) -> Iterator[None]:
        # What is left behind of another time is not taken for ours: it is about to go.
        identity = uuid.uuid4().hex.encode()
        try:
            self._go_on_record(seat, identity)
        except MemberAway:
            self._leave(seat, identity)
            raise
        record = (seat, seat._session_id)
        self.records.append(record)
        try:
            yield
        finally:
            if record in self.records:
                self.records.remove(record)
            self._leave(seat, identity)

    def _go_on_record(self, seat: Any, identity: bytes) -> None:
        while True:
            try:
                seat.create(ADMIN, identity, ephemeral=True)
                return
            except ConnectionLoss:
                # Done or not: if it was, the next attempt finds it to be ours.
                seat = self._at(seat.name)
            except NodeExistsError:
                if self._mine(seat, identity):
                    return
                raise _busy() from None

    @staticmethod
    def _mine(seat: Any, identity: bytes) -> bool:
        """Is it we who are recorded as changing the table, in this very session?"""
        try:
            found, stat = seat.get(ADMIN)
        except NoNodeError:
            return False
        return bool(found == identity and stat.ephemeralOwner == seat._session_id)

    def _leave(self, seat: Any, identity: bytes) -> None:
        """Let others change the table. Whatever made us stop is the news, not this.

        A connection that is lost here must not leave our record behind for as long
        as the session lives, so it is tried again until the session is lost, too; if
        the seat is away for long, by a routine that nobody waits for.
        """
        for _ in range(LEAVE_ATTEMPTS):
            try:
                if self._mine(seat, identity):
                    seat.delete(ADMIN)
                return
            except (ConnectionClosedError, SessionExpiredError):
                return  # it went with the session
            except MemberAway:
                self.client.handler.spawn(self._leave, seat.lent, identity)
                return
            except KazooException as error:
                self.client.logger.warning("not yet left to others: %r", error)
                self.client.handler.sleep_func(LEAVE_PAUSE)

    def publish(
        self,
        table: Table,
        frozen: Mapping[str, list[int]] = {},
        decides: str | None = None,
    ) -> Table:
        """Write the next table: the seat's copy decides, then all others.

        `frozen`: by ensemble, shards whose fences change in the same transaction
        as that ensemble's copy. `decides`: the seat so far, if there is a new one.
        """
        following = table.next()
        seat = decides or following.seat

        def write(name: str) -> None:
            shards = frozen.get(name, [])
            self._write_copy(self._at(name), table, following, shards, name == seat)
            step = "table.1.decided" if name == seat else "table.2.told"
            failpoints.reached(step, failpoints.AFTER)

        write(seat)
        self.client._sessions.adopt(following)
        others = [name for name in following.ensembles if name != seat]
        self.client._sessions.in_parallel([partial(write, name) for name in others])
        return following

    def _write_copy(
        self,
        ensemble: Any,
        before: Table,
        table: Table,
        frozen: list[int],
        deciding: bool,
    ) -> None:
        while True:
            copy = namespace.copy_at(ensemble, ensemble.name, table)
            if copy is None:
                namespace._create(ensemble, CONFIG, before.serialize())
                continue
            found, version = copy
            if deciding and found.generation != before.generation:
                raise MoveFailed("the table was changed by somebody else; try again")
            if found == table and not (deciding or frozen):
                return  # we lost the connection, and it had been done
            if found.generation >= table.generation:
                raise MoveFailed("somebody else is ahead with the table; try again")
            change = ensemble.transaction()
            change.set_data(CONFIG, table.serialize(), version)
            for shard in frozen:
                change.set_data(fence(shard), FROZEN, table.fences[shard])
            results = change.commit()
            failed = [r for r in results if isinstance(r, Exception)]
            if not failed:
                return
            if not isinstance(failed[0], BadVersionError) or frozen:
                raise MoveFailed(f"{ensemble.name} refused the new table: {results}")
            if deciding:
                raise MoveFailed("the table was changed by somebody else; try again")


def refuse_busy(seat: KazooClient) -> None:
    """Before work that would be in vain.

    :raises MoveFailed: somebody is changing the namespace of which this is the seat.
    """
    if seat.exists(ADMIN) is not None:
        raise _busy()


def _busy() -> MoveFailed:
    return MoveFailed(
        "somebody else is changing this namespace; wait until they are done. A command"
        " that was killed counts as one until its session ends, ten seconds later"
    )


def left_unfinished(client: ParKazooClient) -> bool | None:
    """Was a move begun that nobody goes on with? None: the seat cannot be asked.

    If nobody is at work at a moment between two readings of the same table, whoever
    began what it shows has died: who ends, or undoes, it writes the table before going.
    One that was killed counts as at work until its session ends.
    """
    seat = Seat(client)
    try:
        while True:
            table = seat.table
            if not (table.moving or table.planned):
                return False
            if seat._at(table.seat).exists(ADMIN) is not None:
                return False
            if seat.table.generation == table.generation:
                return True
    except KazooException:
        return None
