"""One read of a bucket's Stat for all who ask while it waits to be sent.

What: `Shared`, which is request and reply in one, and the rule who may join it.

Why: callers that ask for the same directory at once are told the same, at the cost of
one request.

Must never: tell anybody of a moment before he asked, or of one before the requests that
he asked behind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo.protocol.serialization import Exists, GetACL, GetData

from parkazoo.layout import BucketStat
from parkazoo.wire import Guarded

_OF_ONE_NODE = (Exists, GetACL, GetData)


class Shared:
    """A bucket's Stat, read once for all who asked while the read was in the queue.

    Request and reply in one. It leaves the queue after each of them has asked, and is
    answered before any of them, so to each it is a read of its own. `leaving` is set
    when it is put on the wire: who asks from then on needs another. So does who asks
    behind a request that could show, or change, what the read is about.
    """

    __slots__ = ("_done", "_replies", "_telling", "_told", "leaving", "request")
    type = Exists.type
    watcher = None

    def __init__(self, request: BucketStat) -> None:
        self.request = request
        self.leaving = self._done = False
        self._replies: deque[Any] = deque()
        self._telling = threading.Lock()
        self._told: Callable[[Any], None] = lambda reply: None

    def join(self, reply: Any) -> None:
        self._replies.append(reply)
        if self._done:
            self._tell()  # it was answered just now, and this reply overlooked

    def bears(self, request: Any) -> bool:
        """May others join although this was queued behind it?

        Only if it is about the directory's own node on another shard. Not so a
        listing, a sync, or anything about a child: who asks behind that must not be
        told of an earlier moment.
        """
        kind, home = type(request), self.request.home
        if home is None:
            return False
        if kind is Guarded:
            return bool(request.only_sets(home))
        return kind in _OF_ONE_NODE and bool(request.path == home)

    def serialize(self) -> Any:
        self.leaving = True
        return self.request.serialize()

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        return self.request.deserialize(buffer, offset)

    def set(self, value: Any = None) -> None:
        self._answer(lambda reply: reply.set(value))

    def set_exception(self, error: Exception) -> None:
        self._answer(lambda reply: reply.set_exception(error))

    def _answer(self, tell: Callable[[Any], None]) -> None:
        self._told = tell
        self.leaving = self._done = True
        self._tell()

    def _tell(self) -> None:
        """One thread at a time tells, so that all are told in the order they asked."""
        while self._replies:
            if not self._telling.acquire(blocking=False):
                return  # whoever is at it looks again
            try:
                while self._replies:
                    self._told(self._replies.popleft())
            finally:
                self._telling.release()
