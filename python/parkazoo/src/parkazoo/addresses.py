"""Where a member's servers are: changing its hosts in the table.

What: looks at each of the servers given, and at those in the table so far, and then
publishes a table with the new hosts. Clients take them over when they read it, and
connect there the next time they connect.

Why each is looked at: hosts lead clients to locks and data. Of two copies of one
ensemble, say the old one and another that was brought up from a backup, either would
say that it is the member; so a mark is left through one server, and each other that
answers must have it.

Must never: give a member the address of a server that is not its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import ZnodeStat

from parkazoo import hosts as hosts_string
from parkazoo import namespace
from parkazoo.errors import MoveFailed, NamespaceMismatch
from parkazoo.founding import Visit
from parkazoo.layout import IDENTITY
from parkazoo.mapping import ConfigurationInvalid, Table
from parkazoo.membership import member
from parkazoo.move import Mover

# How long a server is waited for, of several of which some may be down.
SERVER_SECONDS = 5.0
SILENT = object()


def set_hosts(mover: Mover, name: str, hosts: str) -> None:
    """Say in the table where a member is. `mover`'s client is connected to it there.

    :raises MoveFailed: a server that answers is not one of that member's, or none
        answers; nothing was changed.
    """
    with mover.alone():
        mover._recover()
        table = mover.table
        if name not in table.ensembles:
            raise MoveFailed(
                f"there is no ensemble named {name}; there are"
                f" {', '.join(table.ensembles)}"
            )
        rest = {n: listed for n, listed in table.ensembles.items() if n != name}
        other = member(rest, hosts)
        if other is not None:
            raise MoveFailed(f"one of {hosts} is a server of {other}")
        _look_at_each(mover, name, hosts, table.ensembles[name])
        if table.ensembles[name] != hosts:
            mover.publish(table.with_ensembles({**table.ensembles, name: hosts}))


def refuse_others(mover: Mover, name: str, hosts: str) -> None:
    """Are these, of which one is a member's, all that member's?

    :raises MoveFailed: one is not; a comma may stand for a semicolon.
    """
    listed = mover.table.ensembles[name]
    if hosts_string.servers(hosts) - hosts_string.servers(listed):
        try:
            _look_at_each(mover, name, hosts, hosts)
        except MoveFailed as error:
            raise MoveFailed(f"{error}. Between ensembles write `;`") from None


def refuse_strangers(hosts: str, ensembles: list[str], visit: Visit) -> None:
    """Is the namespace of these servers that of the `ensembles`, as far as they answer?

    Asked before either is used to find the namespace, or one that is healthy would
    seem to be the stranger.

    :raises MoveFailed: none of the servers answers.
    :raises NamespaceMismatch: one of them is of another namespace.
    """
    given = [hosts_string.server(s) for s in sorted(hosts_string.servers(hosts))]
    asked = [*given, *ensembles]
    with ThreadPoolExecutor(len(asked)) as threads:
        found = dict(
            zip(asked, threads.map(partial(_table, visit), asked), strict=True)
        )
    if all(found[server] is SILENT for server in given):
        raise MoveFailed(f"none of {hosts} answers; nothing was changed")
    known = {e: t.namespace for e in ensembles if isinstance(t := found[e], Table)}
    for server in given:
        table = found[server]
        if isinstance(table, Table) and known and table.namespace not in known.values():
            ours = ", ".join(
                f"{namespace}, as on {e}" for e, namespace in known.items()
            )
            raise NamespaceMismatch(
                f"{server} belongs to another namespace ({table.namespace}, not"
                f" {ours}). Nothing was changed"
            )


def _table(visit: Visit, hosts: str) -> Table | object | None:
    """What there is to be read; `SILENT` if nobody answers."""
    with visit(hosts) as visited:
        try:
            return SILENT if visited is None else namespace.found(visited)
        except (KazooException, ConfigurationInvalid):
            return None  # what is wrong there is found when it is looked at closely


def _look_at_each(mover: Mover, name: str, hosts: str, before: str) -> None:
    mark = mover._at(name).set(IDENTITY, name.encode())
    given = hosts_string.servers(hosts)
    answers = {
        server: _identity(mover, hosts_string.server(server))
        for server in sorted(given | hosts_string.servers(before))
    }
    for server, found in answers.items():
        if found is None or (found[0] == name.encode() and _same(found[1], mark)):
            continue
        where = hosts_string.server(server)
        if server in given:
            raise MoveFailed(
                f"{where} is not a server of the {name} that was found:"
                f" {_is_instead(name, found[0].decode(errors='replace'))}. Nothing was"
                " changed"
            )
        if found[0] == name.encode():
            raise MoveFailed(
                f"another {name} still runs at {where}, with data of its own; stop"
                " it first, and make sure that the one to stay has all of it"
            )
    if not any(answers[server] for server in given):
        raise MoveFailed(f"none of {hosts} answers; nothing was changed")


def _is_instead(name: str, said: str) -> str:
    if not said:
        return "it holds nothing of a namespace"
    if said != name:
        return f"it says that it is {said}"
    return (
        "what is written there does not arrive here, so it is a copy of its own. Name"
        " the servers of the one that is to stay, and stop the other"
    )


def _identity(mover: Mover, server: str) -> tuple[bytes, ZnodeStat] | None:
    """What a server says it is; None if it does not answer."""
    sessions = mover.client._sessions
    visited: Any = sessions.visit(server)
    try:
        seconds = min(SERVER_SECONDS, mover.connect_seconds)
        if not sessions.wait(lambda: visited.connected, seconds):
            return None
        visited.sync(IDENTITY)
        found: tuple[bytes, ZnodeStat] = visited.get(IDENTITY)
        return found
    except NoNodeError:
        return b"", ZnodeStat(*[0] * len(ZnodeStat._fields))
    except KazooException:
        return None
    finally:
        visited.shut()
        visited.close()


def _same(one: ZnodeStat, other: ZnodeStat) -> bool:
    return (one.mzxid, one.mtime) == (other.mzxid, other.mtime)
