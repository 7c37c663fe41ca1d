"""Buckets, where the children of a directory are: made, guarded and closed.

What: the part of creating and removing directories that has several steps. The
first child makes the bucket; the bucket has its directory's ACL; a removal closes it.

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
from typing import Any

from kazoo.exceptions import (
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import (
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    SetACL,
    Sync,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, Permissions

from parkazoo.errors import Contention
from parkazoo.layout import CLAIM, LINK, Bucket, Layout, Node
from parkazoo.rights import is_hidden
from parkazoo.steps import EPHEMERAL, Call, Machine, Multi, MultiFailed

# Losing this often in a row means somebody creates and deletes the same directory
# in a tight loop; saying so is better than never answering.
ATTEMPTS_MAX = 100

Fresh = Callable[[], str]


def fresh() -> str:
    """A name nobody has used and nobody will use again."""
    return uuid.uuid4().hex


# -- made, with the first child ----------------------------------------------------


def open_early(
    layout: Layout, path: str, acls: Any, aversion: int, new: Fresh
) -> Machine:
    """Make a node's buckets before anybody needs them, as far as we may."""
    for bucket in layout.buckets(path):
        try:
            yield from first_child(layout, bucket, None, new, (acls, aversion))
        except (NoAuthError, NoChildrenForEphemeralsError, NoNodeError):
            return  # not ours to make, or gone meanwhile


def needed_at_once(acls: Any) -> bool:
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


def _refuse_hidden(home: Node, acls: Any) -> None:
    if is_hidden(acls):
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
        yield from mirror(bucket, home, acls, stat)


# -- guarded by the directory's ACL -------------------------------------------------


def set_acl(shard: int, path: str, acls: Any, version: int, label: str) -> Machine:
    """Set an ACL, which a server does not do in a multi, so unfenced.

    If the shard was being moved then, it may have been set where nobody looks any
    more. So wait until the fence lets us pass, look, and set it again if need be.
    A move keeps ACL versions, so it is known whether this is the ACL we set. But one
    may make version 1 of 0 (see `copying`), so a version 1 in another copy that has
    the ACL from before is not ours.
    """
    before, _ = yield Call(shard, GetACL(path))
    for _ in range(ATTEMPTS_MAX):
        stat = yield Call(shard, SetACL(path, acls, version), label)
        yield Call(shard, Multi(()))
        try:
            found, now = yield Call(shard, GetACL(path))
        except (NoAuthError, NoNodeError):
            return stat  # set so that we may not look, or somebody deleted it since
        copied = (now.czxid, now.ctime) != (stat.czxid, stat.ctime)
        lost = copied and now.aversion == stat.aversion == 1 and found == before
        if now.aversion >= stat.aversion and not lost:
            return stat
        if lost and version >= 0:
            version = now.aversion
    raise Contention(f"{path}: its ACL could not be set, it keeps moving")


def mirror(bucket: Bucket, home: Node, acls: Any, seen: ZnodeStat) -> Machine:
    """Give a bucket its directory's ACL, until nobody has changed it meanwhile.

    A directory made anew counts from the same version on; its czxid is another one.
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            yield from set_acl(bucket.shard, bucket.path, acls, -1, "acl.2.bucket")
            acls, stat = yield Call(home.shard, GetACL(home.path))
        except (NoNodeError, NoAuthError):
            return  # no bucket, no node, or no longer ours to set
        if (stat.aversion, stat.czxid) == (seen.aversion, seen.czxid) or is_hidden(
            acls
        ):
            return
        seen = stat
    raise Contention(f"{home.logical}: its ACL keeps changing")


# -- closed ------------------------------------------------------------------------


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
                raise failed.error
            if not isinstance(
                failed.error, (NotEmptyError, NoNodeError, NodeExistsError)
            ):
                raise failed.error
        yield Call(bucket.shard, Sync(bucket.anchor))
    raise Contention(f"{bucket.directory}: others keep claiming it; try again")
