"""Bringing data of plain ZooKeeper into a namespace, when it is made.

What: copies every persistent node of each ensemble, below the root and outside
ZooKeeper's and our own subtrees, to the same path in the namespace: data and ACL.
Ephemerals belong to sessions and are left; versions and numbers start anew, which
is why programs must be stopped while this runs: the table says so until it has ended
well, and none starts meanwhile.

All is looked over before anything is made, since what is refused then costs nothing.

Must never: delete or change an original, or let anybody read what they could not
read there. A directory whose ACL would keep us out of it lets us in until its
children are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.security import make_acl

from parkazoo import failpoints
from parkazoo.client import ParKazooClient
from parkazoo.copying import is_hidden
from parkazoo.errors import ImportConflict, Unreadable
from parkazoo.layout import BASE, is_system
from parkazoo.mapping import join
from parkazoo.move import Mover

# So many paths are named in an error.
SHOWN = 5

# What we need to fill a directory, and to give it its own ACL then.
_OURS = make_acl("world", "anyone", create=True, admin=True)


def look(sources: Mapping[str, Any]) -> None:
    """Look over all that would be imported, so that what is refused changes nothing.

    :raises Unreadable: a node, or its ACL, may not be read by whoever asks.
    :raises ImportConflict: two ensembles have different nodes at one path.
    """
    seen: dict[str, tuple[str, bytes]] = {}
    unreadable: list[str] = []
    conflicts: list[str] = []
    for hosts, source in sources.items():
        for path in _walk(source, "/", hosts, unreadable):
            try:
                node = _read(source, path)
            except NoAuthError:
                unreadable.append(f"{path} on {hosts}")
                continue
            if node is None or len(sources) == 1:
                continue
            other, before = seen.setdefault(path, (hosts, node.digest()))
            if before != node.digest():
                conflicts.append(f"{path} on {other} and on {hosts}")
    if unreadable:
        raise _unreadable(unreadable)
    if conflicts:
        raise ImportConflict(
            f"data or ACL differ at the same path: {_some(conflicts)}. Nothing was"
            " changed; delete, or make equal, what is not to be imported"
        )


def _walk(source: Any, top: str, hosts: str, unreadable: list[str]) -> Iterator[str]:
    try:
        names = source.get_children(top)
    except NoNodeError:
        return
    except NoAuthError:
        if top == "/":
            unreadable.append(f"{top} on {hosts}")
        return  # else it is met when it is read
    for name in sorted(names):
        path = join(top, name)
        if not (is_system(path) or path == BASE):
            yield path
            yield from _walk(source, path, hosts, unreadable)


@dataclass
class _Original:
    data: bytes
    acls: list[Any]
    children: int

    def digest(self) -> bytes:
        return sha256(self.data + b"\0" + repr(sorted(self.acls)).encode()).digest()


def _read(source: Any, path: str) -> _Original | None:
    """A node that is to be copied; None if it is gone, or somebody's ephemeral.

    :raises NoAuthError: it, or the whole of its ACL, is hidden from us.
    """
    try:
        data, stat = source.get(path)
        if stat.ephemeralOwner:
            return None
        acls, _ = source.get_acls(path)
    except NoNodeError:
        return None
    if is_hidden(acls):
        raise NoAuthError
    return _Original(data, acls, stat.numChildren)


def _unreadable(nodes: list[str]) -> Unreadable:
    return Unreadable(
        f"whoever asks may not read {_some(nodes)}, or their ACLs. Give `--auth"
        " SCHEME:CREDENTIAL` of somebody with READ and ADMIN there, several times if"
        " need be"
    )


def _some(found: list[str]) -> str:
    rest = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + rest


def copy_in(sources: Mapping[str, Any], hosts: str, auth: list[Any]) -> int:
    """Returns the number of nodes copied. Until it has, programs do not start."""
    with _entered(hosts, auth) as client:
        _mark(client, True)
        count = sum(_copy(source, client, "/") for source in sources.values())
        _mark(client, False)
        return count


def give_up(hosts: str, auth: list[Any]) -> None:
    """Let programs use what an import that has not ended brought in."""
    with _entered(hosts, auth) as client:
        _mark(client, False)


@contextmanager
def _entered(hosts: str, auth: list[Any]) -> Iterator[ParKazooClient]:
    client = ParKazooClient(hosts, auth_data=auth, auto_init=False)
    client.enters_unfinished = True
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _mark(client: ParKazooClient, importing: bool) -> None:
    """Say in the table, which everybody reads first, whether programs must wait."""
    mover = Mover(client)
    with mover.alone():
        mover._recover()
        table = mover.table
        if table.importing != importing:
            mover.publish(replace(table, importing=importing))


def _copy(source: Any, client: ParKazooClient, path: str) -> int:
    count = 0
    for name in source.get_children(path):
        child = join(path, name)
        if is_system(child) or child == BASE:
            continue
        try:
            node = _read(source, child)
        except NoAuthError:  # since we looked
            raise _unreadable([child]) from None
        if node is None:
            continue
        acls = node.acls
        first = [*acls, _OURS] if node.children else acls
        try:
            client.create(child, node.data, acl=first)
            count += 1
        except (NodeExistsError, NoAuthError) as error:
            # An import that was killed had got here; it closes a directory last.
            if client.exists(child) is None:
                if isinstance(error, NoAuthError):
                    raise _unreadable([child]) from None
                raise
            if first is not acls and not _left_open(client, child, first):
                first = acls
        failpoints.reached("import.1.node", failpoints.AFTER)
        count += _copy(source, client, child)
        if first is not acls:
            client.set_acls(child, acls)
            failpoints.reached("import.2.acl", failpoints.AFTER)
    return count


def _left_open(client: ParKazooClient, path: str, open_acls: list[Any]) -> bool:
    """Did an import that was killed leave this directory open to everybody?"""
    try:
        found, _ = client.get_acls(path)
    except (NoNodeError, NoAuthError):
        return False
    return _OURS in found and sorted(found) == sorted(set(open_acls))
