"""Operations on nodes and directories as step machines: create, delete, read.

What: every data operation of the client, in terms of the physical layout. A leaf
is one step. Two things take more: the first child of a directory, and the removal
of a directory that has, or had, children.

Why here and not in `buckets.py`: there is what must come in a certain order, and
why that is right; here is what a caller asks for, and what it is told.

Must never: trust a read for anything but choosing the next write.
"""

from __future__ import annotations

from typing import Any, Protocol

from kazoo.exceptions import (
    BadArgumentsError,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Sync,
)
from kazoo.protocol.states import ZnodeStat

from parkazoo.buckets import (
    ATTEMPTS_MAX,
    Fresh,
    close_buckets,
    first_child,
    fresh,
    mirror,
    needed_at_once,
    open_early,
    set_acl,
)
from parkazoo.errors import Contention, WeakSequence
from parkazoo.layout import Bucket, Layout, Node, merged
from parkazoo.steps import EPHEMERAL, SEQUENCE, Call, Machine, Multi, MultiFailed


class Watches(Protocol):
    """Where a read leaves its watches. Called before the next step is sent.

    `armed` is told what the read saw: the version, None for an absent node, or
    the names of the children.
    """

    def data(self, node: Node) -> Any: ...
    def children(self, directory: str, bucket: Bucket) -> Any: ...
    def bucket_made(self, directory: str, bucket: Bucket) -> Any: ...
    def home(self, node: Node) -> Any: ...
    def armed(self, seen: Any) -> None: ...


class NoWatches:
    """For reads that leave no watch."""

    def data(self, node: Node) -> None: ...
    def children(self, directory: str, bucket: Bucket) -> None: ...
    def bucket_made(self, directory: str, bucket: Bucket) -> None: ...
    def home(self, node: Node) -> None: ...
    def armed(self, seen: Any) -> None: ...


NO_WATCHES = NoWatches()


def _one(failed: MultiFailed) -> Exception:
    return failed.error


# -- reading ---------------------------------------------------------------------


def _ask(layout: Layout, path: str, call: Call) -> Machine:
    """Send a call about a node. Returns (reply, Stats of its buckets or None).

    If the node had a link when last seen, the reads that complete its Stat go with
    the call, in one round trip. Should there be no link any more, they are ignored.
    """
    more = layout.linked.get(path)
    if more is None:
        return (yield call), None
    reply, *found = yield [call, *more]
    if isinstance(reply, Exception):
        raise reply
    return reply, found


def _completed(
    layout: Layout, path: str, stat: ZnodeStat, found: list[Any] | None
) -> Machine:
    """The Stat of a node at home, completed by its buckets if it has a link."""
    linked = stat.numChildren > 0 or path == "/"
    if linked != (path in layout.linked):
        layout.learn(path, linked)
    if not linked:
        return stat
    if found is None:
        found = yield list(layout.bucket_stats(path))
    for index, reply in enumerate(found):
        if isinstance(reply, NoAuthError):
            found[index] = yield from _hidden_stat(layout.buckets(path)[index])
        elif isinstance(reply, Exception):
            raise reply
    stat = merged(stat, found)
    if path == "/":  # its child is ZooKeeper's own subtree, too
        stat = stat._replace(numChildren=stat.numChildren + 1)
    return stat


def completed_if_shown(
    layout: Layout, path: str, stat: ZnodeStat, found: list[Any] | None = None
) -> Machine:
    """The Stat of a node that was changed, also if its children are hidden from us."""
    try:
        return (yield from _completed(layout, path, stat, found))
    except NoAuthError:
        return merged(stat, [])


def _hidden_stat(bucket: Bucket) -> Machine:
    """A bucket's Stat, for who has no READ, which Exists asks for, but ADMIN."""
    try:
        _, stat = yield Call(bucket.shard, GetACL(bucket.path))
    except NoNodeError:
        return None
    return stat


def exists(layout: Layout, path: str, watches: Watches = NO_WATCHES) -> Machine:
    node = layout.node(path)
    call = Call(node.shard, Exists(node.path, watches.data(node)))
    if watches is NO_WATCHES:
        stat, found = yield from _ask(layout, path, call)
    else:
        # Alone: the watch must be entered before its event can be told.
        stat, found = (yield call), None
        watches.armed(None if stat is None else stat.version)
    if stat is None or not (stat.numChildren or path in layout.linked):
        return stat
    return (yield from _completed(layout, path, stat, found))


def get(layout: Layout, path: str, watches: Watches = NO_WATCHES) -> Machine:
    node = layout.node(path)
    call = Call(node.shard, GetData(node.path, watches.data(node)))
    if watches is NO_WATCHES:
        (value, stat), found = yield from _ask(layout, path, call)
    else:
        (value, stat), found = (yield call), None
        watches.armed(stat.version)
    if stat.numChildren or path in layout.linked:
        stat = yield from _completed(layout, path, stat, found)
    return value, stat


def get_acls(layout: Layout, path: str) -> Machine:
    node = layout.node(path)
    call = Call(node.shard, GetACL(node.path))
    (acls, stat), found = yield from _ask(layout, path, call)
    return acls, (yield from _completed(layout, path, stat, found))


def children(
    layout: Layout, path: str, stat_too: bool, watches: Watches = NO_WATCHES
) -> Machine:
    """Names of the children, with the directory's Stat if that is asked for.

    A bucket that exists is the answer. A directory without one has no children;
    its watch then waits for the bucket to be made and for the node to go.
    """
    buckets = layout.buckets(path)
    home = layout.node(path)
    for _ in range(ATTEMPTS_MAX):
        calls = [
            Call(b.shard, GetChildren2(b.path, watches.children(path, b)))
            for b in buckets
        ]
        if stat_too:
            calls.append(Call(home.shard, Exists(home.path, None)))
        replies = yield calls
        stat = replies.pop() if stat_too else None
        missing = []
        for bucket, reply in zip(buckets, replies, strict=True):
            if isinstance(reply, NoNodeError):
                missing.append(bucket)
            elif isinstance(reply, Exception):
                raise reply
        if isinstance(stat, Exception):
            raise stat
        if missing:
            stat, appeared = yield from _missing(home, path, missing, watches)
            if appeared:
                continue
        elif stat_too and stat is None:
            continue  # the node went after its bucket answered; ask again
        found = [reply for reply in replies if not isinstance(reply, Exception)]
        names = [child for listed, _ in found for child in listed]
        watches.armed(names)
        return (names, merged(stat, [s for _, s in found])) if stat_too else names
    raise Contention(f"{path}: its children could not be listed, it keeps changing")


def _missing(home: Node, path: str, missing: list[Bucket], watches: Watches) -> Machine:
    """Leave watches where buckets are absent. Returns (stat, one appeared)."""
    calls = [Call(home.shard, Exists(home.path, watches.home(home)))]
    for bucket in missing:
        watcher = watches.bucket_made(path, bucket)
        if watcher is not None:
            calls.append(Call(bucket.shard, Exists(bucket.path, watcher)))
    stat, *made = yield calls
    for reply in [stat, *made]:
        if isinstance(reply, Exception):
            raise reply
    if stat is None:
        raise NoNodeError
    return stat, any(reply is not None for reply in made)


# -- writing to a node that exists -----------------------------------------------


def set_data(layout: Layout, path: str, value: bytes | None, version: int) -> Machine:
    node = layout.node(path)
    write = Multi((SetData(node.path, value, version),))
    try:
        (stat,), found = yield from _ask(
            layout, path, Call(node.shard, write, "set.1.value")
        )
    except MultiFailed as failed:
        raise _one(failed)
    if not (stat.numChildren or path in layout.linked):
        return stat
    return (yield from completed_if_shown(layout, path, stat, found))


def set_acls(layout: Layout, path: str, acls: list[Any], version: int) -> Machine:
    """Set a node's ACL, then its buckets': they decide who may create and delete."""
    node = layout.node(path)
    stat = yield from set_acl(node.shard, node.path, acls, version, "acl.1.home")
    if not stat.numChildren and path != "/":
        if not stat.ephemeralOwner and needed_at_once(acls):
            yield from open_early(layout, path, acls, stat.aversion, fresh)
        return stat
    for bucket in layout.buckets(path):
        yield from mirror(bucket, node, acls, stat)
    return (yield from completed_if_shown(layout, path, stat))


# -- creating --------------------------------------------------------------------


def create(
    layout: Layout, path: str, request: Create | Create2, new: Fresh = fresh
) -> Machine:
    """Create a node; the reply is Kazoo's, with the logical path in it."""
    node = layout.node(path)
    if request.flags & SEQUENCE and layout.is_weak(node.bucket.directory):
        raise WeakSequence(
            f"{path}: sequence nodes need siblings on one shard, but a weak rule"
            f" spreads {node.bucket.directory}; use another directory for them"
        )
    operation = request._replace(path=node.path)
    try:
        (result,) = yield Call(node.shard, Multi((operation,)), "create.0.child")
    except MultiFailed as failed:
        if not isinstance(failed.error, NoNodeError):
            raise _one(failed)
        result = yield from first_child(layout, node.bucket, operation, new)
    if isinstance(request, Create2):
        result = (layout.logical(node.bucket, result[0]), result[1])
        made = result[0]
    else:
        result = made = layout.logical(node.bucket, result)
    if not request.flags & EPHEMERAL and needed_at_once(request.acl):
        yield from open_early(layout, made, request.acl, 0, new)
    return result


# -- removing --------------------------------------------------------------------


def delete(
    layout: Layout, path: str, version: int, guard: tuple[Any, ...] = ()
) -> Machine:
    """Delete a node without children. A directory's node takes three steps.

    `guard`: checks, on the node's shard, without which it is left alone.
    """
    if path == "/":
        raise BadArgumentsError("the root cannot be deleted")
    node = layout.node(path)
    for _ in range(ATTEMPTS_MAX):
        try:
            yield Call(
                node.shard,
                Multi((*guard, Delete(node.path, version))),
                "delete.0.node",
            )
            return True
        except MultiFailed as failed:
            if not isinstance(failed.error, NotEmptyError):
                raise _one(failed)
        try:
            links = yield Call(node.shard, GetChildren(node.path, None))
        except NoNodeError:
            continue
        if not links:
            yield Call(node.shard, Sync(node.path))
            continue
        yield from close_buckets(layout, path)
        away = [Delete(f"{node.path}/{link}", -1) for link in links]
        try:
            yield Call(
                node.shard,
                Multi((*guard, *away, Delete(node.path, version))),
                "delete.3.home",
            )
            return True
        except MultiFailed as failed:
            if not isinstance(failed.error, (NotEmptyError, NoNodeError)):
                raise _one(failed)
            yield Call(node.shard, Sync(node.path))
    raise Contention(
        f"{path}: not deleted, because others keep creating children in it; try again"
    )
