"""Recursive delete that a crash cannot leave half done for ever.

What: before anything is deleted, one transaction writes an *intent* on the
subtree's home ensemble and a *mark* below its node. The subtree then goes, leaves
first. If the client dies, any other client finds the intent without its owner and
finishes the work.

    /parkazoo/intents/d-<id>          {"path": ...}
    /parkazoo/intents/d-<id>/owner    an ephemeral of whoever works on it
    <home of path>/i<id>              the mark: this life of the node, and no other

Why a mark: the path may have been deleted and created anew since. The mark went
with the old life, so the intent has nothing left to do. That a new life never
shows the old one's children needs no intent: a directory's node can only go after
its bucket went, empty.

Whoever finishes another's work may be slow, too, and the path may be made anew
while it does. So it first leaves a claim beside each bucket that it empties, sees
that the mark is still there, and then has every deletion check that claim: a claim
goes when its bucket is closed, so where it is the directory is the one that was
below the mark.

What is refused leaves no intent behind: whoever comes by might have the rights that
were missing, and do later what its caller was told is not done. What may be done, or
not (a lost connection), is left to whoever comes by, or taken back if it had not begun.

Must never: finish another's work below a node that does not bear the mark. Not
promised, as in Kazoo: that the subtree vanishes at one instant. What others create
in it before the work is finished goes with it.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    BadArgumentsError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import CheckVersion, Create, Delete, Exists, Sync
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import buckets, directory, failpoints, operation
from parkazoo.layout import CLAIM, INTENTS, MARK
from parkazoo.mapping import join
from parkazoo.record import UNKNOWN, forget, release, seen_to, take, until_seen_to
from parkazoo.steps import EPHEMERAL, Call, Multi, MultiFailed

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# Deletes under way at once: enough to fill a round trip, few enough to be fair.
WINDOW = 128
# Others may create faster than we delete; then they win, and the caller hears it.
ROUNDS_MAX = 10
# How often a client looks for work left behind: [it, twice it] seconds.
LOOK_SECONDS = 30.0


def delete_recursive(client: ParKazooClient, path: str) -> Any:
    """Delete a node (given by logical path, chroot included) with all below it."""
    try:
        names = ask(client, lambda layout: directory.children(layout, path, False))
    except NoNodeError:
        return True
    if path == "/":
        sweep(client, path, names)
        raise BadArgumentsError("the root cannot be deleted")
    if not names:
        try:
            ask(client, lambda layout: directory.delete(layout, path, -1))
            return None
        except NoNodeError:
            return None
        except NotEmptyError:
            pass
    try:
        record = _record(client, path)
    except NoNodeError:
        return None
    if record is None:
        _delete_all(client, path)
        return None
    try:
        _delete_all(client, path)
    except BaseException as error:
        if not isinstance(error, Exception) or isinstance(error, UNKNOWN):
            record.leave()
        elif not record.withdraw():
            raise ConnectionLoss(
                f"{path}: refused ({error!r}); but the ensemble that has the record of"
                " this deletion is away, so others may go on with it before it is taken"
                " back"
            ) from error
        raise
    failpoints.reached("recursive.2.done", failpoints.BEFORE)
    record.end()
    return None


def ask(client: ParKazooClient, make: Any) -> Any:
    """Run an operation and wait for it, on the calling thread."""
    result = client.handler.async_result()
    operation.run(client, make, result.set, result.set_exception)
    return result.get()


def _record(client: ParKazooClient, path: str) -> Record | None:
    """Write the intent, owned by us, and the mark.

    None: we may not create below the node, so it cannot be marked. Then nobody is to
    finish what we begin, as in Kazoo. If it is not known whether they are written, they
    are taken away again: nothing is deleted yet.
    """
    life = Life(path, buckets.fresh())
    result = client.handler.async_result()
    declare = _declare(client._layout, path, life.identity)
    begun = operation.Operation(client, declare, result.set, result.set_exception)
    try:
        begun.resume(None, None)
        result.get()
    except NoAuthError:
        return None
    except BaseException as error:
        if not isinstance(error, Exception) or isinstance(error, UNKNOWN):
            client.handler.spawn(_take_back, client, life, begun, result)
        raise
    return Record(client, life, begun.ensemble)


def _take_back(client: ParKazooClient, life: Life, begun: Any, result: Any) -> None:
    result.wait()  # whoever asked was interrupted, perhaps
    if begun.ensemble is not None:  # else it was never sent
        Record(client, life, begun.ensemble).withdraw()


def _declare(layout: Any, path: str, identity: str) -> Any:
    """Write the intent, owned by us, and the mark: all or none."""
    node = layout.node(path)
    intent = f"{INTENTS}/d-{identity}"
    data = json.dumps({"path": path}).encode()
    writes = (
        Create(intent, data, OPEN_ACL_UNSAFE, 0),
        Create(f"{intent}/owner", b"", OPEN_ACL_UNSAFE, EPHEMERAL),
        Create(node.path + MARK + identity, b"", OPEN_ACL_UNSAFE, 0),
    )
    base = (Create(INTENTS, b"", OPEN_ACL_UNSAFE, 0),)
    for operations in (writes, (*base, *writes), writes):
        try:
            yield Call(node.shard, Multi(operations), "recursive.1.intent")
            return
        except MultiFailed as failed:
            first = failed.index == 0
            if first and isinstance(failed.error, (NoNodeError, NodeExistsError)):
                error = failed.error
                continue
            raise failed.error from None
    raise error


class Life(NamedTuple):
    """The life of a node that an intent is about."""

    path: str
    identity: str

    @property
    def intent(self) -> str:
        return f"{INTENTS}/d-{self.identity}"

    def mark(self, client: ParKazooClient) -> str:
        return client._layout.node(self.path).path + MARK + self.identity


class Record:
    """An intent that is ours to see to, unless another takes it over. `home`: the
    session through which it became so; `version`: what it has had since.

    What becomes of it is seen to behind the caller's back if its ensemble is away: a
    client that lives on would otherwise own it, and nobody go on with it.
    """

    def __init__(
        self, client: ParKazooClient, life: Life, home: Any, version: int = 0
    ) -> None:
        self.client, self.life, self.home, self.version = client, life, home, version
        self.forgotten = False

    def end(self) -> None:
        """The node is gone, and its mark with it."""
        self._now_or_later(self._forget)

    def withdraw(self) -> bool:
        """It was refused: nobody may do it later, with the rights that we lack.
        Returns whether that is so by now."""
        self._now_or_later(self._unmark)
        return self.forgotten

    def leave(self) -> None:
        """We cannot go on, and do not know why not: whoever comes by finishes it."""
        release(self.client, self.home, self.life.intent)

    def _forget(self) -> None:
        self.forgotten = forget(self.home, self.life.intent, self.version)

    def _unmark(self) -> None:
        if not self.forgotten:  # or this was done, and only the mark was not
            self._forget()
        if not self.forgotten:
            return  # others have taken it over, and go by the mark
        node = self.client._layout.node(self.life.path)
        away = Multi((Delete(self.life.mark(self.client), -1),))

        def unmark(layout: Any) -> Any:
            yield Call(node.shard, away)

        try:
            ask(self.client, unmark)
        except UNKNOWN:
            raise
        except KazooException:
            pass  # gone with the node; or not ours to delete, and without a meaning

    def _now_or_later(self, work: Callable[[], None]) -> None:
        done = False
        try:
            done = self.home.connected and seen_to(self.client, work)
        finally:  # also if we are interrupted
            if not done:
                self.client.handler.spawn(until_seen_to, self.client, self.home, work)


def _delete_all(
    client: ParKazooClient,
    path: str,
    life: Life | None = None,
    guard: tuple[Any, ...] = (),
) -> None:
    """Delete a node with all below it; with `life` only what belongs to that."""
    for _ in range(ROUNDS_MAX):
        try:
            names = ask(client, lambda layout: directory.children(layout, path, False))
            sweep(client, path, names, life)
            ask(client, lambda layout: directory.delete(layout, path, -1, guard))
            return
        except NoNodeError:
            return
        except NotEmptyError:
            continue
    raise NotEmptyError(f"{path}: others keep creating nodes in it")


def _hold(
    client: ParKazooClient, path: str, life: Life, checks: dict[str, Any]
) -> None:
    """Note in `checks`, by anchor, what deletions in a bucket of `path` check.

    A directory without a bucket has no children, and no check.
    :raises NoNodeError: the life is over.
    """
    for bucket in client._layout.buckets(path):
        claim = bucket.anchor + CLAIM + buckets.fresh()
        make = Create(claim, b"", OPEN_ACL_UNSAFE, EPHEMERAL)
        there = CheckVersion(bucket.path, -1)

        def leave(
            layout: Any, shard: int = bucket.shard, both: Any = (there, make)
        ) -> Any:
            yield Call(shard, Multi(both))

        try:
            checks[bucket.anchor] = CheckVersion(claim, -1)
            ask(client, leave)
        except NoNodeError:
            del checks[bucket.anchor]
    if not _bears_mark(client, life):
        raise NoNodeError


def _let_go(client: ParKazooClient, path: str, checks: dict[str, Any]) -> None:
    """Take our claims away: else each look at what we may not finish would add some.
    Nobody waits for that."""
    for bucket in client._layout.buckets(path):
        if bucket.anchor in checks:
            away = Multi((Delete(checks[bucket.anchor].path, -1),))

            def leave(layout: Any, shard: int = bucket.shard, away: Any = away) -> Any:
                yield Call(shard, away)

            operation.run(client, leave, _nobody_waits, _nobody_waits)


def _nobody_waits(result: Any) -> None: ...


def sweep(
    client: ParKazooClient, path: str, names: list[str], life: Life | None = None
) -> None:
    """Delete the named children, many at a time, and what is below them."""
    checks: dict[str, Any] = {}
    try:
        if life is not None and names:
            _hold(client, path, life, checks)
        _sweep(client, path, names, life, checks)
    finally:
        _let_go(client, path, checks)


def _sweep(
    client: ParKazooClient,
    path: str,
    names: list[str],
    life: Life | None,
    checks: dict[str, Any],
) -> None:
    waiting: deque[tuple[str, Any]] = deque()

    def guard(child: str) -> tuple[Any, ...]:
        if life is None:
            return ()
        return (checks[client._layout.node(child).bucket.anchor],)

    if life is not None:  # a bucket that has gone since it was listed is empty
        held, node = checks.keys(), client._layout.node
        names = [n for n in names if node(join(path, n)).bucket.anchor in held]
    full: list[str] = []
    errors: list[Exception] = []

    def settle() -> None:
        child, result = waiting.popleft()
        try:
            result.get()
        except NoNodeError:
            pass
        except NotEmptyError:
            full.append(child)
        except Exception as error:
            errors.append(error)

    for name in names:
        if errors:
            break
        child = join(path, name)
        result = client.handler.async_result()
        machine = directory.delete(client._layout, child, -1, guard(child))
        begun = operation.Operation(client, machine, result.set, result.set_exception)
        begun.resume(None, None)
        waiting.append((child, result))
        if len(waiting) >= WINDOW:
            settle()
    while waiting:  # also if one is refused: none must be done after that is told
        settle()
    for error in errors:
        if not isinstance(error, UNKNOWN):
            raise error
    if errors:
        raise errors[0]
    for child in full:
        _delete_all(client, child, life, guard(child))


# -- work that others left behind ------------------------------------------------


def roll_forward(client: ParKazooClient) -> list[str]:
    """Finish what clients that are gone left unfinished. Returns what it was.

    All that can be finished is; then the first error of the others is raised.
    """
    finished, failed = finish(client)
    for error in failed.values():
        raise error
    return finished


def finish(client: ParKazooClient) -> tuple[list[str], dict[str, Exception]]:
    """What was finished, and by intent why others are left to somebody else."""
    finished: list[str] = []
    failed: dict[str, Exception] = {}
    for ensemble in list(client._sessions.by_name.values()):
        if not ensemble.connected:
            continue
        try:
            names = ensemble.get_children(INTENTS)
        except KazooException:
            continue  # none there; or it has gone away just now
        for name in names:
            try:
                finished += _roll(client, ensemble, name)
            except Exception as error:
                failed[name] = error
    return finished, failed


def _roll(client: ParKazooClient, ensemble: Any, name: str) -> list[str]:
    from parkazoo import intents

    if name.startswith("d-"):
        return _take_over(client, ensemble, name)
    if name.startswith("t-"):
        return intents.roll(client, ensemble, name)
    return []


def _take_over(client: ParKazooClient, ensemble: Any, name: str) -> list[str]:
    taken = take(client, ensemble, f"{INTENTS}/{name}")
    if taken is None:
        return []
    document, version = taken
    path = str(document["path"])
    life = Life(path, name[2:])
    record = Record(client, life, ensemble, version)
    try:
        if _bears_mark(client, life):
            client.logger.info("finishing a recursive delete that was left behind")
            _delete_all(client, path, life, (CheckVersion(life.mark(client), -1),))
    except BaseException:
        record.leave()
        raise
    record.end()
    return [path]


def _bears_mark(client: ParKazooClient, life: Life) -> bool:
    node = client._layout.node(life.path)

    def look(layout: Any) -> Any:
        yield Call(node.shard, Sync(node.path))
        return (yield Call(node.shard, Exists(life.mark(client), None)))

    return ask(client, look) is not None


def watchman(client: ParKazooClient, opening: int) -> None:
    """Runs while the client is open: looks for work left behind, now and then."""
    sessions = client._sessions

    def on_duty() -> bool:
        return sessions.running and sessions.opening == opening

    pause = 1.0
    while on_duty():
        client._stopped.wait(pause)
        if on_duty() and client.connected:
            try:
                roll_forward(client)
            except KazooException as error:
                client.logger.debug("work left behind is not finished: %s", error)
            except Exception:  # whatever it is: nobody would begin this anew
                client.logger.warning("work left behind is not finished", exc_info=True)
        pause = LOOK_SECONDS * (1 + random.random())
