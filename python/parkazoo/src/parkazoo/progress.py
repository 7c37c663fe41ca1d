"""How far long work is, on stderr.

What: on a terminal one line that is written over, a few times a second; elsewhere, as
in a log, a line now and then. The last word is always said.

Must never: write to stdout, or anything at all when told to be quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parkazoo.move import State

# How often, on a terminal and elsewhere.
TERMINAL_SECONDS, LOG_SECONDS = 0.2, 10.0


class Progress:
    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self._due = time.monotonic()
        if not self.terminal:
            self._due += LOG_SECONDS
        self._said = self._text = ""

    def say(self, text: str) -> None:
        self._text = text
        if time.monotonic() >= self._due:
            self._write()
            self._due = time.monotonic()
            self._due += TERMINAL_SECONDS if self.terminal else LOG_SECONDS

    def end(self) -> None:
        if self._text != self._said:
            self._write()
        if self._said and self.terminal and not self.quiet:
            print(file=sys.stderr)

    def _write(self) -> None:
        self._said = self._text
        if self.quiet:
            return
        if self.terminal:
            # What was there may have been longer.
            print(f"\r{self._text}\033[K", end="", file=sys.stderr, flush=True)
        else:
            print(self._text, file=sys.stderr, flush=True)

    def moved(self, state: State) -> None:
        pause = f"longest pause {state.pause_max * 1000:.0f} ms"
        shards = f"{state.shards_moved}/{state.shards_total} shards"
        self.say(f"{shards}, {state.nodes_copied} nodes, {pause}")


@contextmanager
def counted(what: str, quiet: bool) -> Iterator[Callable[[], None]]:
    """What is yielded is to be called for each of `what`."""
    count, progress = 0, Progress(quiet)
    progress.say(f"{count} {what}")

    def one() -> None:
        nonlocal count
        count += 1
        progress.say(f"{count} {what}")

    try:
        yield one
    finally:
        progress.end()
