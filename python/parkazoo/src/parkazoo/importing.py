"""Bringing data of plain ZooKeeper into a namespace, when it is made.

What: copies every persistent node of each ensemble, below the root and outside
ZooKeeper's and our own subtrees, to the same path in the namespace: data and ACL.
Ephemerals belong to sessions and are left; versions and numbers start anew, which
is why programs must be stopped while this runs.

Must never: delete or change an original, or let anybody read what they could not
read there. A directory whose ACL would keep us out of it lets us in until its
children are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.security import make_acl

from parkazoo import failpoints
from parkazoo.client import ParKazooClient
from parkazoo.layout import BASE, is_system
from parkazoo.mapping import join

# What we need to fill a directory, and to give it its own ACL then.
_OURS = make_acl("world", "anyone", create=True, admin=True)


def copy_in(sources: Mapping[str, Any], hosts: str, auth: list[Any]) -> int:
    """Returns the number of nodes copied."""
    client = ParKazooClient(hosts, auth_data=auth, auto_init=False)
    client.start()
    try:
        return sum(_copy(source, client, "/") for source in sources.values())
    finally:
        client.stop()
        client.close()


def _copy(source: Any, client: ParKazooClient, path: str) -> int:
    count = 0
    for name in source.get_children(path):
        child = join(path, name)
        if is_system(child) or child == BASE:
            continue
        try:
            data, stat = source.get(child)
            acls, _ = source.get_acls(child)
        except NoNodeError:
            continue
        if stat.ephemeralOwner:
            continue
        first = [*acls, _OURS] if stat.numChildren else acls
        try:
            client.create(child, data, acl=first)
            count += 1
        except (NodeExistsError, NoAuthError):
            # An import that was killed had got here; it closes a directory last.
            if client.exists(child) is None:
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
