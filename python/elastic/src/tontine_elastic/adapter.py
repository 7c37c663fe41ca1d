"""The contract of adapters, as far as every adapter has it in common.

JSON-RPC 2.0 on standard input and output, one message a line; `docs/reference/adapters.md` is the
contract. An adapter hands `serve` its methods:

    serve({"describe": describe, "observe": observe})

A method gets the parameters of its call and a deadline, and returns the result or raises a
`Refusal`. Calls are carried out one after the other, in the order in which they came. A call that
misses its deadline is answered as one that may pass, and is left to end by itself.

Must never: write anything but answers to standard output, keep later calls waiting for good,
or show the text of an exception that nobody foresaw. It may hold secrets.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

#: The longest line of either side, in bytes, without its end.
LINE_BYTES_MAX = 1 << 20
#: How long a call may take: a little less than the 10 s for which a controller waits.
CALL_SECONDS = 8.5
#: What is kept of a message, in characters. A controller keeps 200 bytes.
MESSAGE_MAX = 300

NO_JSON = -32700
NO_REQUEST = -32600
NO_METHOD = -32601
PARAMS = -32602
PASSING = -32000
REFUSED = -32001
CREDENTIALS = -32002

_FLEET = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,100}")

Json = Any


class Refusal(Exception):
    """Why a call failed: a code of the contract, and a sentence for people, without secrets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        words = " ".join(message.split())
        self.message = words if len(words) <= MESSAGE_MAX else words[: MESSAGE_MAX - 1] + "…"


def passing(message: str) -> Refusal:
    """It may pass by itself, so the call is worth repeating."""
    return Refusal(PASSING, message)


def refused(message: str) -> Refusal:
    """The same call will be refused again."""
    return Refusal(REFUSED, message)


def rejected(message: str) -> Refusal:
    """Credentials are missing, wrong or expired."""
    return Refusal(CREDENTIALS, message)


class Deadline:
    """Until when a call must be answered."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; 0 when it has passed."""
        return max(0.0, self._until - time.monotonic())

    def hold(self, doing: str) -> None:
        """Raises if it has passed, so that a call that was given up begins nothing more."""
        if self.left() == 0.0:
            raise passing(f"cannot {doing}: the time of the call is over; call again")


class Params:
    """The parameters of a call. Fields that nobody asks for are passed over."""

    def __init__(self, fields: Mapping[str, Json]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field that must be there, and be a text that is not empty."""
        value = self._fields.get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "it must be a text")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self._wrong(name, "it has half a letter, which is no UTF-8")
        return value

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return self._fields.get(name) is not None

    def fleet(self) -> str:
        """The name of the fleet."""
        return self._matching("fleet", _FLEET, "1 to 64 letters, digits, hyphens and underscores")

    def token(self) -> str:
        """The token of a machine."""
        return self._matching("token", _TOKEN, "1 to 100 letters, digits, hyphens, _ and dots")

    def _matching(self, name: str, pattern: re.Pattern[str], what: str) -> str:
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise self._wrong(name, f"it must be {what}")
        return value

    @staticmethod
    def _wrong(name: str, why: str) -> Refusal:
        where = "docs/reference/adapters.md lists the parameters"
        return Refusal(PARAMS, f"the parameter {name!r} cannot be used: {why}; {where}")


Method = Callable[[Params, Deadline], Json]


def log(line: str) -> None:
    """A line for the log, which is standard error."""
    print(" ".join(line.split()), file=sys.stderr, flush=True)


def serve(
    methods: Mapping[str, Method],
    requests: BinaryIO | None = None,
    answers: BinaryIO | None = None,
    call_seconds: float = CALL_SECONDS,
) -> None:
    """Answers calls until the requests end."""
    requests = requests or sys.stdin.buffer
    if answers is None:
        answers = sys.stdout.buffer
        # A print that slipped in must not end up between answers.
        sys.stdout = sys.stderr
    while line := requests.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
            _skip_line(requests)
            why = f"the line has more than {LINE_BYTES_MAX} bytes; send less in one message"
            answer: Json = _failed(None, Refusal(NO_REQUEST, why))
        elif not line.strip():
            continue
        else:
            answer = _answered(methods, line, call_seconds)
        if answer is None:
            continue
        try:
            answers.write(answer + b"\n")
            answers.flush()
        except BrokenPipeError:
            return


def _skip_line(requests: BinaryIO) -> None:
    while (more := requests.readline(LINE_BYTES_MAX)) and not more.endswith(b"\n"):
        pass


def _answered(methods: Mapping[str, Method], line: bytes, call_seconds: float) -> bytes | None:
    """The answer to a line; `None` for a notification, which asks for none."""
    try:
        document = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _failed(None, Refusal(NO_JSON, "the line is no JSON"))
    asked_id = document.get("id") if isinstance(document, dict) else None
    given_id = asked_id if _is_id(asked_id) else None
    try:
        method, params = _request(methods, document)
        result = _called(methods[method], params, call_seconds)
    except Refusal as refusal:
        name = document.get("method") if isinstance(document, dict) else None
        log(f"{name or 'request'}: {refusal.message}")
        if _is_notification(document):
            return None
        return _failed(given_id, refusal)
    return None if _is_notification(document) else _fitting(given_id, result)


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON")


def _is_id(value: Json) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _is_notification(document: Json) -> bool:
    return (
        isinstance(document, dict)
        and "id" not in document
        and document.get("jsonrpc") == "2.0"
        and isinstance(document.get("method"), str)
    )


def _request(methods: Mapping[str, Method], document: Json) -> tuple[str, Params]:
    """What a document asks for."""
    if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
        raise Refusal(NO_REQUEST, 'a request is an object with "jsonrpc": "2.0"')
    method = document.get("method")
    if not isinstance(method, str):
        raise Refusal(NO_REQUEST, "a request names its method")
    if "id" in document and not _is_id(document["id"]):
        raise Refusal(NO_REQUEST, "an id is a number or a text")
    if method not in methods:
        known = ", ".join(methods)
        raise Refusal(NO_METHOD, f"there is no method {method[:40]!r}; this adapter knows {known}")
    params = document.get("params")
    if params is not None and not isinstance(params, dict):
        raise Refusal(PARAMS, "params is an object")
    return method, Params(params or {})


def _called(method: Method, params: Params, call_seconds: float) -> Json:
    """The result of a method, in its own thread, so that a call that hangs holds up none."""
    outcome: list[Json] = []

    def run() -> None:
        try:
            outcome.append(method(params, Deadline(call_seconds)))
        except Refusal as refusal:
            outcome.append(refusal)
        except Exception as error:
            # Where it happened, and not what it says.
            log("".join(traceback.format_tb(error.__traceback__)))
            outcome.append(passing(f"the adapter failed: {type(error).__name__}; its log has more"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(call_seconds)
    if not outcome:
        raise passing(f"the call was given up after {call_seconds:g} s")
    if isinstance(outcome[0], Refusal):
        raise outcome[0]
    return outcome[0]


def _fitting(given_id: Json, result: Json) -> bytes:
    """An answer, if it is within the limit."""
    answer = _line({"jsonrpc": "2.0", "id": given_id, "result": result})
    if len(answer) <= LINE_BYTES_MAX:
        return answer
    why = f"the answer has {len(answer)} bytes, and a line has {LINE_BYTES_MAX} at most"
    return _failed(given_id, refused(why))


def _failed(given_id: Json, refusal: Refusal) -> bytes:
    error = {"code": refusal.code, "message": refusal.message}
    return _line({"jsonrpc": "2.0", "id": given_id, "error": error})


def _line(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
