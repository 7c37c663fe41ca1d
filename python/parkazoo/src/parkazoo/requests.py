"""From a request object of Kazoo's to the step machine that answers it.

What: one entry per request type. Logical paths come in, chroot included, exactly
as Kazoo would put them on the wire.

Must never: send anything. A machine does nothing until it is driven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import UnimplementedError
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    Reconfig,
    SetACL,
    SetData,
    Sync,
    Transaction,
)

from parkazoo import directory, transaction
from parkazoo.layout import SYSTEM, is_system
from parkazoo.steps import SEQUENCE, Call, Machine
from parkazoo.watching import ChildWatch, DataWatch
from parkazoo.wire import refuse_unsendable

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient


def passed_through(request: Any) -> bool:
    """Is this for ZooKeeper's own subtree? Then the first ensemble answers it."""
    if type(request) is Reconfig:
        return True
    if type(request) is Transaction:
        return any(is_system(operation.path) for operation in request.operations)
    path = getattr(request, "path", None)
    return path is not None and is_system(path)


def named(request: Any) -> Any:
    """A request as we understand it: a sequence node with the path "/" is one without a
    prefix, in the root, as those with the path "/directory/" are in theirs.

    :raises BadArgumentsError: the path is no text, so it lies nowhere.
    """
    if type(request) is Transaction:
        return request._replace(operations=[named(op) for op in request.operations])
    path = getattr(request, "path", None)
    if path is not None and not path.isascii():
        refuse_unsendable(path)
    if type(request) in (Create, Create2) and request.path == "/":
        return request._replace(path="//") if request.flags & SEQUENCE else request
    return request


def machine_for(client: ParKazooClient, request: Any) -> Machine:
    kind = type(request)
    make = _MACHINES.get(kind)
    if make is None:
        raise UnimplementedError(f"{kind.__name__} requests")
    machine: Machine = make(client, request)
    return machine


def _data_watch(client: ParKazooClient, request: Any) -> Any:
    if request.watcher is None:
        return directory.NO_WATCHES
    return DataWatch(client, request.path, request.watcher)


def _children(client: ParKazooClient, request: Any) -> Machine:
    stat_too = type(request) is GetChildren2
    path, watcher = request.path, request.watcher
    if watcher is None:
        found = yield from directory.children(client._layout, path, stat_too)
    else:
        watch = ChildWatch(client, path, watcher)
        try:
            found = yield from directory.children(client._layout, path, stat_too, watch)
        finally:
            client._watches.abandon(watch)
    if path != "/":
        return found
    # A client of plain ZooKeeper finds its system's subtree below the root.
    system = SYSTEM[1:]
    if not stat_too:
        return [*found, system]
    names, stat = found
    return [*names, system], stat._replace(numChildren=stat.numChildren + 1)


def _sync(client: ParKazooClient, request: Any) -> Machine:
    """Catch up with every ensemble's leader: a path's directory may be anywhere.

    A degraded client goes on without those that are away, here as elsewhere: what they
    hold cannot be read either.
    """
    synced: frozenset[str] = frozenset()
    while True:
        table = client._sessions.table
        assert table is not None
        shards: dict[str, int] = {}
        for shard, owner in enumerate(table.owners):
            shards.setdefault(owner, shard)
        # Our table may have been old, and the syncs are what told us: then there are
        # ensembles that none of them went to.
        missing = [shard for owner, shard in shards.items() if owner not in synced]
        if client.degraded:
            there = [shards[n] for n in shards if client._sessions.there(n)]
            missing = [shard for shard in missing if not there or shard in there]
        if not missing:
            return request.path
        replies = yield [Call(shard, Sync("/")) for shard in missing]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        synced |= frozenset(shards)


_MACHINES: dict[type, Any] = {
    Create: lambda c, r: directory.create(c._layout, r.path, r),
    Create2: lambda c, r: directory.create(c._layout, r.path, r),
    Delete: lambda c, r: directory.delete(c._layout, r.path, r.version),
    SetData: lambda c, r: directory.set_data(c._layout, r.path, r.data, r.version),
    SetACL: lambda c, r: directory.set_acls(c._layout, r.path, r.acls, r.version),
    Exists: lambda c, r: directory.exists(c._layout, r.path, _data_watch(c, r)),
    GetData: lambda c, r: directory.get(c._layout, r.path, _data_watch(c, r)),
    GetACL: lambda c, r: directory.get_acls(c._layout, r.path),
    GetChildren: _children,
    GetChildren2: _children,
    Sync: _sync,
    Transaction: lambda c, r: transaction.commit(c, r.operations),
}

# Requests that go to ZooKeeper's own subtree only if their path does.
ON_ONE_PATH = frozenset(_MACHINES) - {Transaction}
