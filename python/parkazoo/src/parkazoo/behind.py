"""Do servers that turn a session away know less than it has seen?

What: asks them in a session of its own, which they let in.

Why: ZooKeeper closes the connection of a session that has seen more than its server
has, without a word. If the whole ensemble has lost what it had acknowledged (its data
is gone, or came back from an older backup), it does so for ever: the client would be
SUSPENDED, and nobody would know why.

Must never: take a server that lags, or that is cut off from its ensemble, for one that
has lost something. So it asks for a write, which a majority acknowledges after the
other session had seen what it has seen: if its number is smaller, that was forgotten.
The write is one that ZooKeeper refuses, so it changes nothing wherever it arrives.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

from parkazoo.layout import BASE, CONFIG, IDENTITY
from parkazoo.mapping import ConfigurationInvalid, Table

if TYPE_CHECKING:
    from parkazoo.ensemble import EnsembleClient
    from parkazoo.sessions import Sessions

# Servers that begin or elect turn clients away for a moment; many clients wait.
FIRST_LOOK_SECONDS = 1.0
NEXT_LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class Behind:
    """Servers whose newest transaction, `known`, is older than `seen`, a session's.

    `nothing`: they hold nothing of a namespace. `copy`: the table they hold, if it can
    be read. `said`: the name they have for themselves, if any.
    """

    seen: int
    known: int
    nothing: bool
    copy: Table | None
    said: str | None

    def why(self, name: str) -> str:
        """Why the session is given up, when they are ours all the same."""
        return (
            f"the servers of {name} have lost what they had acknowledged: their newest"
            f" transaction is {self.known:#x}, and this session has seen"
            f" {self.seen:#x}. Was older data brought back there?"
        )


class Looking:
    """When to look, and what was seen. `turned_away` is called by one thread only."""

    def __init__(self) -> None:
        self.found: Behind | None = None
        self._running = False
        self._next: float | None = None

    def let_in(self) -> None:
        self.found = self._next = None

    def turned_away(self, seen: int) -> tuple[Behind | None, bool]:
        """(what an earlier look has found, is it time for one now?)"""
        now = time.monotonic()
        found, self.found = self.found, None
        if self._running or not seen:
            return None, False
        if found is not None and found.seen == seen:
            return found, False
        if self._next is None:
            self._next = now + FIRST_LOOK_SECONDS
        if now < self._next:
            return None, False
        self._next = now + NEXT_LOOK_SECONDS
        self._running = True
        return None, True

    def look(self, sessions: Sessions, ensemble: EnsembleClient) -> None:
        """Waits, so it has a routine of its own. What it finds is known by the next
        time that the session is turned away."""
        seen, found = ensemble.last_zxid, None
        try:
            with sessions.visiting(ensemble.hosts_string) as visited:
                if visited is not None:
                    found = _compare(seen, visited)
        except KazooException:
            pass  # not known
        finally:
            if self._next is not None:  # it has not been let in meanwhile
                self.found = found
            self._running = False


def _compare(seen: int, visited: EnsembleClient) -> Behind | None:
    copy = said = None
    with suppress(NoNodeError, NoAuthError):
        visited.delete(f"{BASE}/none-{uuid.uuid4().hex}")
    with suppress(NoNodeError):
        said = visited.get(IDENTITY)[0].decode(errors="replace")
    try:
        copy = Table.deserialize(visited.get(CONFIG)[0])
        nothing = False
    except NoNodeError:
        nothing = said is None
    except ConfigurationInvalid:
        nothing = False
    known = visited.last_zxid
    return Behind(seen, known, nothing, copy, said) if known < seen else None
