"""Waiting for a server, and for the wake-up byte of callers, at little cost.

What: the client's handler as a connection sees it, with a faster `select` that ends
when the server has been silent for too long. It keeps one epoll object for the pair of
sockets that Kazoo's loop waits for; every other question, and every handler but Kazoo's
own threading one, goes to the handler's own `select`, which knows how to yield to other
green threads.

Why silence ends it: Kazoo puts the end of a wait off with each request that it sends,
so of a server that answers nothing it hears late, or never.

Must never: wait beyond the time at which a server is given up, or give one up without
a last look.
"""

from __future__ import annotations

import select as _select
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler

_Answer = tuple[list[Any], list[Any], list[Any]]


class Waiting:
    """`silent_until`: when the server is given up if nothing is heard from it; given
    True, by who is writing and does not listen.

    Everything but `select` is the client's handler itself.
    """

    def __init__(self, handler: Any, silent_until: Callable[[bool], float]) -> None:
        self._handler = handler
        self._silent_until = silent_until
        stock = SequentialThreadingHandler.select
        self._threading = getattr(type(handler), "select", None) is stock
        self._watched: tuple[Any, ...] = ()
        self._epoll: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    @property
    def select_replaced(self) -> bool:
        """Somebody put a `select` of their own on the handler, to inject faults."""
        select = self._handler.select
        return getattr(select, "__func__", None) is not type(self._handler).select

    def refuse_silence(self, writing: bool = False) -> None:
        """
        :raises ConnectionDropped: the server has been silent for too long.
        """
        if time.monotonic() > self._silent_until(writing):
            raise ConnectionDropped("no reply within the read timeout")

    def _within(self, timeout: float, writing: bool) -> float:
        left = self._silent_until(writing) - time.monotonic()
        return min(timeout, max(0.0, left))

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None = None,
    ) -> _Answer:
        loop = len(readers) == 2 and not writers
        if timeout is None or self.select_replaced or not (loop or writers):
            answer: _Answer = self._handler.select(readers, writers, others, timeout)
            return answer
        # A process that was stopped meanwhile finds nothing, whatever has come of it.
        seconds = self._within(timeout, not loop)
        if loop:
            ready = self._ready(readers, seconds) or self._ready(readers, 0.0)
            answer = ready, [], []
        else:
            answer = self._handler.select([], writers, [], seconds)
            if not answer[1]:
                answer = self._handler.select([], writers, [], 0)
        if not any(answer):
            self.refuse_silence(not loop)
        return answer

    def _ready(self, readers: Sequence[Any], seconds: float) -> list[Any]:
        # Looked up each time: monkey patching by gevent or eventlet removes it.
        epoll = getattr(_select, "epoll", None)
        if epoll is None or not self._threading:
            found: list[Any] = self._handler.select(readers, [], [], seconds)[0]
            return found
        first, second = readers
        if self._watched != (first, second):
            self.forget()
            self._epoll = epoll()
            self._epoll.register(first.fileno(), _select.EPOLLIN)
            self._epoll.register(second.fileno(), _select.EPOLLIN)
            self._watched = (first, second)
        ready = self._epoll.poll(seconds)
        if len(ready) == 2:
            return [first, second]
        return [first if fd == first.fileno() else second for fd, _ in ready]

    def forget(self) -> None:
        """Drop the epoll object; the sockets it watched are about to go away."""
        epoll, self._epoll, self._watched = self._epoll, None, ()
        if epoll is not None:
            epoll.close()
