"""Requests that Kazoo does not have: writes fenced by a shard's epoch, and watches that
are left again.

What: `Fenced` serializes as a ZooKeeper "multi" that first checks the version of
the shard's fence znode and then does the writes, all or none.

Why: a shard may move to another ensemble at any time. Whoever moves it first
changes the fence's version, so from then on no write of a client that has not
heard of the move can have an effect. And a connection that was dropped takes its
watches along; servers leave them anew, or tell what happened meanwhile, if they are
asked to, as ZooKeeper's own clients do and Kazoo does not.

Must never: let an operation's result pass for another's: the reply has one result
per operation, or names the one that was refused, which Kazoo's own transaction does
not promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kazoo.exceptions import (
    EXCEPTIONS,
    BadArgumentsError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    SetData,
    int_struct,
    long_struct,
    multiheader_struct,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from parkazoo.mapping import SHARDS
from parkazoo.steps import MultiFailed

MULTI = 14
SET_WATCHES = 101
ERROR = -1
_HEADER_BYTES = multiheader_struct.size
_NOT_THE_REASON = (0, RolledBackError.code, RuntimeInconsistency.code)
_stat = ZnodeStat._make
_END = multiheader_struct.pack(-1, True, -1)
_HEADERS = {
    kind: multiheader_struct.pack(kind, False, -1)
    for kind in (
        CheckVersion.type,
        Create.type,
        Create2.type,
        Delete.type,
        SetData.type,
    )
}


@lru_cache(maxsize=2 * SHARDS)
def _check(path: str, version: int) -> bytes:
    """The check of a fence, on the wire. Fences rarely change."""
    parts = (_HEADERS[CheckVersion.type], write_string(path), int_struct.pack(version))
    return b"".join(parts)


def refuse_unsendable(*texts: str) -> None:
    """:raises BadArgumentsError: half a character is in it, say; it is not shown, since
    it may be a password."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadArgumentsError(
                f"this cannot be sent to a server: {error}"
            ) from None


class SetWatches(NamedTuple):
    """Leave these watches on a connection as they were left on the one before it.

    Of what has happened after `zxid`, which was the last that was heard of, servers
    send the event instead. `data`: watches of nodes that were there; `absent`: of
    nodes that were not; `children`: of listings.
    """

    zxid: int
    data: Sequence[str]
    absent: Sequence[str]
    children: Sequence[str]

    @property
    def type(self) -> int:
        return SET_WATCHES

    def serialize(self) -> bytes:
        parts = [long_struct.pack(self.zxid)]
        for paths in (self.data, self.absent, self.children):
            parts.append(int_struct.pack(len(paths)))
            parts += [write_string(path) for path in paths]
        return b"".join(parts)

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """There is nothing in the reply."""


class ShardMoved(Exception):
    """A fence refused, that with this number: its shard is frozen or lives elsewhere.
    Nothing happened."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.number = number


class Fenced:
    """`operations`, if every fence (path, version) still has that version.

    The reply is the list of the operations' results; or, as a value, the
    `ShardMoved` or `MultiFailed` that says why nothing happened.
    """

    __slots__ = ("fences", "operations")
    type = MULTI

    def __init__(
        self, fences: tuple[tuple[str, int], ...], operations: tuple[Any, ...]
    ) -> None:
        self.fences, self.operations = fences, operations

    def __repr__(self) -> str:
        return f"Fenced(fences={self.fences!r}, operations={self.operations!r})"

    def only_sets(self, path: str) -> bool:
        """Does it set the value of this node, and nothing else?"""
        for operation in self.operations:
            if type(operation) is not SetData or operation.path != path:
                return False
        return True

    def serialize(self) -> bytes:
        parts = [_check(path, version) for path, version in self.fences]
        for operation in self.operations:
            parts.append(_HEADERS[operation.type])
            parts.append(operation.serialize())
        parts.append(_END)
        return b"".join(parts)

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        """The results, as servers give them: of all operations, or all errors."""
        if multiheader_struct.unpack_from(buffer, offset)[0] == ERROR:
            return self._refused(buffer, offset)
        offset += len(self.fences) * _HEADER_BYTES
        results: list[Any] = []
        for operation in self.operations:
            kind = operation.type
            offset += _HEADER_BYTES
            result: Any = True
            if kind == SetData.type:
                result = _stat(stat_struct.unpack_from(buffer, offset))
                offset += stat_struct.size
            elif kind == Create.type:
                result, offset = read_string(buffer, offset)
            elif kind == Create2.type:
                path, offset = read_string(buffer, offset)
                result = path, _stat(stat_struct.unpack_from(buffer, offset))
                offset += stat_struct.size
            results.append(result)
        return results

    def _refused(self, buffer: bytes, offset: int) -> ShardMoved | MultiFailed:
        """Which entry is the reason; the others only say that it was not theirs."""
        for index in range(len(self.fences) + len(self.operations)):
            code = int_struct.unpack_from(buffer, offset + _HEADER_BYTES)[0]
            offset += _HEADER_BYTES + int_struct.size
            if code in _NOT_THE_REASON:
                continue
            error = EXCEPTIONS[code]()
            if index >= len(self.fences):
                return MultiFailed(index - len(self.fences), error)
            moved = ShardMoved(index)
            moved.__cause__ = error
            return moved
        raise ValueError("a multi was refused and no operation is the reason")


class Guarded(Fenced):
    """A user's write: sent only while every session of its client is known to be there.

    A lock may be an ephemeral in one of the other sessions, and nobody there would
    refuse this write if that has expired.
    """

    __slots__ = ()


def results_of(reply: Any) -> list[Any]:
    """The operations' results.

    :raises ShardMoved: the fence refused.
    :raises MultiFailed: an operation was refused; none had an effect.
    """
    if isinstance(reply, Exception):
        raise reply
    results: list[Any] = reply
    return results
