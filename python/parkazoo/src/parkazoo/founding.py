"""Is each part of a hosts string one ensemble, and each another one? Looked at before
they become members.

What: writes a mark through the session with an ensemble, and looks for it at each of
its servers by itself, and through the session with each other ensemble.

Why: a comma where a semicolon is meant joins two ensembles. A session is with the one
or the other by chance, so there would be two trees in one namespace, and two holders
of one lock. Nobody would notice later: the table names both as servers of one.
A semicolon where a comma is meant makes one ensemble two members. All works, until
what the one holds is taken for what was left behind on the other, and deleted.

Must never: leave more behind than the empty directory for everything of ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NoReturn

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError, SessionExpiredError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import hosts as hosts_string
from parkazoo.errors import NamespaceMismatch
from parkazoo.layout import BASE

NOT_ONE_ENSEMBLE = (
    "{hosts} are not the servers of one ensemble: {server} {is_of}. Commas join the"
    " servers of one ensemble; between ensembles stands a semicolon: `{meant}`"
)
TWICE = (
    "{what}. Semicolons stand between ensembles; commas join the servers of one:"
    " `{meant}`"
)
# A session with one server, for as long as it is looked at; None if it is silent.
Visit = Callable[[str], AbstractContextManager[Any]]


def refuse(by_hosts: Mapping[str, KazooClient], visit: Visit) -> None:
    """
    :raises NamespaceMismatch: what one of these hosts strings, which has no semicolon,
        names are servers of several ensembles, or two of them name servers of one;
        nothing was changed.
    """
    with ExitStack() as marked:
        marks = {
            hosts: marked.enter_context(_mark(client))
            for hosts, client in by_hosts.items()
            if len(by_hosts) > 1 or len(hosts_string.servers(hosts)) > 1
        }
        if len(by_hosts) > 1:
            _refuse_one_twice(by_hosts, marks)
        for hosts, mark in marks.items():
            if len(hosts_string.servers(hosts)) > 1:
                _look_at_each(hosts, mark, visit)


@contextmanager
def _mark(client: KazooClient) -> Iterator[str]:
    client.ensure_path(BASE)
    mark = f"{BASE}/mark-{uuid.uuid4().hex}"
    client.create(mark, b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
    try:
        yield mark
    finally:
        with suppress(NoNodeError):
            client.delete(mark)


def _refuse_one_twice(
    by_hosts: Mapping[str, KazooClient], marks: Mapping[str, str]
) -> None:
    """Of two that are one, who looks first sees the other's mark, if both still see
    their own when they look."""
    seen: dict[str, frozenset[str]] = {}
    for hosts, client in by_hosts.items():
        client.sync(BASE)
        there = {f"{BASE}/{name}" for name in client.get_children(BASE)}
        seen[hosts] = frozenset(h for h, mark in marks.items() if mark in there)
        if hosts not in seen[hosts]:
            raise SessionExpiredError(f"while {hosts} was looked at; try again")
    for same in seen.values():
        if len(same) > 1:
            parts = dict.fromkeys(seen.values())
            meant = hosts_string.SEPARATOR.join(",".join(sorted(p)) for p in parts)
            what = f"{' and '.join(sorted(same))} are one ensemble"
            raise NamespaceMismatch(TWICE.format(what=what, meant=meant))


def _look_at_each(hosts: str, mark: str, visit: Visit) -> None:
    seen: dict[str, bool | None] = {}  # by server; None: it says nothing
    alone: list[str] = []
    for server in map(hosts_string.server, sorted(hosts_string.servers(hosts))):
        with visit(server) as visited:
            seen[server] = None if visited is None else _shows(visited, mark)
            if visited is not None and _is_alone(visited):
                alone.append(server)
    others = [server for server, there in seen.items() if there is False]
    if others:
        _refuse(hosts, seen, alone, others[0], "does not have what the others have")
    silent = [server for server, there in seen.items() if there is None]
    if alone and silent:
        _refuse(hosts, seen, alone, alone[0], f"runs alone, without {silent[0]}")


def _shows(visited: Any, mark: str) -> bool | None:
    try:
        visited.sync(mark)
        return visited.exists(mark) is not None
    except KazooException:
        return None


def _is_alone(visited: Any) -> bool:
    """Is it no member of an ensemble? Not known where `srvr` is forbidden."""
    try:
        return "Mode: standalone" in str(visited.command(b"srvr"))
    except (KazooException, OSError):
        return False


def _refuse(
    hosts: str, seen: Mapping[str, bool | None], alone: list[str], server: str, why: str
) -> NoReturn:
    """Those that agree stay together in what we take to be meant."""
    parts: dict[Any, list[str]] = {}
    for each, there in seen.items():
        parts.setdefault(each if each in alone else there, []).append(each)
    meant = hosts_string.SEPARATOR.join(",".join(part) for part in parts.values())
    raise NamespaceMismatch(
        NOT_ONE_ENSEMBLE.format(hosts=hosts, server=server, is_of=why, meant=meant)
    )
