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

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException, NoNodeError

from parkazoo import namespace, naming
from parkazoo.errors import NamespaceMismatch
from parkazoo.layout import CONFIG
from parkazoo.mapping import ConfigurationInvalid, Table
from parkazoo.naming import STRANGER_SECONDS

if TYPE_CHECKING:
    from parkazoo.ensemble import EnsembleClient
    from parkazoo.sessions import Sessions

# How often it is looked even when nothing was signalled.
LOOK_SECONDS = 0.25
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
    while sessions.current(epoch):
        sessions.signal.wait(LOOK_SECONDS)
        sessions.signal.clear()
        with sessions.lock:
            copies = dict(sessions.copies)
        tables = [copy for copy in copies.values() if isinstance(copy, Table)]
        broken = [c for c in copies.values() if isinstance(c, ConfigurationInvalid)]
        if tables:
            return _adopt_first(sessions, tables)
        if broken and len(copies) == len(sessions.by_name):
            raise broken[0]
        if len(copies) == len(sessions.by_name) and all(
            isinstance(copy, NoNodeError) for copy in copies.values()
        ):
            tables = [namespace.make(sessions.by_name, sessions.client)]
            return _adopt_first(sessions, tables) if sessions.current(epoch) else None
    return None


def _resume(sessions: Sessions, epoch: int) -> bool:
    """Take the table from who has it, so that sessions that were given to us are opened
    by their members' names. False: they are of nothing that is there."""
    client, given = sessions.client, sessions.identity
    said = _visited(sessions, epoch)
    tables = [table for _, table in said if table is not None]
    if not tables:
        return not sessions.current(epoch)
    if len({table.namespace for table in tables}) > 1:
        raise naming.mismatch(said)
    known = {name for table in tables for name in table.ensembles}
    sessions.identity = {n: one for n, one in given.items() if n is HOME or n in known}
    if not sessions.identity:
        return False
    _adopt_first(sessions, tables)
    table = sessions.table
    assert table is not None
    if HOME in given:
        home = client._home_name(table, client.chroot)
        sessions.identity = {home: given[HOME]}
    if table.moving:
        client._adopting.look()  # their ephemerals may be waited for
    return True


_Said = list[tuple[str, Table | None]]


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


def _adopt_first(sessions: Sessions, tables: list[Table]) -> None:
    with sessions.lock:
        opened = list(sessions.by_name.values())
    shown = [*tables, *(e.met for e in opened if e.met)]
    if len({table.namespace for table in shown}) > 1:
        raise _mismatch(sessions)
    table = max(tables, key=lambda table: table.generation)
    waits = table.importing and not sessions.client.enters_unfinished
    if waits and _newest(sessions, table).importing:
        raise namespace.unfinished()
    _name_by(sessions, table)
    sessions.adopt(table)
    strange = [e for e in sessions.by_name.values() if e.strange]
    sessions.in_parallel([partial(_judge, sessions, e, table) for e in strange])
    # One may have shown its copy as the others were compared; since then it is refused.
    if any(e.foreign for e in sessions.by_name.values()):
        raise _mismatch(sessions)


def _mismatch(sessions: Sessions) -> NamespaceMismatch:
    with sessions.lock:
        opened = list(sessions.by_name.values())
    return naming.mismatch((e.hosts_string, e.met) for e in opened)


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
    since: somebody has made the namespace meanwhile, or it is a stranger. So is
    one that said, when its name was not known, that it is another member."""
    if not sessions.wait(lambda: ensemble.connected, STRANGER_SECONDS):
        return  # it is looked at when it connects
    try:
        ensemble.sync(CONFIG)
        namespace.copy_at(ensemble, ensemble.name, table)
        ensemble.nothing, ensemble.said = False, ensemble.name
    except NamespaceMismatch:
        # So that it is refused for as long as it is one, and not any longer.
        ensemble.shut()
        sessions.refusal(ensemble, None)
        sessions.begin(ensemble)
    except ConfigurationInvalid:
        ensemble.nothing = False
    except KazooException:
        return  # the next connection is looked at when it is made


def _name_by(sessions: Sessions, table: Table) -> None:
    """Give the sessions opened to find the table their ensembles' names."""
    with sessions.lock:
        opened = dict(sessions.by_name)
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
            sessions.by_name[name] = ensemble
            if old in copies:
                sessions.copies[name] = copies[old]
    for ensemble in strangers:
        sessions.client.logger.warning(
            "%s is not an ensemble of this namespace, or named twice; ignored",
            ensemble.hosts_string,
        )
        sessions.discard(ensemble)


def follows(old: Table, table: Table) -> bool:
    return table.namespace == old.namespace and table.generation > old.generation
