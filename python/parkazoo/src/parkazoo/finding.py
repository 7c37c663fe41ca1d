"""Finding the namespace: from a hosts string to a table, and to sessions with names.

What: opens a session with each ensemble that the hosts string names, takes the newest
table that they have, or makes the namespace where there is none, and gives the
sessions the names that the table has for their ensembles.

A client that is given another's sessions asks in visits which ensemble is which, since
a session that goes on belongs to one of them, and only the table says to which.

Must never: run twice at a time for one client (`Sessions.finding`), or take servers for
a member's that are not.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException, NoNodeError

from parkazoo import namespace, naming
from parkazoo.errors import NamespaceMismatch
from parkazoo.layout import CONFIG
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Table
from parkazoo.naming import STRANGER_SECONDS

if TYPE_CHECKING:
    from parkazoo.ensemble import EnsembleClient
    from parkazoo.sessions import Sessions

# How often it is looked even when nothing was signalled.
LOOK_SECONDS = 0.25
# The table that servers have shown, by hosts.
_Said = list[tuple[str, Table | None]]
# In `Sessions.identity`: the session that serves the client's root, whoever that is.
HOME = None


def find(sessions: Sessions, epoch: int) -> None:
    """Open what the hosts string names until the table is known."""
    if sessions.identity and _resume(sessions, epoch):
        return
    with sessions.lock:
        known = {e.hosts_string for e in sessions.by_name.values()}
    for number, hosts in enumerate(sessions.client.bootstrap):
        if hosts not in known:
            sessions.add(f"bootstrap{number}", hosts)
    for ensemble in list(sessions.by_name.values()):
        sessions.begin(ensemble)
    until: float | None = None
    while sessions.current(epoch):
        sessions.signal.wait(LOOK_SECONDS)
        sessions.signal.clear()
        with sessions.lock:
            copies = dict(sessions.copies)
        all_have_said = len(copies) == len(sessions.by_name)
        if any(isinstance(copy, Table) for copy in copies.values()):
            # The others are waited for, or it would depend on who answers first which
            # namespace this is, and whether there is more than one.
            until = until or time.monotonic() + sessions.patience
            if all_have_said or time.monotonic() > until:
                return _adopt_first(sessions, naming.meant(_shown(sessions, copies)))
            continue
        if not all_have_said:
            continue
        for copy in copies.values():
            if isinstance(copy, ConfigurationInvalid):
                raise copy
        if all(isinstance(copy, NoNodeError) for copy in copies.values()):
            table = namespace.make(sessions.by_name, sessions.client)
            return _adopt_first(sessions, table) if sessions.current(epoch) else None
    return None


def _shown(sessions: Sessions, copies: dict[str, Any]) -> _Said:
    """The tables of those that have said, or are about to."""
    with sessions.lock:
        opened = dict(sessions.by_name)
    return [
        (e.hosts_string, copy if isinstance(copy := copies.get(name), Table) else e.met)
        for name, e in opened.items()
    ]


def _resume(sessions: Sessions, epoch: int) -> bool:
    """Take the table from who has it, so that sessions that were given to us are opened
    by their members' names. False: they are of nothing that is there."""
    client, given = sessions.client, sessions.identity
    said = _visited(sessions, epoch)
    if all(table is None for _, table in said):
        return not sessions.current(epoch)
    table = naming.meant(said)
    known = table.ensembles
    sessions.identity = {n: one for n, one in given.items() if n is HOME or n in known}
    if not sessions.identity:
        return False
    _adopt_first(sessions, table)
    assert sessions.table is not None
    table = sessions.table
    if HOME in given:
        home = client._home_name(table, client.chroot)
        sessions.identity = {home: given[HOME]}
    if table.moving:
        client._adopting.look()  # their ephemerals may be waited for
    return True


def _visited(sessions: Sessions, epoch: int) -> _Said:
    """Which table those have that the hosts string names: as soon as one has any, or
    all have said that they have none."""
    named = sessions.client.bootstrap
    while sessions.current(epoch):
        said: _Said = []
        sessions.in_parallel([partial(_ask, sessions, hosts, said) for hosts in named])
        if len(said) == len(named) or any(table is not None for _, table in said):
            return said
    return []


def _ask(sessions: Sessions, hosts: str, said: _Said) -> None:
    with sessions.visiting(hosts) as visited:
        if visited is None:
            return
        try:
            said.append((hosts, namespace.found(visited)))
        except ConfigurationInvalid:
            said.append((hosts, None))
        except KazooException as error:
            sessions.client.logger.debug("no answer from %s: %s", hosts, error)


def _adopt_first(sessions: Sessions, table: Table) -> None:
    waits = table.importing and not sessions.client.enters_unfinished
    if waits and _newest(sessions, table).importing:
        raise namespace.unfinished()
    _name_by(sessions, table)
    sessions.adopt(table)
    strange = [e for e in sessions.by_name.values() if e.strange]
    sessions.in_parallel([partial(_judge, sessions, e, table) for e in strange])


def _newest(sessions: Sessions, table: Table) -> Table:
    """The table, or a newer one: not every server, nor every member, has it yet."""

    def newer(ensemble: EnsembleClient) -> Table:
        with suppress(KazooException, ConfigurationInvalid):
            ensemble.sync(CONFIG)
            found = Table.deserialize(ensemble.get(CONFIG)[0])
            return found if follows(table, found) else table
        return table

    for ensemble in list(sessions.by_name.values()):
        if ensemble.connected:
            table = newer(ensemble)
    with sessions.visiting(table.ensembles[table.seat]) as seat:
        return table if seat is None else newer(seat)


def _judge(sessions: Sessions, ensemble: EnsembleClient, table: Table) -> None:
    """One that held nothing when we connected, and of which a table was found
    since: somebody has made the namespace meanwhile, or it is a stranger. So is one
    that said, when its name was not known, that it is another member, or showed
    another namespace."""
    if not sessions.wait(lambda: ensemble.connected, STRANGER_SECONDS):
        return  # it is looked at when it connects
    try:
        ensemble.sync(CONFIG)
        found = namespace.copy_at(ensemble, ensemble.name, table)
        ensemble.nothing, ensemble.said = False, ensemble.name
        ensemble.met = found[0] if found else None
    except (EnsembleRemoved, NamespaceMismatch):
        # So that it is refused for as long as it is one, and not any longer.
        ensemble.shut()
        sessions.refusal(ensemble)
        sessions.begin(ensemble)
    except ConfigurationInvalid:
        ensemble.nothing = False
    except KazooException:
        return  # the next connection is looked at when it is made


def _name_by(sessions: Sessions, table: Table) -> None:
    """Give the sessions opened to find the table their ensembles' names."""
    with sessions.lock:
        opened = dict(sessions.by_name)
        silent = {n: e for n, e in opened.items() if not e.connected}
        if sessions.client.lazy:
            # Those are opened, by their names, when something on them is needed.
            opened = {n: e for n, e in opened.items() if n not in silent}
    unneeded = list(silent.values()) if sessions.client.lazy else []
    names: dict[str, str | None] = {}

    def look(old: str, ensemble: EnsembleClient) -> None:
        names[old] = naming.name_of(sessions, ensemble, table)

    sessions.in_parallel([partial(look, old, e) for old, e in opened.items()])
    strangers = []
    with sessions.lock:
        sessions.by_name = {}
        copies, sessions.copies = sessions.copies, {}
        for old, ensemble in opened.items():
            name = names[old]
            if name is None or name in sessions.by_name:
                strangers.append(ensemble)
                continue
            ensemble.name = name
            if sessions.client.lazy and sessions.by_name and not ensemble.strange:
                unneeded.append(ensemble)  # one is enough to begin with
                continue
            sessions.by_name[name] = ensemble
            if old in copies:
                sessions.copies[name] = copies[old]
    for ensemble in unneeded:
        ensemble.closing = True  # its end is not a loss
        sessions.discard(ensemble)
    for ensemble in strangers:
        sessions.client.logger.warning(
            "%s is not an ensemble of this namespace, or named twice; ignored",
            ensemble.hosts_string,
        )
        sessions.discard(ensemble)


def follows(old: Table, table: Table) -> bool:
    return table.namespace == old.namespace and table.generation > old.generation
