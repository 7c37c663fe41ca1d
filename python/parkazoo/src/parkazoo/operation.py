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

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import SetACL

from parkazoo import failpoints
from parkazoo.layout import Layout
from parkazoo.mapping import Table
from parkazoo.steps import Call, Machine, Multi, MultiFailed
from parkazoo.wire import ShardMoved

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

    __slots__ = ("call", "ensemble", "index", "missing", "operation", "parts", "table")

    def __init__(self, operation: Driven, index: int, call: Call) -> None:
        self.operation, self.index, self.call = operation, index, call
        self.parts, self.missing = operation.parts, operation.missing
        self.ensemble: EnsembleClient = None  # type: ignore[assignment]
        self.table: Table = None  # type: ignore[assignment]

    @property
    def losses(self) -> int:
        return self.operation.losses

    def set(self, value: Any = None) -> None:
        call = self.call
        if call.label:
            failpoints.reached(call.label, failpoints.AFTER)
        if self.ensemble.newest > self.table.generation:
            fencing = self.operation.client._fencing
            if type(call.request) is not Multi:
                fencing.doubted(call, self, value)
                return
            if type(value) is not ShardMoved:
                fencing.passed(self)
        if type(value) is ShardMoved:
            self.operation.client._fencing.refused(call, self, value.number)
        else:
            self.believe(value)

    def set_exception(self, error: Exception) -> None:
        if _doubtful(self, self.call, error):
            self.operation.client._fencing.doubted(self.call, self, error)
        else:
            self.believe(error)

    def believe(self, value: Any) -> None:
        operation = self.operation
        if operation.too_early(self.parts, value):
            return  # the others come for nothing: this one stays missing
        self.parts[self.index] = value
        if not self.missing.pop():
            operation.resume(self.parts, None)


def _doubtful(reply: Any, call: Call, error: Exception) -> bool:
    """Does this read say "absent" of a shard that may just have left?

    A call that was never sent has no ensemble, and can be ended all the same.
    """
    return (
        isinstance(error, NoNodeError)
        and type(call.request) is not Multi
        and reply.ensemble is not None
        and reply.ensemble.newest > reply.table.generation
    )


class Driven:
    """One operation on its way. Itself the reply object of its only open call.

    Who inherits says in `done` and `failed` what becomes of it.
    """

    __slots__ = (
        "call",
        "client",
        "ensemble",
        "losses",
        "machine",
        "missing",
        "parts",
        "table",
    )

    # Set when first used, not before: an operation is made for every request.
    call: Call
    table: Table
    parts: list[Any]
    missing: list[bool]

    def __init__(self, client: ParKazooClient, machine: Machine) -> None:
        self.client: Any = client
        self.machine = machine
        self.losses: int = self.client._sessions.losses
        self.ensemble: EnsembleClient = None  # type: ignore[assignment]

    def done(self, value: Any) -> None:
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        raise NotImplementedError

    def seen_to(self, call: Call, refusal: MultiFailed) -> bool:
        """May a first step that was refused be due to an earlier request's steps?

        True: it has been seen to. This operation begins anew, or is resumed, when
        its turn has come.
        """
        return False

    def too_early(self, parts: list[Any], reply: Any) -> bool:
        """The same, of one of the replies to several calls: it begins anew. Asked as
        each comes, not when all have: the steps may be over by then."""
        return False

    def resume(self, value: Any, error: Exception | None) -> None:
        """Give the machine its reply and send what it asks for next.

        If a session has been lost since the operation began, it fails as if all its
        requests had been sent there: an answer that comes from another ensemble's
        session, which is about to be closed, must not be believed after LOST was told.
        """
        sessions = self.client._sessions
        if self.losses != sessions.losses:
            self.machine.close()
            self.failed(sessions.loss())
            return
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
        # Each reply takes one out; replies come on the threads of several
        # connections, and taking from a list is indivisible. The last finds False.
        self.missing = [False] + [True] * (len(calls) - 1)
        later: dict[EnsembleClient, list[Any]] = {}
        submit = self.client._submit
        for index, call in enumerate(calls):
            if call.label:
                failpoints.reached(call.label, failpoints.BEFORE)
            submit(call, _Part(self, index, call), later)
        for ensemble, replies in later.items():
            ensemble.send_queued(replies)

    # -- replies -----------------------------------------------------------------

    def set(self, value: Any = None) -> None:
        """The reply to the open call. Runs on the connection's thread."""
        call = self.call
        if call.label:
            failpoints.reached(call.label, failpoints.AFTER)
        if self.ensemble.newest > self.table.generation:
            fencing = self.client._fencing
            if type(call.request) is not Multi:
                if type(call.request) is not SetACL:
                    fencing.doubted(call, self, value)
                    return
            elif type(value) is not ShardMoved:
                fencing.passed(self)
        if type(value) is ShardMoved:
            self.client._fencing.refused(call, self, value.number)
        elif type(value) is MultiFailed:
            if not self.seen_to(call, value):
                self.resume(None, value)
        else:
            self.resume(value, None)

    def set_exception(self, error: Exception) -> None:
        if _doubtful(self, self.call, error):
            self.client._fencing.doubted(self.call, self, error)
        else:
            self.resume(None, error)

    def believe(self, value: Any) -> None:
        """The answer to a read that was in doubt has turned out to be good."""
        if isinstance(value, Exception):
            self.resume(None, value)
        else:
            self.resume(value, None)


class Operation(Driven):
    """An operation of our own, of which somebody is told."""

    __slots__ = ("_done", "_failed")

    def __init__(
        self,
        client: ParKazooClient,
        machine: Machine,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(client, machine)
        self._done, self._failed = done, failed

    def done(self, value: Any) -> None:
        self._done(value)

    def failed(self, error: Exception) -> None:
        self._failed(error)
