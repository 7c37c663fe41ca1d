"""Which member of a table is an ensemble that a hosts string names?

What: goes by the servers' addresses, or else by what they say themselves, and looks
at each server that stands beside those of a member and that the table does not know.

Why: a session with servers of two ensembles would be with the one or the other by
chance.

Must never: take a server for a member's that says it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from kazoo.exceptions import KazooException, NoNodeError

from parkazoo import hosts as hosts_string
from parkazoo.errors import NamespaceMismatch
from parkazoo.founding import NOT_ONE_ENSEMBLE
from parkazoo.layout import CONFIG, IDENTITY
from parkazoo.mapping import ConfigurationInvalid, Table

if TYPE_CHECKING:
    from parkazoo.ensemble import EnsembleClient
    from parkazoo.sessions import Sessions

# How long a server is waited for, of which it must be known whose it is.
STRANGER_SECONDS = 3.0


def meant(found: Sequence[tuple[str, Table | None]]) -> Table:
    """The newest table of the namespace that hosts are of, by what they have shown.

    Where they show several, that is the one whose table names all who show another:
    they are strangers in it. Where each names the other, nobody can tell.

    :raises NamespaceMismatch: no namespace, or more than one, is like that.
    """
    newest: dict[str, Table] = {}
    for _, table in found:
        known = newest.get(table.namespace) if table else None
        if table and (known is None or table.generation > known.generation):
            newest[table.namespace] = table
    of_all = [
        table
        for table in newest.values()
        if all(
            copy is None or copy.namespace == table.namespace or _lists(table, hosts)
            for hosts, copy in found
        )
    ]
    if len(of_all) != 1:
        raise mismatch(found)
    return of_all[0]


def _lists(table: Table, hosts: str) -> bool:
    servers = hosts_string.servers(hosts)
    return any(servers & hosts_string.servers(h) for h in table.ensembles.values())


def mismatch(found: Iterable[tuple[str, Table | None]]) -> NamespaceMismatch:
    """What to say of hosts that have tables of several namespaces."""
    by_namespace: dict[str, list[str]] = {}
    for hosts, table in found:
        if table is not None:
            by_namespace.setdefault(table.namespace, []).append(hosts)
    which = ", ".join(
        f"{hosts_string.SEPARATOR.join(sorted(hosts))} {namespace}"
        for namespace, hosts in sorted(by_namespace.items())
    )
    return NamespaceMismatch(
        f"the hosts given hold different ParKazoo namespaces: {which}. Name the"
        " ensembles of one of them; one is enough to find its others"
    )


def name_of(sessions: Sessions, ensemble: EnsembleClient, table: Table) -> str | None:
    """Which ensemble of the table is this, by its servers or by what it says?"""
    servers = hosts_string.servers(ensemble.hosts_string)
    found = None
    for name, listed in table.ensembles.items():
        these = servers & hosts_string.servers(listed)
        if these and found is not None:
            _not_one(ensemble, table, min(these), f"is one of {name}'s")
        if these:
            found = name
    if found is not None:
        known = hosts_string.servers(table.ensembles[found])
        refuse = partial(_refuse_stranger, sessions, ensemble, table, found)
        sessions.in_parallel([partial(refuse, s) for s in sorted(servers - known)])
        return found
    if not ensemble.connected:
        return None
    try:
        said = ensemble.get(IDENTITY)[0].decode()
        theirs = Table.deserialize(ensemble.get(CONFIG)[0])
    except (KazooException, ConfigurationInvalid):
        return None
    if theirs.namespace != table.namespace:
        # Else which of the two it is would depend on who answered first.
        ours = [(hosts, table) for hosts in table.ensembles.values()]
        raise mismatch([*ours, (ensemble.hosts_string, theirs)])
    return said if said in table.ensembles else None


def _refuse_stranger(
    sessions: Sessions,
    ensemble: EnsembleClient,
    table: Table,
    name: str,
    server: tuple[str, int],
) -> None:
    """A server that stands beside those of an ensemble, and that the table does
    not know, may be a new one of it."""
    says = what_it_says(sessions, server, table, name)
    if says:
        _not_one(ensemble, table, server, says)


def what_it_says(
    sessions: Sessions, server: tuple[str, int], table: Table, name: str
) -> str | None:
    """Why a server is not one of this member's, by what it says itself: a session would
    be with the one or the other by chance. Empty if it is one; None: not known."""
    with sessions.visiting(hosts_string.server(server)) as visited:
        if visited is None:
            return None
        try:
            visited.sync(CONFIG)
            theirs = Table.deserialize(visited.get(CONFIG)[0])
            said = visited.get(IDENTITY)[0].decode()
        except NoNodeError:
            return "holds no namespace"
        except (KazooException, ConfigurationInvalid):
            return None
        if theirs.namespace != table.namespace:
            return f"belongs to another namespace ({theirs.namespace})"
        return "" if said == name else f"is one of {said}'s"


def _not_one(
    ensemble: EnsembleClient, table: Table, server: tuple[str, int], is_of: str
) -> NoReturn:
    """Several ensembles where one should be: name the semicolon."""
    hosts = ensemble.hosts_string
    parts: dict[Any, list[str]] = {}
    for each in hosts.split(","):
        one = hosts_string.servers(each)
        listed = table.ensembles.items()
        owner = next((n for n, h in listed if one & hosts_string.servers(h)), each)
        parts.setdefault(owner, []).append(each.strip())
    meant = hosts_string.SEPARATOR.join(",".join(part) for part in parts.values())
    raise NamespaceMismatch(
        NOT_ONE_ENSEMBLE.format(
            hosts=hosts,
            server=hosts_string.server(server),
            is_of=is_of,
            meant=meant,
        )
    )
