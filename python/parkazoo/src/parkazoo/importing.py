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

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.security import make_acl

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
        except NodeExistsError:
            first = acls
        count += _copy(source, client, child)
        if first is not acls:
            client.set_acls(child, acls)
    return count
