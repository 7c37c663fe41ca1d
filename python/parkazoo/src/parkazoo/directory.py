"""Operations on nodes and directories as step machines: create, delete, read.

What: every data operation of the client, in terms of the physical layout. A leaf
is one step. Two things take more: the first child of a directory, and the removal
of a directory that has, or had, children.

Why this order of steps. A directory's node and its children live on different
ensembles, so no server can refuse "create a child" because "the parent was just
deleted". Three facts are kept instead, each enforced by one server alone:

    first child (creator)              remove directory (remover)
    1 claim    claim under anchor      1 links   read the links at home
    2 link     link under home node    2 close   delete claims, bucket and anchor
    3 commit   claim away, bucket in,  3 home    delete just those links and the
               child in; all or none             node; all or none

A remover's step 2 ends every claim that is older, so those creators start again;
a claim that is younger is followed by a link the remover did not read, so its
step 3 finds the node not empty. Either way a bucket never outlives its directory:
where the bucket exists the directory does, and a leaf may be created with one
plain request. Link and claim names are never used twice, so a delayed step of an
older life of the directory finds nothing to act on. `docs/design.md` has the
proof; `tests/test_model.py` runs these very generators in every order.

Must never: trust a read for anything but choosing the next write.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.exceptions import (
    BadArgumentsError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
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
    SetACL,
    SetData,
    Sync,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, Permissions

from parkazoo.errors import Contention, WeakSequence
from parkazoo.layout import CLAIM, LINK, Bucket, Layout, Node, merged
from parkazoo.steps import EPHEMERAL, SEQUENCE, Call, Machine, Multi, MultiFailed

# Losing this often in a row means somebody creates and deletes the same directory
# in a tight loop; saying so is better than never answering.
ATTEMPTS_MAX = 100

Fresh = Callable[[], str]


def fresh() -> str:
    """A name nobody has used and nobody will use again."""
    return uuid.uuid4().hex


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
    for reply in found:
        if isinstance(reply, Exception):
            raise reply
    return merged(stat, found)


def exists(layout: Layout, path: str, watches: Watches = NO_WATCHES) -> Machine:
    node = layout.node(path)
    call = Call(node.shard, Exists(node.path, watches.data(node)))
    if watches is NO_WATCHES:
        stat, found = yield from _ask(layout, path, call)
    else:
        # Alone: the watch must be entered before anything else can arrive.
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
    return (yield from _completed(layout, path, stat, found))


def set_acls(layout: Layout, path: str, acls: list[Any], version: int) -> Machine:
    """Set a node's ACL, then its buckets': they decide who may create and delete."""
    node = layout.node(path)
    stat = yield from _set_acl(node.shard, node.path, acls, version, "acl.1.home")
    if not stat.numChildren and path != "/":
        if not stat.ephemeralOwner and _bucket_needed_at_once(acls):
            yield from _open(layout, path, acls, stat.aversion, fresh)
        return stat
    for bucket in layout.buckets(path):
        yield from _mirror(bucket, node, acls, stat)
    return (yield from _completed(layout, path, stat, None))


def _set_acl(shard: int, path: str, acls: Any, version: int, label: str) -> Machine:
    """Set an ACL, which a server does not do in a multi, so unfenced.

    If the shard was being moved then, it may have been set where nobody looks any
    more. So wait until the fence lets us pass, look, and set it again if need be.
    A move keeps ACL versions, so it is known whether this is the ACL we set.
    """
    for _ in range(ATTEMPTS_MAX):
        stat = yield Call(shard, SetACL(path, acls, version), label)
        yield Call(shard, Multi(()))
        try:
            _, now = yield Call(shard, GetACL(path))
        except NoAuthError:
            return stat  # set so that we may not look; it was there a moment ago
        if now.aversion >= stat.aversion:
            return stat
    raise Contention(f"{path}: its ACL could not be set, it keeps moving")


def _mirror(bucket: Bucket, home: Node, acls: Any, seen: ZnodeStat) -> Machine:
    """Give a bucket its directory's ACL, until nobody has changed it meanwhile.

    A directory made anew counts from the same version on; its czxid is another one.
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            yield from _set_acl(bucket.shard, bucket.path, acls, -1, "acl.2.bucket")
            acls, stat = yield Call(home.shard, GetACL(home.path))
        except (NoNodeError, NoAuthError):
            return  # no bucket, no node, or no longer ours to set
        if (stat.aversion, stat.czxid) == (seen.aversion, seen.czxid) or _hidden(acls):
            return
        seen = stat
    raise Contention(f"{home.logical}: its ACL keeps changing")


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
    if not request.flags & EPHEMERAL and _bucket_needed_at_once(request.acl):
        yield from _open(layout, made, request.acl, 0, new)
    return result


def _open(layout: Layout, path: str, acls: Any, aversion: int, new: Fresh) -> Machine:
    """Make a node's buckets before anybody needs them, as far as we may."""
    for bucket in layout.buckets(path):
        try:
            yield from first_child(layout, bucket, None, new, (acls, aversion))
        except (NoAuthError, NoChildrenForEphemeralsError, NoNodeError):
            return  # not ours to make, or gone meanwhile


def _bucket_needed_at_once(acls: Any) -> bool:
    """May somebody create children who cannot read the ACL the bucket needs?

    Servers show it to who has READ or ADMIN, and hide digests from whoever lacks
    ADMIN, so only now is the ACL known.
    """
    hidden = any(acl.id.scheme == "digest" for acl in acls)
    enough = Permissions.ADMIN if hidden else Permissions.ADMIN | Permissions.READ
    return any(
        acl.perms & Permissions.CREATE and not acl.perms & enough for acl in acls
    )


def first_child(
    layout: Layout,
    bucket: Bucket,
    operation: Any | None,
    new: Fresh = fresh,
    known: tuple[Any, int] | None = None,
) -> Machine:
    """Make a directory's bucket, together with its first child if one is given.

    `known`: the directory's ACL and its version, if the caller has just set it.
    """
    home = layout.node(bucket.directory)
    for _ in range(ATTEMPTS_MAX):
        if known is None:
            links = yield from _read_directory(home)
        else:
            links = []
        claim = bucket.anchor + CLAIM + new()
        yield from _claim(bucket, claim)
        try:
            yield from _link(home, links, new())
            acls, aversion = yield from _acl_behind_link(home, known)
            done, result = yield from _commit(bucket, claim, acls, operation)
        except (MultiFailed, NoAuthError, NoNodeError) as refused:
            yield from _unclaim(bucket, claim)
            raise refused.error if isinstance(refused, MultiFailed) else refused
        if done:
            yield from _follow_acl(bucket, home, aversion)
            return result
    raise Contention(
        f"{bucket.directory}: no child could be created, because others keep"
        " removing the directory; try again"
    )


def _read_directory(home: Node) -> Machine:
    """The links of a directory's node, as they were a moment ago, if we may see its
    ACL: whom it is hidden from had better hear so before anything is made."""
    for calls in (
        [Call(home.shard, GetACL(home.path))],
        # A follower may not have heard of the node yet: ask again behind a sync.
        [Call(home.shard, Sync(home.path)), Call(home.shard, GetACL(home.path))],
    ):
        calls.append(Call(home.shard, GetChildren(home.path, None)))
        *_, acl, links = yield calls
        if isinstance(links, NoAuthError):
            links = []  # may create but not list: then one more link it is
        if isinstance(acl, NoNodeError) or isinstance(links, NoNodeError):
            continue
        for reply in (acl, links):
            if isinstance(reply, Exception):
                raise reply
        _refuse_hidden(home, acl[0])
        return links
    raise NoNodeError


def _acl_behind_link(home: Node, known: tuple[Any, int] | None) -> Machine:
    """The ACL, and its version, of the life of the directory that our link is in.

    What was read before the link may be that of an earlier life. From now on a
    remover ends our claim first, so what is committed with it is of this life.
    """
    try:
        acls, stat = yield Call(home.shard, GetACL(home.path))
        _refuse_hidden(home, acls)
    except NoAuthError:
        if known is None:
            raise
        return known
    return acls, stat.aversion


def _hidden(acls: Any) -> bool:
    return any(a.id.scheme == "digest" and a.id.id.endswith(":x") for a in acls)


def _refuse_hidden(home: Node, acls: Any) -> None:
    if _hidden(acls):
        raise NoAuthError(f"{home.logical}: its ACL is hidden from this client")


def _claim(bucket: Bucket, claim: str) -> Machine:
    mark = Create(claim, b"", OPEN_ACL_UNSAFE, EPHEMERAL)
    anchor = Create(bucket.anchor, b"", OPEN_ACL_UNSAFE, 0)
    for _ in range(ATTEMPTS_MAX):
        try:
            yield Call(bucket.shard, Multi((anchor, mark)), "create.1.claim")
            return
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExistsError):
                raise
        try:
            yield Call(bucket.shard, Multi((mark,)), "create.1.claim")
            return
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNodeError):
                raise
    raise Contention(f"{bucket.directory}: its anchor comes and goes; try again")


def _link(home: Node, links: list[str], link: str) -> Machine:
    """Add a link nobody has seen, in place of those there are."""
    add = Create(home.path + LINK + link, b"", OPEN_ACL_UNSAFE, 0)
    for _ in range(ATTEMPTS_MAX):
        old = [
            Delete(f"{home.path}/{name}", -1)
            for name in links
            if name.startswith(LINK[1:])
        ]
        try:
            yield Call(home.shard, Multi((add, *old)), "create.2.link")
            return
        except MultiFailed as failed:
            if failed.index == 0:
                raise
            if isinstance(failed.error, NoAuthError):
                links = []  # may create but not delete: then one more link it is
                continue
        links = yield Call(home.shard, GetChildren(home.path, None))
    raise Contention(f"{home.logical}: its links keep changing; try again")


def _commit(bucket: Bucket, claim: str, acls: Any, operation: Any | None) -> Machine:
    """Turn the claim into the bucket. Returns (done, result of the operation)."""
    last = () if operation is None else (operation,)
    make = Create(bucket.path, b"", acls, 0)
    try:
        results = yield Call(
            bucket.shard, Multi((Delete(claim, -1), make, *last)), "create.3.commit"
        )
        return True, results[-1]
    except MultiFailed as failed:
        if failed.index == 0 and isinstance(failed.error, NoNodeError):
            return False, None  # a remover came by; it is not known where it is
        if failed.index != 1 or not isinstance(failed.error, NodeExistsError):
            raise
    try:
        results = yield Call(
            bucket.shard, Multi((Delete(claim, -1), *last)), "create.3.commit"
        )
        return True, results[-1]
    except MultiFailed as failed:
        if isinstance(failed.error, NoNodeError):
            return False, None
        raise


def _unclaim(bucket: Bucket, claim: str) -> Machine:
    """Tidy up after a refusal. Whatever fails here is left to the session's end."""
    for path in (claim, bucket.anchor):
        try:
            yield Call(bucket.shard, Multi((Delete(path, -1),)), "create.4.unclaim")
        except MultiFailed:
            return


def _follow_acl(bucket: Bucket, home: Node, aversion: int) -> Machine:
    """The directory's ACL may have changed since it was read for the bucket."""
    try:
        acls, stat = yield Call(home.shard, GetACL(home.path))
    except (NoNodeError, NoAuthError):
        return
    if stat.aversion != aversion:
        yield from _mirror(bucket, home, acls, stat)


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


def close_buckets(layout: Layout, path: str) -> Machine:
    """Delete the empty buckets of a directory and end every claim on them."""
    buckets = layout.buckets(path)
    if len(buckets) > 1:
        # Not needed for safety, but closing some of many only to find one full
        # would cost their next creators a detour.
        replies = yield [Call(b.shard, Exists(b.path, None)) for b in buckets]
        if any(isinstance(r, ZnodeStat) and r.numChildren for r in replies):
            raise NotEmptyError
    for bucket in buckets:
        yield from _close(bucket)


def _close(bucket: Bucket) -> Machine:
    for _ in range(ATTEMPTS_MAX):
        try:
            found = yield Call(bucket.shard, GetChildren(bucket.anchor, None))
        except NoNodeError:
            # "There is no anchor" must be the leader's word, so it is a write.
            anchor = Create(bucket.anchor, b"", OPEN_ACL_UNSAFE, 0)
            operations: list[Any] = [anchor]
        else:
            operations = [Delete(f"{bucket.anchor}/{name}", -1) for name in found]
        operations.append(Delete(bucket.anchor, -1))
        try:
            yield Call(bucket.shard, Multi(tuple(operations)), "delete.2.close")
            return
        except MultiFailed as failed:
            refused = operations[failed.index]
            if isinstance(failed.error, NotEmptyError) and refused.path == bucket.path:
                raise _one(failed)
            if not isinstance(
                failed.error, (NotEmptyError, NoNodeError, NodeExistsError)
            ):
                raise _one(failed)
        yield Call(bucket.shard, Sync(bucket.anchor))
    raise Contention(f"{bucket.directory}: others keep claiming it; try again")
