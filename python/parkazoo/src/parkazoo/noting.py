"""Replies that note, on their way to a pooled client, what it made and deleted.

Must never: answer before it is noted, or a client that stops right then would leave
its node behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionLoss, OperationTimeoutError
from kazoo.protocol.serialization import Delete, Transaction

from parkazoo.estates import Doubt, Estate
from parkazoo.steps import EPHEMERAL, SEQUENCE

if TYPE_CHECKING:
    from parkazoo.pool import PooledClient

# Errors after which it is not known whether a node was created.
_UNKNOWN = (ConnectionLoss, OperationTimeoutError)


class Deletion:
    """Notes that a node is gone, then answers."""

    __slots__ = ("async_object", "member", "path")

    def __init__(self, member: PooledClient, path: str, async_object: Any) -> None:
        self.member, self.path, self.async_object = member, path, async_object

    def set(self, value: Any = None) -> None:
        self.member._carrier.estates.deleted(self.path)
        self.async_object.set(value)

    def set_exception(self, error: Exception) -> None:
        self.async_object.set_exception(error)


class Creation:
    """Notes what a creation or a transaction made, or may have made, then answers."""

    __slots__ = ("async_object", "estate", "member", "operations", "whole")

    def __init__(
        self,
        member: PooledClient,
        estate: Estate,
        operations: list[Any],
        async_object: Any,
    ) -> None:
        self.member, self.estate = member, estate
        self.operations, self.async_object = operations, async_object
        self.whole = False

    def set(self, value: Any = None) -> None:
        member, estates = self.member, self.member._carrier.estates
        results = value if self.whole else [value]
        if not any(isinstance(result, Exception) for result in results):
            for operation, result in zip(self.operations, results, strict=True):
                if isinstance(operation, Delete):
                    estates.deleted(operation.path)
                elif getattr(operation, "flags", 0) & EPHEMERAL:
                    path = result[0] if isinstance(result, tuple) else result
                    estates.created(self.estate, path)
        estates.end(self.estate)
        serial = estates.crowded()
        if serial is not None:
            member.handler.spawn(member._carrier.prune, serial)
        if self.whole:
            value = Transaction.unchroot(member, value)
        self.async_object.set(value)

    def set_exception(self, error: Exception) -> None:
        estates = self.member._carrier.estates
        if isinstance(error, _UNKNOWN):
            for operation in self.operations:
                if getattr(operation, "flags", 0) & EPHEMERAL:
                    sequence = bool(operation.flags & SEQUENCE)
                    estates.doubted(self.estate, Doubt(operation.path, sequence))
        estates.end(self.estate)
        self.async_object.set_exception(error)
