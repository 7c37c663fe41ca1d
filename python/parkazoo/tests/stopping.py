"""A process that stops itself (SIGSTOP) at a step, and is continued later.

What: runs a victim with a failpoint, waits until it stands still there, lets the
test do what others would do meanwhile, ends some or all of its sessions if the test
wants that, and continues it.

Why: a dead client does nothing late; one that was only away does. What it does then
must harm nobody, whatever others have done in between.

Must never: leave a process behind, stopped or not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from servers import PATIENCE_SECONDS, Ensemble, four_letter_word, wait_until

HERE = Path(__file__).resolve().parent
# From a step's stop to its end: connecting again takes some of it.
END_SECONDS = 240.0


class Stopped:
    """A process that has stopped itself at a step. Continue it, or leave the block."""

    def __init__(
        self, script: str, words: Iterable[str], failpoint: str, session_seconds: float
    ) -> None:
        with ExitStack() as files:
            self._said = files.enter_context(tempfile.TemporaryFile())
            self._complained = files.enter_context(tempfile.TemporaryFile())
            self._files = files.pop_all()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *words],
            env={
                **os.environ,
                "PARKAZOO_FAILPOINT": failpoint,
                "PARKAZOO_FAILPOINT_SIGNAL": "STOP",
                "PARKAZOO_SESSION_SECONDS": str(session_seconds),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._complained,
        )

    def __enter__(self) -> Stopped:
        try:
            wait_until(
                lambda: self.process.poll() is not None or self.stands_still,
                "the victim gets to its step",
                END_SECONDS,
            )
            assert self.process.poll() is None, f"never got there: {self.told()}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._files.close()

    @property
    def stands_still(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def go_on(self) -> int:
        """Continue it and wait for its end. Returns its exit code."""
        self.continues()
        return self.process.wait(END_SECONDS)

    def continues(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def told(self) -> str:
        """All it has written so far, for a test that fails."""
        written = []
        for file in (self._said, self._complained):
            written.append(os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace"))
        return "\n".join(written)

    def facts(self) -> dict[str, Any]:
        """What the victim has said of itself: one JSON object a line, put together."""
        found: dict[str, Any] = {}
        for line in self.told().splitlines():
            if line.startswith("{"):
                found.update(json.loads(line))
        return found

    # -- its sessions ------------------------------------------------------------

    def sessions(self, ensembles: list[Ensemble]) -> list[tuple[Ensemble, Any]]:
        """Its session on each ensemble: (id, password)."""
        said = self.facts()["sessions"]
        return [(e, (said[e.hosts][0], bytes.fromhex(said[e.hosts][1])))
                for e in ensembles if e.hosts in said]  # fmt: skip

    def expire(self, ensembles: list[Ensemble]) -> None:
        """Wait until its sessions have ended by themselves: it does not answer."""
        for ensemble, (identity, _) in self.sessions(ensembles):
            wait_until(
                lambda e=ensemble, i=identity: not has_session(e, i),  # type: ignore[misc]
                "the session of a stopped client has ended",
            )

    def lose(self, ensemble: Ensemble) -> None:
        """End one of its sessions, as that ensemble alone would."""
        for other, identity in self.sessions([ensemble]):
            thief = KazooClient(other.hosts, client_id=identity, timeout=30)
            thief.start(PATIENCE_SECONDS)
            thief.stop()
            thief.close()
            wait_until(
                lambda i=identity[0]: not has_session(ensemble, i),  # type: ignore[misc]
                "the session has ended",
            )


def has_session(ensemble: Ensemble, identity: int) -> bool:
    """Does a (standalone) server know of this session?"""
    server = ensemble.servers[0]
    known = four_letter_word(server.client_port, "dump")
    return not known or f"0x{identity:x}" in known
