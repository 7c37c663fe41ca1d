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
    /parkazoo/s0123/!<id>             shard 123 has done its part, or never will

Whoever undoes what another has begun first leaves a mark that says "never" on each
shard that has not done its part. A client that was only slow, or lost the one
session that its ownership hung on, then finds its place taken and stops.

Who takes an intent over gives it a new version, and only who holds the newest may
decide: to take it away, or to write into it that it is undone. So of a slow client
and one or two who finish its work, no two can decide differently.

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
    ConnectionLoss,
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
from kazoo.retry import RetryFailedError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from parkazoo import buckets, directory, failpoints
from parkazoo.errors import Contention, NotUndone
from parkazoo.layout import CONFIG, DONE, INTENTS, Layout, fence
from parkazoo.mapping import EnsembleRemoved, Table, parent
from parkazoo.remove import ask
from parkazoo.rights import is_hidden
from parkazoo.steps import SEQUENCE, Call, Multi, MultiFailed
from parkazoo.transaction import Group, crosses, native
from parkazoo.wire import ShardMoved

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# Others changed a node between our look at it and our turn: look again.
ATTEMPTS_MAX = 5
# The table changes a few times a second while shards move, and rarely otherwise.
RECORD_ATTEMPTS_MAX, RECORD_PAUSE = 100, 0.05
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
    if not isinstance(operation, CheckVersion):
        record["data"] = base64.b64encode(data or b"").decode()
    if isinstance(operation, Delete):
        if stat.ephemeralOwner:
            raise BadArgumentsError(
                f"{path} is an ephemeral, whose deletion could not be undone"
            )
        acls, _ = ask(client, lambda layout: directory.get_acls(layout, path))
        if is_hidden(acls):
            what = f"{path}: its ACL is hidden from this client, which could not undo"
            raise Refused(number, NoAuthError(f"{what} its deletion"))
        record["acls"] = [[a.perms, a.id.scheme, a.id.id] for a in acls]
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
    document = json.dumps({"parts": parts, "records": records}).encode()
    if len(document) > BYTES_MAX:
        raise BadArgumentsError(
            f"the record of this transaction, with what its nodes are like now, has"
            f" {len(document)} bytes, more than {BYTES_MAX}, the most that servers"
            " are sure to take; set or delete fewer bytes at once"
        )
    seat = _record(client, intent, document)
    failpoints.reached("intent.1.prepare", failpoints.AFTER)
    results: list[Any] = [None] * len(operations)
    try:
        for shard, numbers in parts:
            found = _do(client, shard, numbers, operations, records, identity)
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
            failpoints.reached("intent.3.apply", failpoints.AFTER)
        if not forget(seat, intent, 0):
            raise SessionExpiredError(
                "this client was away for so long that another one has taken its"
                " transaction over, and decides whether it took place"
            )
    except Refused:
        try:
            _undo(client, identity, parts, records)
        except Exception:
            release(seat, intent)
            raise
        forget(seat, intent, 0)
        raise
    except Exception:
        release(seat, intent)  # not known what is done; whoever comes by decides
        raise
    failpoints.reached("intent.4.finish", failpoints.AFTER)
    _unmark(client, identity, parts)
    return results


def _record(client: ParKazooClient, intent: str, document: bytes) -> Any:
    """Write the intent at the seat, owned by us; returns the seat.

    It must be the seat at that instant, because one that is about to leave the
    namespace waits for what is recorded on it, but not for what might yet be. So the
    same transaction checks the copy of the table that says so.
    """
    for _ in range(RECORD_ATTEMPTS_MAX):
        seat = client._sessions.seat()
        data, stat = seat.get(CONFIG)
        try:
            found = Table.deserialize(data)
        except EnsembleRemoved:
            client.handler.sleep_func(RECORD_PAUSE)  # we are about to hear of it
            continue
        if found.seat != seat.name:
            client._sessions.adopt(found)
            continue
        begin = seat.transaction()
        begin.check(CONFIG, stat.version)
        begin.create(intent, document, acl=OPEN_ACL_UNSAFE)
        begin.create(f"{intent}/owner", b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
        try:
            results = begin.commit()
        except ConnectionLoss:
            release(seat, intent)  # if it is there, nobody would go on with it
            raise
        if isinstance(results[0], BadVersionError):
            continue
        for result in results:
            if isinstance(result, Exception):
                raise result
        return seat
    raise Contention("a transaction could not be begun: the table keeps changing")


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

    for _ in range(RECORD_ATTEMPTS_MAX):
        try:
            return list(ask(client, machine))
        except ShardMoved:
            # Nothing was done: a bucket that it was to take away, too, is elsewhere.
            client.handler.sleep_func(RECORD_PAUSE)
    raise Contention("a part of a transaction keeps meeting moves; try again")


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


def forget(ensemble: Any, intent: str, version: int = -1) -> bool:
    """Take an intent away with its owner, at once: between the two others would take
    it over. If they have, it is theirs to take away: False, as if it is not here.
    """
    both = ensemble.transaction()
    both.delete(f"{intent}/owner")
    both.delete(intent, version)
    if not any(isinstance(result, Exception) for result in both.commit()):
        return True
    try:
        ensemble.delete(intent, version)
    except (BadVersionError, NoNodeError):
        return False
    except NotEmptyError:
        # With a version: taken over between the two.
        return version < 0
    return True


def take(ensemble: Any, intent: str) -> tuple[dict[str, Any], int] | None:
    """Become the owner of an intent whose owner is gone. Returns what it says and its
    new version; None if somebody owns it, or is done with it."""
    try:
        data, stat = ensemble.get(intent)
    except NoNodeError:
        return None
    both = ensemble.transaction()
    both.create(f"{intent}/owner", b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
    both.set_data(intent, data, stat.version)
    try:
        results = both.commit()
    except ConnectionLoss:
        release(ensemble, intent)  # it may be ours, and nobody would go on with it
        raise
    if any(isinstance(result, Exception) for result in results):
        return None
    return json.loads(data), stat.version + 1


def decide_undone(
    ensemble: Any, intent: str, document: dict[str, Any], version: int
) -> int | None:
    """Write into an intent that it is to be undone, by whoever ends it. Returns its
    version then; None if another has taken it over."""
    data = json.dumps({**document, "undone": True}).encode()
    try:
        return int(ensemble.set(intent, data, version).version)
    except (BadVersionError, NoNodeError):
        return None


def release(ensemble: Any, intent: str) -> None:
    """Let others finish what we cannot. If this fails, our session's end does it."""
    try:
        ensemble.retry(ensemble.delete, f"{intent}/owner")
    except (KazooException, RetryFailedError):
        pass


def roll(client: ParKazooClient, ensemble: Any, name: str) -> list[str]:
    """Finish a transaction whose client is gone: forward if all is done, else back."""
    intent, identity = f"{INTENTS}/{name}", name[2:]
    taken = take(ensemble, intent)
    if taken is None:
        return []
    document, version = taken
    parts, records = document["parts"], document["records"]
    try:
        if "undone" not in document and all(
            _mark_of(client, shard, identity) == b"" for shard, _ in parts
        ):
            if not forget(ensemble, intent, version):
                return []
            _unmark(client, identity, parts)
        else:
            decided = decide_undone(ensemble, intent, document, version)
            if decided is None:
                return []
            for shard, _ in parts:
                _prevent(client, shard, identity)
            _undo(client, identity, parts, records)
            forget(ensemble, intent, decided)
    except Exception:
        release(ensemble, intent)
        raise
    return [record["path"] for record in records]
