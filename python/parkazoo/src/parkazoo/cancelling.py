"""Calls of Kazoo's recipes whose callers were cancelled: ended, and undone.

What: `Call` is one call, on a thread of its own. `take_back` ends it as soon as it can
be ended, and gives back what it obtained all the same: a lock, a lease, an item of a
queue, a place in a party.

Why so: Kazoo's recipes block, and few of them can be told to stop. What they wait for
they make by their client, on the thread of the call; so they are given the client as
`Seen`, which notes for the call of its thread what is made and done there.

What is given back is given back until it is, or the client ends: that it has failed
would be told to nobody. A request that servers which are away have not answered cannot
be ended; the answer is waited for.

Must never: end the call of another task on the same object, or give back what was held
before the call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from kazoo.exceptions import (
    CancelledError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.recipe.barrier import Barrier, DoubleBarrier
from kazoo.recipe.election import Election
from kazoo.recipe.lock import Lock, Semaphore
from kazoo.recipe.party import BaseParty
from kazoo.recipe.queue import LockingQueue, Queue
from kazoo.retry import ForceRetryError, RetryFailedError

log = logging.getLogger(__name__)

# A call is told to stop again and again, at most so far apart: it may not have begun.
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.05, 1.0
# Between tries to give something back.
AGAIN_SECONDS = 0.5
AGAIN = (
    ConnectionLoss,
    ForceRetryError,
    OperationTimeoutError,
    RetryFailedError,
    SessionExpiredError,
)

_here = threading.local()
# The calls that acquire, and have begun and not ended, by the object's id.
_acquiring: defaultdict[int, set[Call]] = defaultdict(set)
_acquiring_lock = threading.Lock()


def insist(function: Callable[[], Any]) -> None:
    """Until it has been done, or there is nothing to do."""
    while True:
        try:
            function()
            return
        except (NoNodeError, ConnectionClosedError):
            return
        except AGAIN:
            time.sleep(AGAIN_SECONDS)


class Call:
    """One call, of the method `name` of `made`, or of what makes the recipe `name`.

    `give_back`: what it may leave; None if a cancelled caller leaves nothing.
    `broken`: its caller was cancelled.
    """

    def __init__(
        self,
        client: Any,
        made: Any,
        name: str,
        function: partial[Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.client, self.made, self.name, self.loop = client, made, name, loop
        self._function: Callable[[], Any] = function
        if isinstance(made, Election) and name == "run":
            self._function = self._led(function)
        self.broken = False
        self.future: Future[Any]
        self.give_back = _found(made, name)
        self.leading: Any = None
        self.held = False
        # What it has made, and done, on its thread.
        self.events: list[threading.Event] = []
        self.locks: list[Lock] = []
        self.read: dict[str, bytes] = {}
        self.created: dict[str, bytes] = {}
        self.deleted = ""

    @property
    def acquires(self) -> bool:
        return self.made is not None and self.name not in ("release", "leave")

    def begin(self, on_thread: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        if self.acquires:
            with _acquiring_lock:
                _acquiring[id(self.made)].add(self)
        try:
            self.future = on_thread(self._run)
        except BaseException:
            self._ended()
            raise

    def _ended(self) -> None:
        with _acquiring_lock:
            calls = _acquiring.get(id(self.made), set())
            calls.discard(self)
            if not calls:
                _acquiring.pop(id(self.made), None)

    def _run(self) -> Any:
        try:
            return self._call()
        finally:
            self._ended()

    def _call(self) -> Any:
        _here.call = self
        made = self.made
        if self.give_back is None:
            return self._function()
        if isinstance(made, SEEN) and not isinstance(made.client, Seen):
            made.client = Seen(made.client)
        if isinstance(made, (Lock, Election)):
            _breakable(made.lock if isinstance(made, Election) else made)
        self.held = _holds(made)
        return self._function()

    def _led(self, function: partial[Any]) -> Callable[[], Any]:
        """The run of an Election, whose function may be a coroutine function."""

        def run() -> Any:
            named, arguments = dict(function.keywords), list(function.args)
            if "func" in named:
                named["func"] = self._lead(named["func"])
            elif arguments:
                arguments[0] = self._lead(arguments[0])
            return function.func(*arguments, **named)

        return run

    def _lead(self, function: Any) -> Any:
        if not callable(function):
            return function  # Kazoo has words for it

        def lead(*arguments: Any, **named: Any) -> Any:
            _stop_if_broken(self)
            outcome = function(*arguments, **named)
            if not asyncio.iscoroutine(outcome):
                return outcome
            assert self.loop is not None
            self.leading = asyncio.run_coroutine_threadsafe(outcome, self.loop)
            return self.leading.result()

        return lead

    @property
    def alone(self) -> bool:
        """Is no other task acquiring with the same object, and not cancelled?"""
        with _acquiring_lock:
            calls = _acquiring.get(id(self.made), set())
            return all(call.broken for call in calls - {self})

    def take_back(self) -> None:
        """End it, and give back what it obtained. On a thread: this blocks."""
        self.broken = True
        pause = LOOK_SECONDS
        while not self.future.done():
            self._end()
            wait([self.future], pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)
        assert self.give_back is not None
        try:
            self.give_back(self)
        except Exception:
            log.exception("what a cancelled call obtained is not given back")

    def _end(self) -> None:
        for event in list(self.events):
            event.set()
        for lock in list(self.locks):
            lock.cancel()
        if self.acquires and self.alone and hasattr(self.made, "cancel"):
            self.made.cancel()
        if self.leading is not None:
            self.leading.cancel()

    def result(self) -> Any:
        """What it returned, if it did."""
        return None if self.future.exception() else self.future.result()


# -- what a call does on its thread ----------------------------------------------


class Seen:
    """Kazoo's client as a recipe has it, whose calls can be ended."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.handler = _SeenHandler(client.handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def Lock(self, *arguments: Any, **named: Any) -> Any:
        lock = _breakable(self._client.Lock(*arguments, **named))
        call = getattr(_here, "call", None)
        if call is not None:
            call.locks.append(lock)
            if call.broken:
                lock.cancel()
        return lock

    def get(self, path: str, *arguments: Any, **named: Any) -> Any:
        found = self._client.get(path, *arguments, **named)
        call = getattr(_here, "call", None)
        if call is not None:
            call.read[path] = found[0]
        return found

    def create(self, path: str, value: bytes = b"", *rest: Any, **named: Any) -> Any:
        call = getattr(_here, "call", None)
        if call is not None:
            call.created[path] = value
        return self._client.create(path, value, *rest, **named)

    def delete(self, path: str, *arguments: Any, **named: Any) -> Any:
        done = self._client.delete(path, *arguments, **named)
        call = getattr(_here, "call", None)
        if call is not None:
            call.deleted = path
        return done


class _SeenHandler:
    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def event_object(self) -> Any:
        call = getattr(_here, "call", None)
        if call is None:
            return self._handler.event_object()
        # A queue's wait returns, so that Kazoo sees whether an item came just then.
        # A barrier would ask the servers and wait again.
        raises = isinstance(call.made, DoubleBarrier)
        event = _Raising(call) if raises else threading.Event()
        call.events.append(event)
        if call.broken:
            event.set()
        return event


class _Raising(threading.Event):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self._of = call

    def wait(self, timeout: float | None = None) -> bool:
        arrived = super().wait(timeout)
        _stop_if_broken(self._of)
        return arrived


def _stop_if_broken(call: Call | None = None) -> bool:
    call = call or getattr(_here, "call", None)
    if call is not None and call.broken:
        raise CancelledError
    return False


def _breakable(lock: Any) -> Any:
    """Kazoo's lock looks for its `cancel` while it waits, not between its tries."""
    lock._retry.interrupt = _stop_if_broken
    return lock


# -- giving back -----------------------------------------------------------------


def _holds(made: Any) -> bool:
    if isinstance(made, LockingQueue):
        return made.processing_element is not None
    if isinstance(made, BaseParty):
        return bool(made.participating)
    return isinstance(made, Semaphore) and bool(made.is_acquired)


def _free(lock: Any) -> None:
    """Nobody has this lock, and nobody waits with it."""
    if lock.is_acquired:
        insist(lock.release)
    else:
        insist(lambda: _remove_node(lock))


def _remove_node(lock: Any) -> None:
    """Kazoo removes a waiter's node, too, but tries only once."""
    node = lock.node
    if node is None and lock.create_tried:
        node = lock._find_node()
    if node is not None:
        lock._delete_node(node)


def _lock(call: Call) -> None:
    lock = call.made
    if call.result():
        insist(lock.release)
    elif call.alone and not lock.is_acquired:
        _free(lock)
    if call.alone:
        lock.cancelled = False


def _semaphore(call: Call) -> None:
    for lock in call.locks:
        _free(lock)
    if not call.held:
        call.made.is_acquired = True  # or it would not look
        insist(call.made.release)
    call.made.cancelled = False


def _election(call: Call) -> None:
    if call.alone:
        _free(call.made.lock)
        call.made.lock.cancelled = False


def _released(call: Call) -> None:
    if call.future.exception() is not None:  # else it is another's by now
        insist(call.made.release)


def _taken_item(call: Call) -> None:
    if call.result() is None or call.held:
        return
    insist(call.made.release)
    call.made.processing_element = None  # if its session has ended


def _removed_item(call: Call) -> None:
    """It is made again by its name, so it keeps its place."""
    value = call.result()
    if value is None:
        return

    def put_back() -> None:
        try:
            call.made.client.create(call.deleted, value)
        except NodeExistsError:
            pass  # an earlier try succeeded

    insist(put_back)


def _nothing(call: Call) -> None:
    """It only waited."""


def _barrier(call: Call) -> None:
    barrier = call.made
    insist(lambda: barrier.client.delete(barrier.create_path))
    barrier.participating = False


def _party(call: Call) -> None:
    if not call.held:
        insist(call.made.leave)


def _left(call: Call) -> None:
    insist(call.made.leave)


def _partitioner(call: Call) -> None:
    partitioner = call.result()
    if partitioner is not None:
        partitioner.finish()
        insist(partitioner._party.leave)


def _lease(call: Call) -> None:
    """A renewal stays: who held the lease before goes on with it."""
    for lock in call.locks:
        _free(lock)
    for path, value in call.created.items():
        lease = json.loads(value)
        before = json.loads(call.read.get(path, b"{}"))
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        if before.get("holder") == lease["holder"] and before["end"] > now:
            continue

        insist(partial(_end_lease, call.client, path, value, lease["holder"]))


def _end_lease(client: Any, path: str, value: bytes, holder: str) -> None:
    with client.Lock(path.rpartition("/")[0], holder):
        if client.get(path)[0] == value:
            client.delete(path)


def other(call: Call) -> None:
    """Not of Kazoo, but it can be acquired."""
    if call.result():
        call.made.release()


SEEN = (Semaphore, LockingQueue, Queue, Barrier, DoubleBarrier)
GIVE_BACK: dict[tuple[type, str], Callable[[Call], None]] = {
    (Barrier, "wait"): _nothing,
    (BaseParty, "join"): _party,
    (BaseParty, "leave"): _left,
    (DoubleBarrier, "enter"): _barrier,
    (DoubleBarrier, "leave"): _barrier,
    (Election, "run"): _election,
    (Lock, "acquire"): _lock,
    (Lock, "release"): _released,
    (LockingQueue, "get"): _taken_item,
    (LockingQueue, "release"): _released,
    (Queue, "get"): _removed_item,
    (Semaphore, "acquire"): _semaphore,
    (Semaphore, "release"): _released,
}
GIVE_BACK_MADE: dict[str, Callable[[Call], None]] = {
    "MultiNonBlockingLease": _lease,
    "NonBlockingLease": _lease,
    "SetPartitioner": _partitioner,
}


def _found(made: Any, name: str) -> Callable[[Call], None] | None:
    if made is None:
        return GIVE_BACK_MADE.get(name)
    for (recipe, method), give_back in GIVE_BACK.items():
        if method == name and isinstance(made, recipe):
            return give_back
    return None
