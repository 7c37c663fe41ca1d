"""Transactions: one native "multi" where that is possible, else a clear refusal.

What: a transaction whose nodes are all on one shard is one multi on its ensemble,
as atomic and isolated as ZooKeeper makes it. Where a namespace has one ensemble
only, every transaction is. Otherwise it is refused, or, if the client was told
`cross_shard="intent"`, done with intent records (`parkazoo.intents`).

A directory created or removed in a transaction brings its bucket with it where
that is on the same ensemble; elsewhere the bucket is opened before, or closed
before, which changes nothing that can be seen.

Must never: split a transaction silently, or report one result for another
operation: as in Kazoo the reply lists a result per operation, or an exception per
operation if none took place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import (
    Create,
    Delete,
    GetChildren,
    SetData,
)
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import directory
from parkazoo.buckets import (
    ATTEMPTS_MAX,
    close_buckets,
    first_child,
    fresh,
    needed_at_once,
    open_early,
)
from parkazoo.errors import Contention, CrossShardTransaction
from parkazoo.layout import BUCKET, LINK, Layout, Node
from parkazoo.mapping import Table
from parkazoo.steps import EPHEMERAL, Call, Machine, Multi, MultiFailed

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient


@dataclass
class Group:
    """One logical operation and the physical ones it stands for."""

    operation: Any
    node: Node
    before: list[Any] = field(default_factory=list)

    @property
    def main(self) -> Any:
        if isinstance(self.operation, Delete) and self.operation.path == "/":
            return self.operation  # the server refuses it, as in Kazoo, in its turn
        return self.operation._replace(path=self.node.path)


def commit(client: ParKazooClient, operations: list[Any]) -> Machine:
    """The results, or the exceptions, in the order of the operations."""
    layout = client._layout
    table = client._sessions.table
    assert table is not None
    groups = [Group(op, layout.node(op.path)) for op in operations]
    if not groups:
        return []
    shards = sorted({group.node.shard for group in groups})
    owners = {table.owners[shard] for shard in shards}
    if crosses(table, groups):
        raise CrossShardTransaction(_refusal(groups))
    assert len(owners) == 1
    return (yield from native(layout, table, groups, shards))


def crosses(table: Table, groups: list[Group]) -> bool:
    """Is this more than one server can do at once, now or after the next move?"""
    return len(table.ensembles) > 1 and len({g.node.shard for g in groups}) > 1


def _refusal(groups: list[Group]) -> str:
    directories = sorted({group.node.bucket.directory for group in groups})
    return (
        f"this transaction touches {len(directories)} directories on different shards"
        f" ({', '.join(directories[:4])}), which no server can do at once. Keep the"
        " nodes in one directory, give their common prefix a co-location rule when"
        ' the namespace is made, or allow cross_shard="intent"'
    )


def native(
    layout: Layout,
    table: Table,
    groups: list[Group],
    shards: list[int],
    extra: tuple[Any, ...] = (),
) -> Machine:
    """All on one ensemble: a single multi, after opening what has to be open.

    `extra` is done with it, last, and has no part in the results.
    """
    for _ in range(ATTEMPTS_MAX):
        physical: list[Any] = []
        owner: list[int] = []
        for number, group in enumerate(groups):
            for operation in [*group.before, group.main]:
                physical.append(operation)
                owner.append(number)
        request = Multi((*physical, *extra), tuple(shards[1:]))
        try:
            results = yield Call(shards[0], request, "transaction.1.commit")
        except MultiFailed as failed:
            if failed.index >= len(owner):
                raise
            number = owner[failed.index]
            try:
                again = yield from _prepare(
                    layout,
                    table,
                    groups,
                    number,
                    failed,
                    physical[failed.index],
                    shards,
                )
            except KazooException as error:
                return _failure(len(groups), number, error)
            if not again:
                return _failure(len(groups), number, failed.error)
        else:
            logical = _logical(layout, groups, owner, results[: len(owner)])
            # It has been committed: nothing that comes after may say otherwise.
            with suppress(KazooException, Contention):
                yield from _open_early(layout, groups, logical)
            return (yield from _complete(layout, groups, logical))
    raise Contention("this transaction keeps meeting others; try again")


def _open_early(layout: Layout, groups: list[Group], results: list[Any]) -> Machine:
    """As after a plain creation: buckets that others could not make."""
    opened = {
        g.node.bucket.directory
        for g in groups
        if g.before and isinstance(g.operation, Create)
    }
    for group, made in zip(groups, results, strict=True):
        create = group.operation
        if (
            isinstance(create, Create)
            and not create.flags & EPHEMERAL
            and made not in opened
            and needed_at_once(create.acl)
        ):
            yield from open_early(layout, made, create.acl, 0, fresh)


def _complete(layout: Layout, groups: list[Group], results: list[Any]) -> Machine:
    """A directory's children are elsewhere, so a Stat of it takes one more read."""
    completed = []
    for group, result in zip(groups, results, strict=True):
        path = group.operation.path
        if isinstance(group.operation, SetData) and (
            result.numChildren or path in layout.linked
        ):
            result = yield from directory.completed_if_shown(layout, path, result)
        completed.append(result)
    return completed


def _failure(count: int, number: int, error: Exception) -> list[Exception]:
    after = count - number - 1
    before: list[Exception] = [RolledBackError() for _ in range(number)]
    return [*before, error, *(RuntimeInconsistency() for _ in range(after))]


def _logical(
    layout: Layout, groups: list[Group], owner: list[int], results: list[Any]
) -> list[Any]:
    """The result of each group's main operation, which is its last."""
    last = dict(zip(owner, results, strict=True))
    found = []
    for number, group in enumerate(groups):
        result = last[number]
        if isinstance(group.operation, Create):
            result = layout.logical(group.node.bucket, result)
        found.append(result)
    return found


def _prepare(
    layout: Layout,
    table: Table,
    groups: list[Group],
    number: int,
    failed: MultiFailed,
    refused: Any,
    shards: list[int],
) -> Machine:
    """Make the refused operation possible. False: the refusal is the answer."""
    group = groups[number]
    if refused.path != group.node.path:
        if isinstance(failed.error, NotEmptyError) and refused.path.endswith(BUCKET):
            return False  # the bucket has children, so the directory has
        if not isinstance(failed.error, (NodeExistsError, NoNodeError, NotEmptyError)):
            return False  # as without what we added: a missing right, for instance
        # Something we added has changed since we looked: look again.
        group.before.clear()
        yield from _expand(layout, table, groups, number, shards)
        return True
    if isinstance(group.operation, Create) and isinstance(failed.error, NoNodeError):
        if group.before:
            return False
        return (yield from _expand(layout, table, groups, number, shards))
    if isinstance(group.operation, Delete) and isinstance(failed.error, NotEmptyError):
        return (yield from _expand(layout, table, groups, number, shards))
    return False


def _expand(
    layout: Layout, table: Table, groups: list[Group], number: int, shards: list[int]
) -> Machine:
    group = groups[number]
    if isinstance(group.operation, Create):
        return (yield from _open(layout, table, groups, number, shards))
    return (yield from _close(layout, table, group, shards))


def _together(table: Table, shards: list[int], shard: int) -> bool:
    """May this transaction write to that shard, too?"""
    return shard in shards or table.owners[shard] == table.owners[shards[0]]


def _open(
    layout: Layout, table: Table, groups: list[Group], number: int, shards: list[int]
) -> Machine:
    """A bucket for the child to be created in."""
    group = groups[number]
    bucket = group.node.bucket
    above = bucket.directory
    created_here = any(
        isinstance(other.operation, Create) and other.node.logical == above
        for other in groups[:number]
    )
    if not created_here:
        yield from first_child(layout, bucket, None)
        return True
    if not _together(table, shards, bucket.shard):
        raise CrossShardTransaction(
            f"{above} is created in this transaction, and its children would be on"
            " another ensemble; create it before"
        )
    acls = next(
        other.operation.acl
        for other in groups[:number]
        if isinstance(other.operation, Create) and other.node.logical == above
    )
    link = layout.node(above).path + LINK + fresh()
    group.before = [
        Create(link, b"", OPEN_ACL_UNSAFE, 0),
        Create(bucket.anchor, b"", OPEN_ACL_UNSAFE, 0),
        Create(bucket.path, b"", acls, 0),
    ]
    try:  # a claim may have left its anchor
        yield Call(
            bucket.shard, Multi((Delete(bucket.anchor, -1),)), "create.4.unclaim"
        )
    except MultiFailed:
        pass
    return True


def _close(layout: Layout, table: Table, group: Group, shards: list[int]) -> Machine:
    """Take the bucket of a directory that is deleted away with it."""
    node = group.node
    links = yield Call(node.shard, GetChildren(node.path, None))
    if not links:
        return False
    buckets = layout.buckets(node.logical)
    inside: list[Any] = []
    if all(_together(table, shards, bucket.shard) for bucket in buckets):
        for bucket in buckets:
            try:
                found = yield Call(bucket.shard, GetChildren(bucket.anchor, None))
            except NoNodeError:
                inside.append(Create(bucket.anchor, b"", OPEN_ACL_UNSAFE, 0))
            else:
                inside += [Delete(f"{bucket.anchor}/{n}", -1) for n in sorted(found)]
            inside.append(Delete(bucket.anchor, -1))
            if bucket.shard not in shards:
                shards.append(bucket.shard)
    else:
        yield from close_buckets(layout, node.logical)
    group.before = [*inside, *(Delete(f"{node.path}/{link}", -1) for link in links)]
    return True
