"""Requests that one client sends without waiting keep their order, also where the
machine lets another thread run between any two of its own steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.protocol.serialization import Delete, GetData, SetData

from conftest import Maker
from parkazoo import ParKazooClient, failpoints, ordering
from servers import PATIENCE_SECONDS

# Long enough for the other thread to do the wrong thing, if it would.
HELD_UP_SECONDS = 1.0


@pytest.mark.parametrize("session_order", [False, True])
def test_one_that_is_held_up_while_it_is_sent_overtakes_nobody(
    make: Maker, monkeypatch: pytest.MonkeyPatch, session_order: bool
) -> None:
    """The thread that asks stops between its look for gates and the sending; the
    first child's steps are all done meanwhile, and those behind its gate go."""
    client = make(session_order=session_order)
    client.create("/d")
    delete_begun, set_again = threading.Event(), threading.Event()
    delete_sent = threading.Event()
    sent: list[type] = []
    send = ordering.Task.send

    def held_up(task: ordering.Task) -> None:
        kind = type(task.request)
        first = kind not in sent
        sent.append(kind)
        if kind is Delete and first:
            delete_begun.set()
            set_again.wait(HELD_UP_SECONDS)
        if kind is GetData and not first:
            delete_sent.wait(HELD_UP_SECONDS)
        send(task)
        if kind is SetData and not first:
            set_again.set()
        if kind is Delete:
            delete_sent.set()

    def wait_for_delete(label: str, when: str) -> None:
        if (label, when) == ("create.0.child", failpoints.AFTER):
            assert delete_begun.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(ordering.Task, "send", held_up)
    monkeypatch.setattr(failpoints, "hook", wait_for_delete)
    asked = [
        client.create_async("/d/x", b"1"),
        client.set_async("/d/x", b"2", 0),
        client.get_async("/d/x"),
        client.delete_async("/d/x"),
    ]
    answers = [result.get(timeout=PATIENCE_SECONDS) for result in asked]
    assert answers[2][0] == b"2"
    assert client.exists("/d/x") is None
    assert sent.count(SetData) == 2, "the set was never too early: nothing was tried"


@pytest.mark.parametrize("session_order", [False, True])
def test_those_that_a_gate_lets_go_overtake_nobody_either(
    make: Maker, monkeypatch: pytest.MonkeyPatch, session_order: bool
) -> None:
    """Of those behind a gate the first needs several steps itself, and the thread
    that sends them stops before the last."""
    client = make(session_order=session_order)
    d = _on_two_ensembles(client)
    client.create(d)
    closed, all_asked, never = (threading.Event() for _ in range(3))
    deletes: list[str] = []
    send = ordering.Task.send

    def held_up(task: ordering.Task) -> None:
        if type(task.request) is Delete:
            deletes.append(task.path)
            if len(deletes) == 1:
                never.wait(HELD_UP_SECONDS)
        send(task)

    def wait_for_all(label: str, when: str) -> None:
        if (label, when) == ("create.1.claim", failpoints.BEFORE):
            closed.set()
            assert all_asked.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(ordering.Task, "send", held_up)
    monkeypatch.setattr(failpoints, "hook", wait_for_all)
    asked = [client.create_async(f"{d}/x", b"0")]
    assert closed.wait(PATIENCE_SECONDS)
    asked += [
        client.create_async(f"{d}/x/y", b"1"),
        client.set_async(f"{d}/x/y", b"2", 0),
        client.delete_async(f"{d}/x/y"),
        client.create_async(f"{d}/x/y", b"3"),
        client.get_async(f"{d}/x/y"),
    ]
    all_asked.set()
    answers = [result.get(timeout=PATIENCE_SECONDS) for result in asked]
    assert answers[-1][0] == b"3"
    assert deletes


def _on_two_ensembles(client: ParKazooClient) -> str:
    """A directory that is elsewhere, with its children, than its child's children: what
    lets these go runs on another connection's thread than their answers."""
    table = client._sessions.table
    assert table is not None
    for number in range(100):
        d = f"/d{number}"
        home, child, below = (
            table.owners[client._layout.node(path).shard]
            for path in (d, f"{d}/x", f"{d}/x/y")
        )
        if below not in (home, child):
            return d
    raise AssertionError("a third of a hundred is")


def test_who_is_interrupted_holds_nobody_up(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `session_order` its write counted as open, and others waited for it."""
    client = make(session_order=True)
    for path in ("/p", "/q", "/p/a", "/q/a"):
        client.create(path)
    submit, interrupted = ParKazooClient._submit, []

    def interrupt(self: ParKazooClient, *rest: Any) -> None:
        if not interrupted:
            interrupted.append(self)
            raise KeyboardInterrupt
        submit(self, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ParKazooClient, "_submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.set("/p/a", b"1")
    assert client.set_async("/q/a", b"2").get(timeout=PATIENCE_SECONDS).version == 1
    assert client.get("/p/a")[0] == b""
