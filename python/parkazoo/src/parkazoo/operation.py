"""Drives one operation's step machine over the real sessions.

What: sends each call to the ensemble that holds its shard, adds the fence to every
write, resumes the machine with the reply on the connection's own thread, and ends
with the caller's result. If a fence refuses, that call waits until the shard has
arrived where it is going, and is sent there.

Why: no thread switch between steps, no lock held while waiting, one object per
operation. A leaf operation costs one generator and one request.

Must never: send a write again that may have had an effect. One that a fence
refused had none; one whose reply was lost ends in the caller's ConnectionLoss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.protocol.serialization import SetACL

from parkazoo import failpoints
from parkazoo.layout import Layout
from parkazoo.mapping import parent
from parkazoo.steps import Call, Machine, Multi, MultiFailed
from parkazoo.wire import ShardMoved, results_of

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient
    from parkazoo.ensemble import EnsembleClient

Make = Callable[[Layout], Machine]


def run(
    client: ParKazooClient,
    make: Make,
    done: Callable[[Any], None],
    failed: Callable[[Exception], None],
) -> Operation:
    """Begin an operation; exactly one of `done` and `failed` is called, once."""
    operation = Operation(client, make(client._layout), done, failed)
    operation.resume(None, None)
    return operation


class _Part:
    """Takes the reply to one of several calls that were sent together."""

    __slots__ = ("call", "ensemble", "fence", "index", "operation")

    def __init__(self, operation: Operation, index: int, call: Call) -> None:
        self.operation, self.index, self.call = operation, index, call
        self.ensemble: EnsembleClient = None  # type: ignore[assignment]
        self.fence = 0

    def set(self, value: Any = None) -> None:
        if self.ensemble.suspect:
            self.operation.client._fencing.hold(self.ensemble, self.call, self)
        else:
            self.operation.part(self.index, value)

    def set_exception(self, error: Exception) -> None:
        # A call that was never sent has no ensemble, and can be ended all the same.
        doubtful = self.ensemble is not None and self.ensemble.suspect
        if doubtful and isinstance(error, NoNodeError):
            self.operation.client._fencing.hold(self.ensemble, self.call, self)
        else:
            self.operation.part(self.index, error)


class Operation:
    """One operation on its way. Itself the reply object of its only open call."""

    __slots__ = (
        "call",
        "client",
        "done",
        "ensemble",
        "failed",
        "fence",
        "machine",
        "missing",
        "parts",
        "task",
    )

    def __init__(
        self,
        client: ParKazooClient,
        machine: Machine,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.client: Any = client
        self.machine = machine
        self.done, self.failed = done, failed
        self.call: Call = None  # type: ignore[assignment]
        self.ensemble: EnsembleClient = None  # type: ignore[assignment]
        self.fence = 0
        self.parts: list[Any] = []
        self.missing = 0
        self.task: Any = None

    def resume(self, value: Any, error: Exception | None) -> None:
        """Give the machine its reply and send what it asks for next."""
        try:
            if error is not None:
                asked = self.machine.throw(error)
            else:
                asked = self.machine.send(value)
        except StopIteration as finished:
            self.done(finished.value)
        except MultiFailed as failure:
            self.failed(failure.error)
        except Exception as failure:
            self.failed(failure)
        else:
            if isinstance(asked, list):
                self._send_together(asked)
                return
            self.call = asked
            if asked.label:
                failpoints.reached(asked.label, failpoints.BEFORE)
            self.client._submit(asked, self)

    def _send_together(self, calls: list[Call]) -> None:
        if not calls:
            self.resume([], None)
            return
        self.parts = [None] * len(calls)
        self.missing = len(calls)
        for index, call in enumerate(calls):
            self.client._submit(call, _Part(self, index, call))

    # -- replies -----------------------------------------------------------------

    def set(self, value: Any = None) -> None:
        """The reply to the open call. Runs on the connection's thread."""
        call = self.call
        if call.label:
            failpoints.reached(call.label, failpoints.AFTER)
        if type(call.request) is not Multi:
            if self.ensemble.suspect and type(call.request) is not SetACL:
                self.client._fencing.hold(self.ensemble, call, self)
            else:
                self.resume(value, None)
            return
        try:
            results = results_of(value, 1 + len(call.request.also))
        except ShardMoved:
            self.client._fencing.refused(call, self, self.ensemble.name, self.fence)
        except MultiFailed as failed:
            if self.task is None or not self._gate(call.label, failed.error):
                self.resume(None, failed)
        else:
            self.resume(results, None)

    def _gate(self, label: str, error: Exception) -> bool:
        """A first step refused in the way that means: this takes several steps.

        True: an earlier request is in the middle of the same, so this one waits.
        """
        ordering, path = self.task.ordering, self.task.path
        if label == "create.0.child" and isinstance(error, NoNodeError):
            path = parent(path)
        elif label != "delete.0.node" or not isinstance(error, NotEmptyError):
            return False
        if ordering.gates and ordering.behind_gate(self.task):
            self.machine.close()
            return True
        ordering.enter(self.task, path)
        return False

    def set_exception(self, error: Exception) -> None:
        call = self.call
        # A call that was never sent has no ensemble, and can be ended all the same.
        if (
            self.ensemble is not None
            and self.ensemble.suspect
            and type(call.request) is not Multi
            and isinstance(error, NoNodeError)
        ):
            self.client._fencing.hold(self.ensemble, call, self)
        else:
            self.resume(None, error)

    def part(self, index: int, value: Any) -> None:
        """One of several replies; the last of them resumes the machine."""
        with self.client._parts_lock:
            self.parts[index] = value
            self.missing -= 1
            if self.missing:
                return
        task = self.task
        if task is not None and task.ordering.gates and task.too_early(self.parts):
            self.machine.close()
            return
        self.resume(self.parts, None)
