"""In which order a client's own requests take effect.

What, always: requests to one shard take effect in the order in which they were
made, also when they were sent without waiting for each other. Requests of one step
keep their order on their connection. One that turns out to take several steps (a
directory's first child, the removal of a directory, a transaction with one of them)
closes a *gate*: what was asked for later at or below the directories that it is
about waits, and what was answered too early is asked again. What another thread is
sending just then, having found no gate, is let through first: else it might arrive
behind the steps, and take effect before what was too early and is asked again.

A transaction that waits behind a gate because of one of its nodes must not be
overtaken at the others: that gate is closed for these, too, to what came after it.

What, with `session_order`: also across shards. A request waits until all earlier
writes to other shards have been answered.

An ACL takes several steps to set, and who may do what depends on it: it waits for
what was asked for before, at or below its path, and what comes later there waits for
it. A recursive delete is no request, but many, done by who asks: `wait_for` lets it
wait for what was asked for before.

Not kept: a write that was sent right behind the removal of a directory, to the
directory's own node, and had its effect before the removal came to its end. Both
took effect, in the other order. So it is with a write to another node of a
transaction that turns out to wait, or to take several steps, because a directory is
removed; and a listing sent right behind the removal may show what is removed. Nor does
it show what waits for an ACL, and a write to a sibling may come before that ACL. And a
child may be created, where it had to be refused, because its directory was created
right behind, if both are on one shard. A program that does not wait for an answer
and cares gets `session_order` from its own code by waiting.

Must never: ask anything again that has had an effect.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
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
    Transaction,
)

from parkazoo import intents
from parkazoo.mapping import parent
from parkazoo.operation import Driven
from parkazoo.requests import machine_for
from parkazoo.steps import Call, MultiFailed, ShardsApart

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

_READS = (Exists, GetACL, GetChildren, GetChildren2, GetData)
_WRITES = (Create, Create2, Delete, SetACL, SetData, Transaction)
_LISTINGS = (GetChildren, GetChildren2)
_TOO_EARLY = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)


class Task(Driven):
    """One request of the user's, from its arrival to its answer."""

    __slots__ = (
        "async_object",
        "gate",
        "ordering",
        "passed",
        "path",
        "request",
        "sequence",
    )

    def __init__(
        self, ordering: Ordering, request: Any, async_object: Any, sequence: int
    ) -> None:
        # What `super().__init__` does, without a call: there is one per request.
        self.client = ordering.client
        self.losses = ordering.client._sessions.losses
        self.ensemble = None  # type: ignore[assignment]
        self.ordering = ordering
        self.request = request
        self.async_object = async_object
        self.sequence = sequence
        self.path: str = getattr(request, "path", "")
        self.gate: _Gate | None = None
        self.passed: _Gate | None = None

    @property
    def paths(self) -> list[str]:
        """The nodes that it is about; asked for only where somebody waits."""
        if type(self.request) is Transaction:
            return [operation.path for operation in self.request.operations]
        return [self.path]

    def begin(self) -> None:
        """Send it, or put it behind a gate."""
        ordering = self.ordering
        ordering.beginning.add(self)  # before it looks for gates
        try:
            if not (ordering.gates and ordering.behind_gate(self)):
                if type(self.request) is SetACL:
                    ordering.alone(self)
                else:
                    self.send()
        except BaseException:
            ordering.leave(self)
            ordering.ended(self)  # whoever asked for it has heard so
            if ordering.across and self.ensemble is None:  # it was not sent
                ordering.answered(self)
            raise
        finally:
            ordering.beginning.discard(self)
            if ordering.held_back:
                ordering.begun(self)

    def send(self) -> None:
        self.machine = machine_for(self.client, self.request)
        self.resume(None, None)

    def done(self, value: Any) -> None:
        ordering, request = self.ordering, self.request
        if ordering.gates:
            if self._had_no_effect(value) and ordering.behind_gate(self, True):
                return
            ordering.leave(self)
        ordering.under_way.discard(self)
        if ordering.waiting_for:
            ordering.ended(self)
        if type(request) is Transaction:
            value = Transaction.unchroot(ordering.client, value)
        self.async_object.set(value)
        if ordering.across:
            ordering.answered(self)

    def _had_no_effect(self, value: Any) -> bool:
        request = self.request
        return isinstance(request, _READS) or (
            type(request) is Transaction
            and any(isinstance(result, _TOO_EARLY) for result in value)
        )

    def failed(self, error: Exception) -> None:
        ordering = self.ordering
        by_intent = False
        if type(error) is ShardsApart:
            # Nothing was done: the transaction is judged by the newer table, and what
            # waits until it is answered goes on waiting.
            by_intent = ordering.client._by_intent(self.request)
            if not by_intent:
                self.send()
                return
        if ordering.gates:
            if isinstance(error, _TOO_EARLY) and ordering.behind_gate(self, True):
                return
            ordering.leave(self)
        ordering.under_way.discard(self)
        if ordering.waiting_for:
            ordering.ended(self)
        if by_intent:
            ordering.client._dispatch(self.request, self.async_object)
        else:
            self.async_object.set_exception(error)
        if ordering.across:
            ordering.answered(self)

    def too_early(self, parts: list[Any], reply: Any) -> bool:
        """What a read finds, or why a write is refused, while an earlier request takes
        its steps."""
        ordering = self.ordering
        if not ordering.gates or not (
            isinstance(self.request, _READS)
            or (type(reply) is MultiFailed and isinstance(reply.error, _TOO_EARLY))
        ):
            return False
        machine = self.machine
        with ordering.lock:
            if self.parts is not parts:
                return True  # another part of it came too early
            if not ordering.behind_gate(self, True):
                return False
            self.parts = []
        machine.close()  # by now the task may have another one
        return True

    def seen_to(self, call: Call, refusal: MultiFailed) -> bool:
        """A step refused in the way that means: this takes several, or is early."""
        ordering, label, error = self.ordering, call.label, refusal.error
        if label == "create.0.child" and isinstance(error, NoNodeError):
            return ordering.enter(self, refusal, [], parent(self.path))
        if label == "delete.0.node" and isinstance(error, NotEmptyError):
            return ordering.enter(self, refusal, [self.path])
        if label != "transaction.1.commit" or not isinstance(error, _TOO_EARLY):
            return False
        refused = call.request.operations[refusal.index]
        if isinstance(refused, Create) and isinstance(error, NoNodeError):
            for path in self.paths:
                if self.client._layout.node(path).path == refused.path:
                    return ordering.enter(self, refusal, self.paths, parent(path))
        elif not (isinstance(refused, Delete) and isinstance(error, NotEmptyError)):
            return ordering.put_back(self)
        return ordering.enter(self, refusal, self.paths)


class _Gate:
    """Closed by the task with this number.

    `closed`: by directory, the number behind which tasks at or below it wait.
    `filled`: those of them that are to have a first child. Their own nodes are on
    another shard: what was answered about these was not too early, and if it were
    asked again it might come behind what was asked for later.
    `gates`: those of this client, by directory. `number`: gates are tried in the order
    in which they were closed.
    """

    def __init__(self, task: Task) -> None:
        self.gates, self.number = task.ordering.gates, task.ordering.number()
        self.closed: dict[str, int] = {}
        self.filled: set[str] = set()
        self.waiting: list[Task] = []

    def close(self, directory: str, sequence: int, filled: bool = False) -> None:
        if directory not in self.closed:
            self.gates.setdefault(directory, []).append(self)
        if not filled:
            self.filled.discard(directory)
        elif directory not in self.closed:
            self.filled.add(directory)
        self.closed[directory] = min(self.closed.get(directory, sequence), sequence)

    def open(self) -> None:
        for directory in self.closed:
            self.gates[directory].remove(self)
            if not self.gates[directory]:
                del self.gates[directory]

    def bars(self, task: Task, answered: bool = False) -> bool:
        """`answered`: it was sent, and has its answer."""
        paths = task.paths
        for directory, sequence in self.closed.items():
            if sequence < task.sequence:
                for path in paths:
                    if _at_or_below(path, directory) and not (
                        answered
                        and path == directory
                        and directory in self.filled
                        and not isinstance(task.request, _LISTINGS)
                    ):
                        return True
        return False


class _Until(NamedTuple):
    """What is done when these tasks are through."""

    tasks: set[Task]
    then: Callable[[], Any]


class Ordering:
    """`gates` by directory at which they are closed; `queue` only with
    `session_order`.

    `beginning`: the tasks between their look for gates and being sent. No lock is
    held meanwhile: sending takes those of the sessions, and whoever holds those may
    end a task. `held_back`: tasks that have closed a gate, and wait for some of them.
    `under_way`: the tasks without an answer. `waiting_for`: by task, who waits for it.
    """

    def __init__(self, client: ParKazooClient, across: bool) -> None:
        self.client = client
        self.across = across
        self.lock = client.handler.rlock_object()
        self.gates: dict[str, list[_Gate]] = {}
        self.beginning: set[Task] = set()
        self.held_back: list[_Until] = []
        self.under_way: set[Task] = set()
        self.waiting_for: dict[Task | None, list[_Until]] = {}
        # Indivisible: a number that was given twice or went back would lose a place.
        self.number = itertools.count(1).__next__
        self.queue: deque[tuple[Task, frozenset[int]]] = deque()
        self.open_writes: dict[int, int] = {}
        self.sending = False
        # Transactions over shards that are under way.
        self.committing: set[Any] = set()

    def submit(self, request: Any, async_object: Any) -> None:
        task = Task(self, request, async_object, self.number())
        self.under_way.add(task)
        if self.across:
            self._queue_up(task)
        else:
            task.begin()

    # -- gates -------------------------------------------------------------------

    def put_back(self, task: Task) -> bool:
        """It was refused, maybe because of an earlier request's steps: begin anew."""
        machine = task.machine
        if not (self.gates and self.behind_gate(task)):
            return False
        machine.close()  # by now the task may have another one
        return True

    def enter(
        self, task: Task, refusal: MultiFailed, closed: list[str], filled: str = ""
    ) -> bool:
        """This task needs several steps; what follows it at these directories, one of
        them maybe to have a first child, must wait.

        True: it goes on later, behind an earlier gate or when what follows it and
        found no gate is sent.
        """
        with self.lock:
            if self.put_back(task):
                return True
            gate = task.gate
            if gate is None:
                gate = task.gate = _Gate(task)
            for directory in closed:
                gate.close(directory, task.sequence)
            if filled:
                gate.close(filled, task.sequence, True)
            held = _Until(set(), partial(task.resume, None, refusal))
            # First this, then the look at who is beginning: they look in the other
            # order, and none is missed. Copying a set is indivisible.
            self.held_back.append(held)
            held.tasks.update(t for t in self.beginning.copy() if gate.bars(t))
            if not held.tasks:
                self.held_back.remove(held)
            return bool(held.tasks)

    def begun(self, task: Task) -> None:
        """It is sent, or waits: whoever was held back for it alone goes on.

        In a routine of its own: an exception that strikes the one that asks, a
        time-out say, is not about them.
        """
        with self.lock:
            for held in self.held_back:
                held.tasks.discard(task)
            free = [held for held in self.held_back if not held.tasks]
            self.held_back = [held for held in self.held_back if held.tasks]
        for held in free:
            self.client.handler.spawn(held.then)

    def behind_gate(self, task: Task, answered: bool = False) -> bool:
        """Put a task behind a gate that an earlier one has closed, if there is.

        Only for a task that has had no effect. Its own gate opens; those behind it
        go with it. What comes after a transaction must not overtake it at its other
        nodes.
        """
        with self.lock:
            for gate in self._gates_at(task):
                if gate is task.passed or not gate.bars(task, answered):
                    continue
                gate.waiting.append(task)
                if type(task.request) is Transaction:
                    for path in task.paths:
                        gate.close(path, task.sequence)
                if task.gate is not None:
                    own, task.gate = task.gate, None
                    gate.waiting += own.waiting
                    for directory, sequence in own.closed.items():
                        gate.close(directory, sequence, directory in own.filled)
                    own.open()
                return True
        return False

    def _gates_at(self, task: Task) -> list[_Gate]:
        """Those that may bar it, in the order in which they were closed."""
        found: set[_Gate] = set()
        for path in task.paths:
            found.update(self.gates.get(path, ()))
            while path != "/":
                path = path.rpartition("/")[0] or "/"
                found.update(self.gates.get(path, ()))
        return sorted(found, key=lambda gate: gate.number)

    def leave(self, task: Task) -> None:
        """The task is done with its steps: whoever waited goes, in order.

        Newcomers still wait, so that they overtake none of them. Those that go do not
        come back behind this gate: one of them that needs several steps closes a gate
        of its own, and is held back until the others are sent.
        """
        gate, task.gate = task.gate, None
        if gate is None:
            return
        while True:
            with self.lock:
                waiting, gate.waiting = gate.waiting, []
                if not waiting:
                    # Opened only now, so that nobody new overtakes who waited.
                    gate.open()
                    return
                for other in waiting:
                    other.passed = gate
                self.beginning.update(waiting)
            for other in sorted(waiting, key=lambda task: task.sequence):
                other.begin()

    # -- what waits for what was asked for before ----------------------------------

    def alone(self, task: Task) -> None:
        """Send this task when all is answered that was asked for before, at or below
        its path; what is asked for later there waits until it is done."""
        with self.lock:
            if self.gates and self.behind_gate(task):
                return
            task.gate = _Gate(task)
            task.gate.close(task.path, task.sequence)
            # In a routine of its own, as in `begun`.
            send = partial(self.client.handler.spawn, task.send)
            waits = self._wait(task.path, task.sequence, send)
        if not waits:
            task.send()

    def wait_for(self, path: str, seconds: float | None = None) -> None:
        """Return when all is answered that was asked for before, at or below a path
        or, with `session_order`, anywhere; or after so many seconds."""
        through = self.client.handler.event_object()
        if self._wait("/" if self.across else path, self.number(), through.set):
            through.wait(seconds)

    def commit(self, request: Transaction, async_object: Any) -> None:
        """Begin a transaction over shards, which takes no place in the order."""
        done = self.client.handler.event_object()
        self.committing.add(done)

        def carry_out() -> None:
            try:
                intents.commit(self.client, request.operations, async_object)
            finally:
                self.committing.discard(done)
                done.set()

        self.client.handler.spawn(carry_out)

    def finish(self, seconds: float) -> None:
        """Return when all has its answer that was asked for before, or after so long.

        Kazoo's farewell goes behind it. Here there may be steps to be taken, and no
        ensemble waits for another's.
        """
        until = time.monotonic() + seconds
        self.wait_for("/", seconds)
        for done in self.committing.copy():
            done.wait(max(0.0, until - time.monotonic()))

    def _wait(self, path: str, before: int, then: Callable[[], Any]) -> bool:
        """Have something done when what came before, at or below a path, is answered.
        False: there is nothing under way, and it is not done."""
        until = _Until(set(), then)
        with self.lock:
            # First this, then the look at what is under way: whoever is answered
            # looks in the other order. Copying a set is indivisible.
            self.waiting_for[None] = []
            for task in self.under_way.copy():
                # First what is quick: there may be thousands.
                if (
                    (task.path.startswith(path) or not task.path)
                    and task.sequence < before
                    and any(_at_or_below(p, path) for p in task.paths)
                ):
                    until.tasks.add(task)
                    self.waiting_for.setdefault(task, []).append(until)
            del self.waiting_for[None]
            return bool(until.tasks)

    def ended(self, task: Task) -> None:
        """It has its answer, or never gets one."""
        self.under_way.discard(task)
        with self.lock:
            waiting = self.waiting_for.pop(task, ())
            for until in waiting:
                until.tasks.discard(task)
            free = [until for until in waiting if not until.tasks]
        for until in free:
            until.then()

    # -- across shards -----------------------------------------------------------

    def _shards(self, request: Any) -> frozenset[int]:
        layout = self.client._layout
        if type(request) is Transaction:
            return frozenset(layout.node(op.path).shard for op in request.operations)
        if isinstance(request, (GetChildren, GetChildren2)):
            return frozenset(b.shard for b in layout.buckets(request.path))
        if type(request) is Sync:
            return frozenset()
        return frozenset((layout.node(request.path).shard,))

    def _queue_up(self, task: Task) -> None:
        with self.lock:
            self.queue.append((task, self._shards(task.request)))
        self._send_ready()

    def _send_ready(self) -> None:
        """Begin what may begin. One thread at a time does, or two could begin what
        they took in the other order."""
        with self.lock:
            if self.sending:
                return  # whoever is at it looks at the queue again
            self.sending = True
        try:
            while (task := self._next_ready()) is not None:
                task.begin()
        except BaseException:
            self.sending = False
            self.client.handler.spawn(self._send_ready)  # for the others in the queue
            raise

    def _next_ready(self) -> Task | None:
        with self.lock:
            if self.queue:
                task, shards = self.queue[0]
                if all(shard in shards for shard in self.open_writes):
                    self.queue.popleft()
                    if isinstance(task.request, _WRITES):
                        for shard in shards:
                            self.open_writes[shard] = self.open_writes.get(shard, 0) + 1
                    return task
            self.sending = False
            return None

    def answered(self, task: Task) -> None:
        if not isinstance(task.request, _WRITES):
            return
        with self.lock:
            for shard in self._shards(task.request):
                self.open_writes[shard] -= 1
                if not self.open_writes[shard]:
                    del self.open_writes[shard]
        self._send_ready()


def _at_or_below(path: str, directory: str) -> bool:
    if directory == "/":
        return True
    return path.startswith(directory) and path[len(directory) :][:1] in ("", "/")
