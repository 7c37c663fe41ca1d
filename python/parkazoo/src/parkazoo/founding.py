"""Are the servers of a hosts string one ensemble? Looked at before they become one.

What: writes a mark through the session with an ensemble, and looks for it at each of
its servers by itself.

Why: a comma where a semicolon is meant joins two ensembles. A session is with the one
or the other by chance, so there would be two trees in one namespace, and two holders
of one lock. Nobody would notice later: the table names both as servers of one.

Must never: leave more behind than the empty directory for everything of ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import hosts as hosts_string
from parkazoo.errors import NamespaceMismatch
from parkazoo.layout import BASE

NOT_ONE_ENSEMBLE = (
    "{hosts} are not the servers of one ensemble: {server} {is_of}. Commas join the"
    " servers of one ensemble; between ensembles stands a semicolon: `{meant}`"
)
# A session with one server, for as long as it is looked at; None if it is silent.
Visit = Callable[[str], AbstractContextManager[Any]]


def refuse_several(by_hosts: Mapping[str, KazooClient], visit: Visit) -> None:
    """
    :raises NamespaceMismatch: what one of these hosts strings, which has no semicolon,
        names are servers of several ensembles; nothing was changed.
    """
    for hosts, client in by_hosts.items():
        if len(hosts_string.servers(hosts)) > 1:
            _look_at_each(hosts, client, visit)


def _look_at_each(hosts: str, client: KazooClient, visit: Visit) -> None:
    client.ensure_path(BASE)
    mark = f"{BASE}/mark-{uuid.uuid4().hex}"
    client.create(mark, b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
    seen: dict[str, bool | None] = {}  # by server; None: it says nothing
    alone: list[str] = []
    try:
        for server in map(hosts_string.server, sorted(hosts_string.servers(hosts))):
            with visit(server) as visited:
                seen[server] = None if visited is None else _shows(visited, mark)
                if visited is not None and _is_alone(visited):
                    alone.append(server)
    finally:
        with suppress(NoNodeError):
            client.delete(mark)
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
