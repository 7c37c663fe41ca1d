"""In which order a client's own requests take effect.

What, always: requests to one shard take effect in the order in which they were
made, also when they were sent without waiting for each other. Requests of one step
keep their order on their connection. One that turns out to take several steps (a
directory's first child, the removal of a directory) closes a *gate*: what was
asked for later at or below that directory waits, and what was answered too early
is asked again. What another thread is sending just then, having found no gate, is
let through first: else it might arrive behind the steps, and take effect before
what was too early and is asked again.

What, with `session_order`: also across shards. A request waits until all earlier
writes to other shards have been answered.

Not kept: a write that was sent right behind the removal of a directory, to the
directory's own node, and had its effect before the removal came to its end. Both
took effect, in the other order; a program that does not wait for an answer and
cares gets `session_order` from its own code by waiting.

Must never: ask anything again that has had an effect.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError
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

from parkazoo.mapping import parent
from parkazoo.operation import Driven
from parkazoo.requests import machine_for
from parkazoo.steps import Call, MultiFailed
from parkazoo.wire import ShardMoved

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

_READS = (Exists, GetACL, GetChildren, GetChildren2, GetData)
_WRITES = (Create, Create2, Delete, SetACL, SetData, Transaction)
_TOO_EARLY = (NodeExistsError, NoNodeError, NotEmptyError)


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
        self.gate: str | None = None
        self.passed: _Gate | None = None

    def begin(self) -> None:
        """Send it, or put it behind a gate."""
        ordering = self.ordering
        ordering.beginning.add(self)  # before it looks for gates
        try:
            if not (ordering.gates and self.path and ordering.behind_gate(self)):
                self.send()
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
            if isinstance(request, _READS) and ordering.behind_gate(self):
                return
            ordering.leave(self)
        if type(request) is Transaction:
            value = Transaction.unchroot(ordering.client, value)
        self.async_object.set(value)
        if ordering.across:
            ordering.answered(self)

    def failed(self, error: Exception) -> None:
        ordering = self.ordering
        if ordering.gates:
            if isinstance(error, _TOO_EARLY) and ordering.behind_gate(self):
                return
            ordering.leave(self)
        if type(error) is ShardMoved:
            # A transaction over shards that are not on one ensemble any more, or
            # soon will not be. Nothing was done: it is judged by the newer table, and
            # what waits until it is answered goes on waiting.
            if not ordering.client._by_intent(self.request):
                self.send()
                return
            ordering.client._dispatch(self.request, self.async_object)
        else:
            self.async_object.set_exception(error)
        if ordering.across:
            ordering.answered(self)

    def too_early(self, replies: list[Any]) -> bool:
        """A listing found no bucket while an earlier request is making it."""
        return (
            bool(self.ordering.gates)
            and isinstance(self.request, _READS)
            and any(isinstance(reply, NoNodeError) for reply in replies)
            and self.ordering.behind_gate(self)
        )

    def seen_to(self, call: Call, refusal: MultiFailed) -> bool:
        """A first step refused in the way that means: this takes several steps."""
        ordering, path, error = self.ordering, self.path, refusal.error
        if call.label == "create.0.child" and isinstance(error, NoNodeError):
            path = parent(path)
        elif call.label != "delete.0.node" or not isinstance(error, NotEmptyError):
            return False
        return ordering.enter(self, path, refusal)


class _Gate:
    """Closed by the task with this number; tasks that came later wait behind it."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.waiting: list[Task] = []


class _HeldBack(NamedTuple):
    """A task that has closed a gate, and its refused first step. It goes on when
    those that found no gate, and were not sent yet, are sent."""

    task: Task
    refusal: MultiFailed
    until: set[Task]


class Ordering:
    """`gates` by the directory they close; `queue` only with `session_order`.

    `beginning`: the tasks between their look for gates and being sent. No lock is
    held meanwhile: sending takes those of the sessions, and whoever holds those may
    end a task. `held_back`: who waits for some of them.
    """

    def __init__(self, client: ParKazooClient, across: bool) -> None:
        self.client = client
        self.across = across
        self.lock = client.handler.rlock_object()
        self.gates: dict[str, _Gate] = {}
        self.beginning: set[Task] = set()
        self.held_back: list[_HeldBack] = []
        self.sequence = 0
        self.queue: deque[tuple[Task, frozenset[int]]] = deque()
        self.open_writes: dict[int, int] = {}
        self.sending = False

    def submit(self, request: Any, async_object: Any) -> None:
        self.sequence += 1
        task = Task(self, request, async_object, self.sequence)
        if self.across:
            self._queue_up(task)
        else:
            task.begin()

    # -- gates -------------------------------------------------------------------

    def enter(self, task: Task, directory: str, refusal: MultiFailed) -> bool:
        """This task needs several steps; what follows it must wait.

        True: it goes on later, behind an earlier gate or when what follows it and
        found no gate is sent.
        """
        machine = task.machine
        with self.lock:
            if self.gates and self.behind_gate(task):
                machine.close()  # by now the task may have another one
                return True
            gate, before = _Gate(task.sequence), self.gates.get(directory)
            if task.gate is not None or before not in (None, task.passed):
                return False
            if before is not None:  # it is opening: this task takes over
                gate.waiting, before.waiting = before.waiting, []
            task.gate = directory
            self.gates[directory] = gate
            held = _HeldBack(task, refusal, set())
            # First this, then the look at who is beginning: they look in the other
            # order, and none is missed. Copying a set is indivisible.
            self.held_back.append(held)
            held.until.update(
                other
                for other in self.beginning.copy()
                if other.sequence > task.sequence
                and _at_or_below(other.path, directory)
            )
            if not held.until:
                self.held_back.remove(held)
            return bool(held.until)

    def begun(self, task: Task) -> None:
        """It is sent, or waits: whoever was held back for it alone goes on.

        In a routine of its own: an exception that strikes the one that asks, a
        time-out say, is not about them.
        """
        free: list[_HeldBack] = []
        with self.lock:
            for held in self.held_back:
                held.until.discard(task)
                if not held.until:
                    free.append(held)
            self.held_back = [held for held in self.held_back if held.until]
        for held in free:
            self.client.handler.spawn(held.task.resume, None, held.refusal)

    def behind_gate(self, task: Task) -> bool:
        """Put a task behind a gate that an earlier one has closed, if there is.

        Only for a task that has had no effect. Its own gate opens; those behind it
        go with it.
        """
        with self.lock:
            for directory, gate in self.gates.items():
                if (
                    gate is not task.passed
                    and gate.sequence < task.sequence
                    and _at_or_below(task.path, directory)
                ):
                    gate.waiting.append(task)
                    if task.gate is not None:
                        gate.waiting += self.gates.pop(task.gate).waiting
                        task.gate = None
                    return True
        return False

    def leave(self, task: Task) -> None:
        """The task is done with its steps: whoever waited goes, in order.

        Newcomers still wait, so that they overtake none of them. Those that go do not
        come back behind this gate: one of them that needs several steps closes a gate
        of its own, and is held back until the others are sent.
        """
        if task.gate is None:
            return
        directory, task.gate = task.gate, None
        gate = self.gates[directory]
        while True:
            with self.lock:
                if self.gates.get(directory) is not gate:
                    return  # one of them has taken over
                waiting, gate.waiting = gate.waiting, []
                if not waiting:
                    # Opened only now, so that nobody new overtakes who waited.
                    del self.gates[directory]
                    return
                for other in waiting:
                    other.passed = gate
                self.beginning.update(waiting)
            for other in sorted(waiting, key=lambda task: task.sequence):
                other.begin()

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
