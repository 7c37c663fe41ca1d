"""How a command ends: its answer, its error, and who makes it stop.

What: writes the answer to stdout, one document with `--json`, and an error to stderr,
with `--json` to stdout, too, so that there is one document whatever happens. Whoever
ends processes in order (SIGTERM) is heard as Ctrl-C is.

Must never: print a stack trace for what an operator can cause, take an answer that
could not be written for given, or write two documents.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.exceptions import (
    AuthFailedError,
    KazooException,
    NoAuthError,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import KazooTimeoutError

from parkazoo import arguments, credentials
from parkazoo.errors import ParKazooError
from parkazoo.mapping import ConfigurationInvalid

DONE, WRONG, FAILED = 0, 1, 2
# Whoever read the answer had seen enough: as a shell tells of those whom that ends.
CUT_SHORT = 128 + signal.SIGPIPE


class Unwritten(Exception):
    """The answer could not be written; the message says why."""


EXPECTED = (
    arguments.Usage,
    ConfigurationInvalid,
    KazooException,
    KazooTimeoutError,
    KeyboardInterrupt,
    Unwritten,
)


def message(error: BaseException, options: Any) -> str:
    """What an operator is told of one of those that are `EXPECTED`."""
    if isinstance(error, KazooTimeoutError):
        said = f"{error}; {credentials.doubt(options)}"
        if options.command == "status":  # it is what shows who answers
            return f"{said} Name another ensemble of the namespace in `--hosts`"
        return (
            f"{said} `parkazoo status` shows which of a namespace's ensembles answer,"
            " and `parkazoo set-hosts` says where one is now"
        )
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; the same command may be given again"
    if isinstance(error, ParKazooError) or not isinstance(error, KazooException):
        return str(error)
    if isinstance(error, (AuthFailedError, SessionClosedRequireSaslError)):
        given = sorted({scheme for scheme, _ in arguments.auth(options)})
        schemes = (
            f" Do they know {' and '.join(given)}, the scheme that `--auth` has before"
            " its first colon (a name and a password are `digest:NAME:PASSWORD`)?"
        )
        return (
            "the servers do not let in who asks: do they want `--sasl`, or another one,"
            " and are the user and the password right?"
        ) + (schemes if given else "")
    if isinstance(error, NoAuthError):
        what = getattr(options, "path", "") or str(error) or "what was asked for"
        return (
            f"whoever asks has no right to {what}; give `--auth SCHEME:CREDENTIAL` of"
            " somebody who has"
        )
    return f"ZooKeeper refused: {type(error).__name__} {error}".rstrip()


def failure(error: BaseException, options: Any) -> dict[str, str]:
    """The same, with what kind of error it is."""
    return {"kind": type(error).__name__, "message": message(error, options)}


class Answer:
    """What goes to stdout, once."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.given = False

    def give(self, document: Any, lines: list[str]) -> None:
        self.given = True
        if sys.stdout is None:
            raise Unwritten("the answer could not be written: stdout is closed")
        try:
            print(json.dumps(document) if self.as_json else "\n".join(lines))
            sys.stdout.flush()
        except OSError as error:
            # Python would try again as it ends, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise Unwritten(
                f"the answer could not be written: {error.strerror}"
            ) from None

    def failed(self, kind: str, message: str) -> int:
        print(f"parkazoo: {message}", file=sys.stderr)
        if self.as_json and not self.given:
            with suppress(Unwritten, BrokenPipeError):
                self.give({"error": {"kind": kind, "message": message}}, [])
        return FAILED


@contextmanager
def stopped_by(stop: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `stop` meanwhile, and end what still waits when they come
    again. Only a main thread hears of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        if told:
            raise KeyboardInterrupt
        told.append(number)
        stop()

    before = {n: signal.signal(n, tell) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    raise KeyboardInterrupt
