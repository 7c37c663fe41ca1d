"""A fenced write on the wire: a version check and operations, all or none.

What: the request that nearly every write of ours is, with a serializer and a
deserializer that know just that. The check of a shard's fence is bytes made once
per fence; of a refused request only the operation that refused it is reported.

Why not Kazoo's transaction request: it builds several objects per operation, which
would double the CPU of a write, and it cannot read the reply of a create that
returns a Stat.

Must never: be resent after an unknown outcome, or hide which operation refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    SetData,
    Transaction,
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

from parkazoo.steps import MultiFailed

# Index that `MultiFailed` has when the fence itself was refused.
FENCE = -1

_ERROR = -1
_END = multiheader_struct.pack(_ERROR, True, -1)
_HEADERS = {
    kind.type: multiheader_struct.pack(kind.type, False, -1)
    for kind in (CheckVersion, Create, Create2, Delete, SetData)
}
_HEADER_BYTES = multiheader_struct.size
_STAT_BYTES = stat_struct.size


@lru_cache(maxsize=4096)
def fence_bytes(path: str, version: int) -> bytes:
    """The check of one fence, ready to send."""
    return _HEADERS[CheckVersion.type] + bytes(CheckVersion(path, version).serialize())


class FencedMulti:
    """Do `operations` if the fence still has its version; all or none of them.

    The reply is the list of the operations' results, without the fence's, or a
    list of one `MultiFailed`. It is a list because Kazoo expects one of every
    request of this type.
    """

    __slots__ = ("fence", "operations")
    type = Transaction.type

    def __init__(self, fence: bytes, operations: Sequence[Any]) -> None:
        self.fence = fence
        self.operations = operations

    def __repr__(self) -> str:
        return f"FencedMulti(operations={self.operations!r})"

    def serialize(self) -> bytes:
        parts = [self.fence]
        for operation in self.operations:
            parts.append(_HEADERS[operation.type])
            parts.append(operation.serialize())
        parts.append(_END)
        return b"".join(parts)

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        results: list[Any] = []
        fences = 1 if self.fence else 0
        while True:
            kind, done, _ = multiheader_struct.unpack_from(data, offset)
            offset += _HEADER_BYTES
            if done:
                return results[fences:]
            if kind == SetData.type:
                results.append(ZnodeStat._make(stat_struct.unpack_from(data, offset)))
                offset += _STAT_BYTES
            elif kind in (Create.type, Create2.type):
                path, offset = read_string(data, offset)
                if kind == Create.type:
                    results.append(path)
                    continue
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                results.append((path, stat))
                offset += _STAT_BYTES
            elif kind == _ERROR:
                (code,) = int_struct.unpack_from(data, offset)
                if code:
                    failed = MultiFailed(len(results) - fences, EXCEPTIONS[code]())
                    return [failed]
                # Zero stands for an operation before the one that was refused.
                results.append(None)
                offset += int_struct.size
            else:
                results.append(True)
