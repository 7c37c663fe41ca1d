"""An ensemble joins the namespace, or has left it: what is written there.

What: gives one that is to join the znodes that every ensemble has, if it is nobody's,
and leaves word on one that was taken out, so that whoever still names it hears so. Who
is to be told is noted at the seat, should whoever takes it out die meanwhile.

Must never: write on an ensemble that is, or has become, somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
)
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import failpoints, founding, namespace
from parkazoo import hosts as hosts_string
from parkazoo.errors import MoveFailed, NamespaceMismatch
from parkazoo.layout import BASE, CONFIG, IDENTITY, INTENTS
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Table

if TYPE_CHECKING:
    from parkazoo.move import Mover

# How long an ensemble is waited for that is no member.
CONNECT_SECONDS = 15.0
# On the seat: the name and hosts of an ensemble that goes, until it has been told.
FAREWELL = BASE + "/farewell"


def furnish(mover: Mover, table: Table, name: str, hosts: str, beside: bool) -> None:
    """The znodes every ensemble has, on one that is to join."""
    session = mover.client._sessions.visit(hosts)
    try:
        seconds = mover.connect_seconds
        if not mover.client._sessions.wait(lambda: session.connected, seconds):
            raise MoveFailed(
                f"no answer from {hosts} within {seconds:g} s; are its servers up?"
                " Nothing was changed"
            )
        with suppress(NoNodeError):
            _refuse_member(session.get(CONFIG)[0], hosts, table)
        foreign = [] if beside else namespace.foreign(session)
        if foreign:
            raise MoveFailed(
                f"{hosts} holds data that is not ParKazoo's ({', '.join(foreign)}),"
                " which would not be visible in the namespace. Nothing was changed;"
                " leave it aside with `parkazoo add-ensemble --beside`"
            )
        founding.refuse({hosts: session}, mover.client._sessions.visiting)
        session.ensure_path(INTENTS)
        _introduce(mover, session, table, name, hosts)
    finally:
        session.shut()
        session.close()


def _refuse_known(mover: Mover, session: Any, table: Table, hosts: str) -> None:
    """It may be a member, at an address that the table does not know."""
    with suppress(NoNodeError):
        session.sync(IDENTITY)
        name, stat = session.get(IDENTITY)
        said = name.decode(errors="replace")
        if said in table.ensembles and stat == _identity_of(mover, said):
            raise MoveFailed(
                f"{hosts} is {said}, which the table has at"
                f" {table.ensembles[said]}; to change that,"
                f" `parkazoo set-hosts {said} {hosts}`"
            )


def _identity_of(mover: Mover, name: str) -> Any:
    session = mover._at(name)
    session.sync(IDENTITY)
    return session.get(IDENTITY)[1]


def _introduce(mover: Mover, session: Any, table: Table, name: str, hosts: str) -> None:
    """Write the table and the ensemble's name there, if nobody else has since."""
    change = session.transaction()
    try:
        data, stat = session.get(CONFIG)
    except NoNodeError:
        change.create(CONFIG, table.serialize(), acl=OPEN_ACL_UNSAFE)
    else:
        _refuse_member(data, hosts, table)
        _refuse_known(mover, session, table, hosts)
        change.set_data(CONFIG, table.serialize(), stat.version)
    if session.exists(IDENTITY) is None:
        change.create(IDENTITY, name.encode(), acl=OPEN_ACL_UNSAFE)
    else:
        change.set_data(IDENTITY, name.encode())
    failpoints.reached("add.1.furnish", failpoints.BEFORE)
    if any(isinstance(result, Exception) for result in change.commit()):
        raise MoveFailed(f"somebody else has taken in {hosts} meanwhile; try again")


def note_farewell(mover: Mover, table: Table, name: str) -> None:
    """Note on the seat whom word must be left with, should we die meanwhile."""
    note = json.dumps([name, table.ensembles[name]]).encode()
    seat = mover._at(table.seat)
    if not namespace._create(seat, FAREWELL, note):
        seat.set(FAREWELL, note)


def end_farewell(mover: Mover) -> None:
    """Leave word on an ensemble that was taken out, if that is still to be done.

    It is tried once: an ensemble that does not answer may be gone for good.
    """
    table = mover.table
    seat = mover._at(table.seat)
    try:
        note, stat = seat.get(FAREWELL)
    except NoNodeError:
        return
    name, hosts = json.loads(note)
    if not member(table.ensembles, hosts):
        _say_farewell(mover, hosts, table)
        mover.farewell_said = name
        failpoints.reached("remove.4.farewell", failpoints.AFTER)
    with suppress(NoNodeError, BadVersionError):
        seat.delete(FAREWELL, stat.version)


def _say_farewell(mover: Mover, hosts: str, table: Table) -> None:
    """Leave word on an ensemble that nobody may take for a fresh one.

    Unless it has been taken in again meanwhile, or has heard it already, or is
    somebody else's now: what it holds then is not ours to write over.
    """
    session = mover.client._sessions.visit(hosts)
    try:
        seconds = CONNECT_SECONDS
        if not mover.client._sessions.wait(lambda: session.connected, seconds):
            raise ConnectionLoss("no connection")
        data, stat = session.get(CONFIG)
        found = Table.deserialize(data)
        if found.generation > table.generation:
            raise MoveFailed("it has been taken in again")
        name = member(found.ensembles, hosts)
        # It held no shard when it went, so one that does began anew.
        if found.namespace != table.namespace or (name and found.shards(name)):
            raise MoveFailed("it is of another namespace now")
        failpoints.reached("remove.4.farewell", failpoints.BEFORE)
        session.set(CONFIG, table.tombstone(), stat.version)
    except EnsembleRemoved:
        pass
    except (ConfigurationInvalid, KazooException) as error:
        mover.client.logger.warning("no word left on %s: %r", hosts, error)
    finally:
        session.shut()
        session.close()


def member(ensembles: Mapping[str, str], hosts: str) -> str | None:
    """The name under which an ensemble with one of these servers is a member."""
    for name, listed in ensembles.items():
        if hosts_string.servers(hosts) & hosts_string.servers(listed):
            return name
    return None


def _refuse_member(data: bytes, hosts: str, table: Table) -> None:
    """An ensemble that is to join may have been ours, or nobody's, only."""
    try:
        found = Table.deserialize(data)
    except EnsembleRemoved:
        return
    if found.namespace != table.namespace:
        raise NamespaceMismatch(
            f"{hosts} belongs to another namespace ({found.namespace})"
        )
    if found.generation > table.generation:
        raise MoveFailed(f"somebody else has taken in {hosts} meanwhile; try again")
