"""Waiting for an ensemble only while it may still answer.

What: `Patient` is a session as those see it who change the table. What is asked of it
is waited for as usual; but when it has been away for too long, every wait ends with
an error, and what had not been sent yet never is.

Why: a Kazoo client keeps what it is asked for until there is a connection again,
which may be never, and a shard may be frozen meanwhile.

Why it is safe: whoever stops waiting is to the servers as one who was killed there.
What was on the wire may still arrive, as it may then; what was in the queue is taken
out of it before anything is sent on the next connection.

Must never: end a wait because an answer takes long, from a server that is there.
"""

from __future__ import annotations

import time
from typing import Any

from parkazoo.connection import BatchingClient
from parkazoo.errors import MemberAway

# How long an ensemble may be away before nobody waits for it any more.
AWAY_SECONDS = 15.0
# How often it is looked whether it is there.
LOOK_SECONDS = 0.25


class Patient(BatchingClient):
    """A session, lent, with another way to wait: Kazoo's own methods, on top of it.

    `begun`: when the work began that it is for; being away before that is no matter.
    `given_up`: somebody has stopped waiting, so nothing is sent that still waits to be.
    """

    def __init__(self, session: Any, begun: float) -> None:
        self.lent = session
        self._begun = begun
        self.given_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lent, name)

    @property
    def handler(self) -> Any:
        return _Handler(self)

    def _call(self, request: Any, async_object: Any) -> Any:
        return self.lent._call(request, async_object)

    def hopeless(self) -> Exception | None:
        """Why nobody should wait for it any longer, if so."""
        if self.lent.refused is not None:
            refused: Exception = self.lent.refused
            return refused
        since = self.lent.away_since
        if since is None or self.lent.connected:
            return None
        if time.monotonic() - max(since, self._begun) < AWAY_SECONDS:
            return None
        return MemberAway(
            f"ensemble {self.name} cannot be reached; nothing moves while one of the"
            " ensembles is away. When it is back, give the same command again; if it"
            f" has other addresses now, `parkazoo set-hosts {self.name} HOSTS` says so"
            " to all, and if several have, give each of these commands `--hosts` with"
            " all of the new addresses"
        )


class _Handler:
    """A session's handler, whose results wait as a `Patient` does."""

    def __init__(self, patient: Patient) -> None:
        self._patient = patient
        self._handler = patient.lent.handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def async_result(self) -> Any:
        return Awaited(self._handler.async_result(), self._patient)


class Awaited:
    """A result that is waited for until there is no hope for it."""

    def __init__(self, result: Any, patient: Patient) -> None:
        self._result, self._patient = result, patient

    @property
    def given_up(self) -> bool:
        return self._patient.given_up

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not block or timeout is not None:
            return self._result.get(block, timeout)
        while not self._result.ready():
            self._result.wait(LOOK_SECONDS)
            if self._result.ready() or self._patient.hopeless() is None:
                continue
            # First said, then looked again: a connection that is made meanwhile is
            # either seen here, or made by somebody who sees what is said.
            self._patient.given_up = True
            why = self._patient.hopeless()
            if why is not None:
                raise why
            self._patient.given_up = False
        return self._result.get()
