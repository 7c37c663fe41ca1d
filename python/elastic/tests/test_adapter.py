"""The contract, as far as all adapters have it in common."""

from __future__ import annotations

import io
import json
import time
from typing import Any

from tontine_elastic import adapter
from tontine_elastic.adapter import LINE_BYTES_MAX, Deadline, Params


def echo(params: Params, deadline: Deadline) -> Any:
    return {"text": params.text("text")}


def long(params: Params, deadline: Deadline) -> Any:
    return "x" * LINE_BYTES_MAX


def slow(params: Params, deadline: Deadline) -> Any:
    time.sleep(0.5)


def broken(params: Params, deadline: Deadline) -> Any:
    raise RuntimeError("the password is hunter2")


METHODS = {"echo": echo, "long": long, "slow": slow, "broken": broken}


def talk(*lines: bytes, call_seconds: float = 5.0) -> list[Any]:
    answers = io.BytesIO()
    adapter.serve(METHODS, io.BytesIO(b"\n".join(lines)), answers, call_seconds)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def request(method: str, params: Any, number: Any = 7) -> bytes:
    fields = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(fields).encode()


def code_of(line: bytes) -> tuple[Any, int]:
    (answer,) = talk(line)
    return answer["id"], answer["error"]["code"]


def test_requests_are_answered_under_their_ids_and_mistakes_are_told_apart() -> None:
    (answer,) = talk(request("echo", {"text": "a", "further": 1}, "one"))
    assert answer == {"jsonrpc": "2.0", "id": "one", "result": {"text": "a"}}
    assert code_of(b"{") == (None, -32700)
    assert code_of(b"\xff\xfe") == (None, -32700)
    assert code_of(b'{"id":NaN}') == (None, -32700)
    assert code_of(b"[" * 100_000) == (None, -32700)
    assert code_of(b"[1]") == (None, -32600)
    assert code_of(b"7") == (None, -32600)
    assert code_of(b'{"id":7,"method":"echo"}') == (7, -32600)
    assert code_of(b'{"jsonrpc":"2.0","id":"a"}') == ("a", -32600)
    assert code_of(request("echo", {}, [])) == (None, -32600)
    assert code_of(request("echo", {}, True)) == (None, -32600)
    assert code_of(request("no", {})) == (7, -32601)
    assert code_of(request("echo", [])) == (7, -32602)
    assert code_of(request("echo", {})) == (7, -32602)
    assert code_of(request("echo", {"text": "\ud800"})) == (7, -32602)
    assert code_of(request("long", {})) == (7, -32001)


def test_notifications_and_empty_lines_are_not_answered() -> None:
    assert talk(b'{"jsonrpc":"2.0","method":"echo","params":{"text":"a"}}', b"", b"  ") == []
    assert talk(b'{"jsonrpc":"2.0","method":"no"}') == []


def test_a_line_is_bounded_and_the_next_one_is_found_behind_it() -> None:
    line = request("echo", {"text": ""})
    full = request("echo", {"text": "x" * (LINE_BYTES_MAX - len(line))})
    assert len(full) == LINE_BYTES_MAX
    kept, refused, last = talk(full, full + b" " * 2_000_000, request("echo", {"text": "b"}, 8))
    assert len(kept["result"]["text"]) == LINE_BYTES_MAX - len(line)
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert last["id"] == 8


def test_a_call_that_hangs_is_given_up_and_holds_up_no_other() -> None:
    late, other = talk(request("slow", {}), request("echo", {"text": "b"}, 8), call_seconds=0.1)
    assert late["error"]["code"] == -32000
    assert other["result"] == {"text": "b"}


def test_what_nobody_foresaw_is_answered_without_its_words(capsys: Any) -> None:
    (answer,) = talk(request("broken", {}))
    assert answer["error"]["code"] == -32000
    assert "RuntimeError" in answer["error"]["message"]
    assert "hunter2" not in json.dumps(answer)
    log = capsys.readouterr().err
    assert "test_adapter.py" in log
    assert "the password is hunter2" not in log.replace('raise RuntimeError("the password is', "")
