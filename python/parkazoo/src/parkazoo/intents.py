"""Transactions over several shards, for those who ask for them.

What: the operations are grouped by shard, and the shards put in an order in which
what depends on each other comes in its own. An intent with all of them, and with
what their nodes were like before, is written first. Then each shard does its group
in one native transaction that also leaves a *done* mark, and checks that its nodes
are still what they were. If all did, the intent is deleted and that is the end; if
one refused, those that are done are undone and the refusal is the answer. If the
client dies, another one that finds the intent does the same: all marks there means
finished, otherwise undo.

    /parkazoo/intents/t-<id>          the operations and what was before
    /parkazoo/intents/t-<id>/owner    an ephemeral of whoever works on it
    /parkazoo/intents/t-<id>/before   what was before, if not everybody may see it
    /parkazoo/s0123/!<id>             shard 123 has done its part, or never will

Whoever undoes what another has begun first leaves a mark that says "never" on each
shard that has not done its part. A client that was only slow, or lost the one
session that its ownership hung on, then finds its place taken and stops.

Who takes an intent over gives it a new version, and only who holds the newest may
decide: to take it away, or to write into it that it is undone. So of a slow client
and one or two who finish its work, no two can decide differently.

What not everybody may read is in a node of its own, for the identities of its
client's sessions. Others can end such a transaction where all of it is done; what is
to be undone they leave.

What is promised: after at most one recovery all of the operations took place, or
none. What is not: isolation. Others see some shards done before the rest, and what
is undone is seen before it is. If somebody writes to a node between its doing and
its undoing, their write stays and the node is not undone. An undone deletion makes
a new node with the old data and ACL, at version 0. Who may not undo a part leaves it
done, and the intent to whoever may.

Must never: be used unasked, contain sequence nodes (what was made could not be
found again), ephemerals to delete (they could not be made again), or the same node
twice.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

from parkazoo import buckets, directory, failpoints, rights
from parkazoo.errors import NotUndone
from parkazoo.layout import DONE, INTENTS, Layout, fence
from parkazoo.mapping import parent
from parkazoo.record import (
    UNKNOWN,
    decide_undone,
    forget,
    hidden_part,
    is_hidden,
    release,
    split,
    take,
    whole,
    write,
)
from parkazoo.remove import ask
from parkazoo.steps import SEQUENCE, Call, Multi, MultiFailed, ShardsApart
from parkazoo.transaction import Group, crosses, native

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# Others changed a node between our look at it and our turn: look again.
ATTEMPTS_MAX = 5
OPERATIONS_MAX = 500
# Servers take requests of 1,048,575 bytes unless they are told otherwise
# (jute.maxbuffer), and the record is written in one with its owner.
BYTES_MAX = 1_000_000
# What the mark of a shard says that is not to do its part any more.
NEVER = b"never"
# The refusals to undo something that mean that somebody has changed it since.
CHANGED = (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)


class Refused(Exception):
    """Operation `number` cannot be done; `error` says why."""

    def __init__(self, number: int, error: Exception, again: bool = False) -> None:
        super().__init__(number, error)
        self.number, self.error, self.again = number, error, again


def needed(client: ParKazooClient, operations: list[Any]) -> bool:
    table = client._sessions.table
    assert table is not None
    return crosses(
        table, [Group(op, client._layout.node(op.path)) for op in operations]
    )


def commit(client: ParKazooClient, operations: list[Any], async_object: Any) -> None:
    """Runs on a routine of its own; answers like Kazoo's transaction."""
    try:
        _refuse_impossible(operations)
        for attempt in range(ATTEMPTS_MAX):
            try:
                results = _attempt(client, operations)
                break
            except Refused as refused:
                if refused.again and attempt < ATTEMPTS_MAX - 1:
                    continue
                after = len(operations) - refused.number - 1
                results = [RolledBackError() for _ in range(refused.number)]
                results.append(refused.error)
                results += [RuntimeInconsistency() for _ in range(after)]
                break
        async_object.set(Transaction.unchroot(client, results))
    except Exception as error:
        async_object.set_exception(error)


def _refuse_impossible(operations: list[Any]) -> None:
    paths = [operation.path for operation in operations]
    if len(set(paths)) < len(paths):
        raise BadArgumentsError("a cross-shard transaction may name a node only once")
    if len(paths) > OPERATIONS_MAX:
        raise BadArgumentsError(f"more than {OPERATIONS_MAX} operations across shards")
    if any(isinstance(op, Create) and op.flags & SEQUENCE for op in operations):
        raise BadArgumentsError("no sequence nodes in a cross-shard transaction")


def _before(client: ParKazooClient, number: int, operation: Any) -> dict[str, Any]:
    """What a node is like now, as far as undoing needs it."""
    path = operation.path
    record: dict[str, Any] = {"path": path, "kind": type(operation).__name__}
    try:
        data, stat = ask(client, lambda layout: directory.get(layout, path))
    except NoNodeError as error:
        if isinstance(operation, Create):
            return record
        raise Refused(number, error) from None
    except NoAuthError as error:
        if isinstance(operation, Create):
            raise Refused(number, NodeExistsError()) from None
        raise Refused(number, error) from None
    if isinstance(operation, Create):
        raise Refused(number, NodeExistsError())
    if operation.version not in (-1, stat.version):
        raise Refused(number, BadVersionError())
    record["version"] = stat.version
    if isinstance(operation, CheckVersion):
        return record
    record["data"] = base64.b64encode(data or b"").decode()
    acls, _ = ask(client, lambda layout: directory.get_acls(layout, path))
    record["hidden"] = not rights.lets_everybody(Permissions.READ, acls)
    if isinstance(operation, Delete):
        if stat.ephemeralOwner:
            raise BadArgumentsError(
                f"{path} is an ephemeral, whose deletion could not be undone"
            )
        if rights.is_hidden(acls):
            what = f"{path}: its ACL is hidden from this client, which could not undo"
            raise Refused(number, NoAuthError(f"{what} its deletion"))
        record["acls"] = [[a.perms, a.id.scheme, a.id.id] for a in acls]
        record["hidden"] |= any(acl.id.scheme == "digest" for acl in acls)
    return record


def _parts(layout: Layout, operations: list[Any]) -> list[Any]:
    """Each shard with the numbers of its operations, in an order that works: a node
    and its child that are both created, or both deleted, keep theirs."""
    by_shard: dict[int, list[int]] = {}
    shards = [layout.node(operation.path).shard for operation in operations]
    for number, shard in enumerate(shards):
        by_shard.setdefault(shard, []).append(number)
    first: dict[int, set[int]] = {shard: set() for shard in by_shard}
    numbers = {operation.path: number for number, operation in enumerate(operations)}
    for number, operation in enumerate(operations):
        above = numbers.get(parent(operation.path))
        if above is None or type(operations[above]) is not type(operation):
            continue
        earlier, later = (shards[each] for each in sorted((above, number)))
        if isinstance(operation, (Create, Delete)) and earlier != later:
            first[later].add(earlier)
    parts: list[Any] = []
    while by_shard:
        ready = next((s for s in by_shard if not first[s] & by_shard.keys()), None)
        if ready is None:
            raise BadArgumentsError(
                "this transaction cannot be done shard by shard: what it makes or"
                " deletes on one has to come both before and after what it does on"
                " another, so that no node is without its directory; do it in two"
                " transactions"
            )
        parts.append([ready, by_shard.pop(ready)])
    return parts


def _attempt(client: ParKazooClient, operations: list[Any]) -> list[Any]:
    parts = _parts(client._layout, operations)
    records = [_before(client, n, op) for n, op in enumerate(operations)]
    identity = buckets.fresh()
    intent = f"{INTENTS}/t-{identity}"
    hidden = is_hidden(records)
    before = [split(record) for record in records] if hidden else []
    document = json.dumps({"parts": parts, "records": records}).encode()
    apart = json.dumps(before).encode() if hidden else b""
    if len(document) + len(apart) > BYTES_MAX:
        raise BadArgumentsError(
            "the record of this transaction, with what its nodes are like now, has"
            f" {len(document) + len(apart)} bytes, more than {BYTES_MAX}, the most"
            " that servers are sure to take; set or delete fewer bytes at once"
        )
    seat = write(client, intent, document, apart)
    failpoints.reached("intent.1.prepare", failpoints.AFTER)
    results: list[Any] = [None] * len(operations)
    try:
        for shard, numbers in parts:
            found = _do(client, shard, numbers, operations, records, identity)
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
            failpoints.reached("intent.3.apply", failpoints.AFTER)
        if not forget(seat, intent, 0, hidden):
            raise SessionExpiredError(
                "this client was away for so long that another one has taken its"
                " transaction over, and decides whether it took place"
            )
    except Refused:
        try:
            _undo(client, identity, parts, whole(records, before))
        except Exception:
            release(client, seat, intent)
            raise
        try:
            forget(seat, intent, 0, hidden)
        except UNKNOWN:
            release(client, seat, intent)  # who comes by finds nothing to undo
        raise
    except Exception:
        release(
            client, seat, intent
        )  # not known what is done; whoever comes by decides
        raise
    failpoints.reached("intent.4.finish", failpoints.AFTER)
    _unmark(client, identity, parts)
    return results


def _do(
    client: ParKazooClient,
    shard: int,
    numbers: list[int],
    operations: list[Any],
    records: list[Any],
    identity: str,
) -> list[Any]:
    """One shard's part, with its mark: all or none."""
    todo = []
    for number in numbers:
        operation = operations[number]
        if not isinstance(operation, Create):
            operation = operation._replace(version=records[number]["version"])
        todo.append(operation)
    mark = Create(f"{fence(shard)}/{DONE}{identity}", b"", OPEN_ACL_UNSAFE, 0)
    failpoints.reached("intent.3.apply", failpoints.BEFORE)
    try:
        found = _at_once(client, shard, todo, mark)
    except NodeExistsError:
        raise SessionExpiredError(
            "this client was away for so long that another one has undone its"
            " transaction"
        ) from None
    for number, result in zip(numbers, found, strict=True):
        if isinstance(result, Exception) and not isinstance(
            result, (RolledBackError, RuntimeInconsistency)
        ):
            anyway = getattr(operations[number], "version", 0) == -1
            again = isinstance(result, BadVersionError) and anyway
            raise Refused(number, result, again)
    return found


def _at_once(
    client: ParKazooClient, shard: int, operations: list[Any], mark: Any
) -> list[Any]:
    """Operations on one shard, and its mark, in one native transaction."""

    def machine(layout: Any) -> Any:
        table = client._sessions.table
        assert table is not None
        groups = [Group(op, layout.node(op.path)) for op in operations]
        return (yield from native(layout, table, groups, [shard], (mark,)))

    while True:
        try:
            return list(ask(client, machine))
        except ShardsApart:
            pass  # a bucket that it was to take away, too, is elsewhere by now


# -- undoing -------------------------------------------------------------------------


def _mark_of(client: ParKazooClient, shard: int, identity: str) -> bytes | None:
    """What a shard's mark says, as its leader knows it; None if there is none."""
    path = f"{fence(shard)}/{DONE}{identity}"

    def look(layout: Any) -> Any:
        yield Call(shard, Sync(path))
        return (yield Call(shard, GetData(path, None)))

    try:
        return bytes(ask(client, look)[0])
    except NoNodeError:
        return None


def _prevent(client: ParKazooClient, shard: int, identity: str) -> bool:
    """Keep a shard from doing its part late. False: it has just done it."""
    mark = Create(f"{fence(shard)}/{DONE}{identity}", NEVER, OPEN_ACL_UNSAFE, 0)

    def put(layout: Any) -> Any:
        yield Call(shard, Multi((mark,)))

    try:
        ask(client, put)
        return True
    except NodeExistsError:
        return _mark_of(client, shard, identity) == NEVER


def _undo(
    client: ParKazooClient, identity: str, parts: list[Any], records: list[Any]
) -> None:
    """Take back what has been done, last first; each shard at once.

    :raises NotUndone: we may not undo some of it; the rest is.
    """
    refused: NotUndone | None = None
    for shard, numbers in reversed(parts):
        if _mark_of(client, shard, identity) != b"":
            continue
        undone = [_inverse(client, records[number]) for number in reversed(numbers)]
        todo = [operation for operation in undone if operation is not None]
        try:
            while (changed := _try_undo(client, shard, identity, todo)) is not None:
                client.logger.warning("not undone, somebody has changed it since")
                del todo[changed]
        except NotUndone as error:
            refused = refused or error
        failpoints.reached("intent.5.undo", failpoints.AFTER)
    if refused is not None:
        raise refused


def _try_undo(
    client: ParKazooClient, shard: int, identity: str, todo: list[Any]
) -> int | None:
    """None: done. Otherwise the operation that somebody else's change prevents.

    :raises NotUndone: it is refused for another reason, such as our rights.
    """
    mark = Delete(f"{fence(shard)}/{DONE}{identity}", -1)

    def unmark(layout: Any) -> Any:
        try:
            return (yield Call(shard, Multi((mark,))))
        except MultiFailed:
            return []

    try:
        found = _at_once(client, shard, todo, mark) if todo else ask(client, unmark)
    except NoNodeError:
        return None  # somebody else undid this part
    for index, result in enumerate(found):
        if isinstance(result, CHANGED):
            return index
        if isinstance(result, Exception) and not isinstance(
            result, (RolledBackError, RuntimeInconsistency)
        ):
            raise NotUndone(
                "a transaction over shards was done in part, and this client cannot"
                f" undo that at {todo[index].path} ({type(result).__name__}); it stays"
                " on record, and a client that may undo it does so"
            ) from result
    return None


def _inverse(client: ParKazooClient, record: dict[str, Any]) -> Any:
    path, kind = record["path"], record["kind"]
    if kind == "Create":
        return Delete(path, 0)
    if kind == "SetData":
        return SetData(path, base64.b64decode(record["data"]), record["version"] + 1)
    if kind == "Delete":
        acls = [ACL(perms, Id(scheme, who)) for perms, scheme, who in record["acls"]]
        return Create(path, base64.b64decode(record["data"]), acls, 0)
    assert kind == CheckVersion.__name__
    return None


def _unmark(client: ParKazooClient, identity: str, parts: list[Any]) -> None:
    for shard, _ in parts:
        mark = Delete(f"{fence(shard)}/{DONE}{identity}", -1)

        def away(layout: Any, shard: int = shard, mark: Any = mark) -> Any:
            yield Call(shard, Multi((mark,)))

        try:
            ask(client, away)
        except KazooException:
            pass  # a mark without an intent means nothing


def roll(client: ParKazooClient, ensemble: Any, name: str) -> list[str]:
    """Finish a transaction whose client is gone: forward if all is done, else back."""
    intent, identity = f"{INTENTS}/{name}", name[2:]
    taken = take(client, ensemble, intent)
    if taken is None:
        return []
    document, version = taken
    parts, records = document["parts"], document["records"]
    hidden = is_hidden(records)
    try:
        if "undone" not in document and all(
            _mark_of(client, shard, identity) == b"" for shard, _ in parts
        ):
            if not forget(ensemble, intent, version, hidden):
                return []
            _unmark(client, identity, parts)
        else:
            before = hidden_part(ensemble, intent) if hidden else []
            decided = decide_undone(ensemble, intent, document, version)
            if decided is None:
                return []
            for shard, _ in parts:
                _prevent(client, shard, identity)
            _undo(client, identity, parts, whole(records, before))
            forget(ensemble, intent, decided, hidden)
    except BaseException:
        release(client, ensemble, intent)
        raise
    return [record["path"] for record in records]
