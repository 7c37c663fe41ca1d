"""The one request that Kazoo does not have: writes fenced by a shard's epoch.

What: `Fenced` serializes as a ZooKeeper "multi" that first checks the version of
the shard's fence znode and then does the writes, all or none.

Why: a shard may move to another ensemble at any time. Whoever moves it first
changes the fence's version, so from then on no write of a client that has not
heard of the move can have an effect.

Must never: let an operation's result pass for another's: the reply has one entry
per operation, errors included, which Kazoo's own transaction does not promise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kazoo.exceptions import EXCEPTIONS, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    SetData,
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from parkazoo.mapping import SHARDS
from parkazoo.steps import MultiFailed

MULTI = 14
ERROR = -1
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


class ShardMoved(Exception):
    """The fence refused: the shard is frozen or lives elsewhere. Nothing happened."""


class Fenced(NamedTuple):
    """`operations`, if every fence (path, version) still has that version."""

    fences: tuple[tuple[str, int], ...]
    operations: tuple[Any, ...]

    @property
    def type(self) -> int:
        return MULTI

    def serialize(self) -> bytes:
        parts = [_check(path, version) for path, version in self.fences]
        for operation in self.operations:
            parts.append(_HEADERS[operation.type])
            parts.append(operation.serialize())
        parts.append(_END)
        return b"".join(parts)

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[Any]:
        """One result or exception for the check and for each operation."""
        results: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(buffer, offset)
            offset += multiheader_struct.size
            if done:
                return results
            result: Any = True
            if kind == ERROR:
                code = int_struct.unpack_from(buffer, offset)[0]
                offset += int_struct.size
                result = EXCEPTIONS[code]()
            elif kind == Create.type:
                result, offset = read_string(buffer, offset)
            elif kind == Create2.type:
                path, offset = read_string(buffer, offset)
                result = (
                    path,
                    ZnodeStat._make(stat_struct.unpack_from(buffer, offset)),
                )
                offset += stat_struct.size
            elif kind == SetData.type:
                result = ZnodeStat._make(stat_struct.unpack_from(buffer, offset))
                offset += stat_struct.size
            results.append(result)


def results_of(reply: list[Any], fences: int = 1) -> list[Any]:
    """The operations' results; the first `fences` entries are the fences'.

    :raises ShardMoved: the fence refused.
    :raises MultiFailed: an operation was refused; none had an effect.
    """
    for index, result in enumerate(reply):
        if isinstance(result, Exception) and not isinstance(
            result, (RolledBackError, RuntimeInconsistency)
        ):
            if index < fences:
                raise ShardMoved from result
            raise MultiFailed(index - fences, result)
    return reply[fences:]
