"""Strict reads: fenced like writes, and as new as the leader."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from conftest import Maker
from parkazoo import ParKazooClient
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, wait_until
from test_moves import elsewhere


def deafen(client: ParKazooClient) -> None:
    """Let a client hear nothing of new tables, as if every watch had been lost."""
    for ensemble in client._sessions.by_name.values():
        ensemble.read_configuration = lambda first=False: None  # type: ignore[method-assign]


def hear_again(client: ParKazooClient) -> None:
    for ensemble in client._sessions.by_name.values():
        del ensemble.read_configuration  # type: ignore[method-assign]


def test_a_strict_read_is_not_answered_by_an_ensemble_that_lost_the_shard(
    make: Maker,
) -> None:
    mover, strict, plain = make(), make(strict_reads=True), make()
    mover.create("/d/x", b"1", makepath=True)
    assert strict.get("/d/x")[0] == plain.get("/d/x")[0] == b"1"
    deafen(strict)
    deafen(plain)
    Mover(mover).move(elsewhere(mover, "/d/x", "/d"))
    mover.set("/d/x", b"2")

    # The old place is empty: who does not look at the fence believes it.
    with pytest.raises(NoNodeError):
        plain.get("/d/x")
    asked: list[Any] = [
        strict.get_async("/d/x"),
        strict.exists_async("/d/x"),
        strict.get_children_async("/d"),
        strict.get_acls_async("/d/x"),
    ]
    wait_until(lambda: len(strict._fencing.waiting) > 0, "reads were refused")
    assert not any(result.ready() for result in asked)

    hear_again(strict)
    data, stat, names, acls = [result.get(timeout=PATIENCE_SECONDS) for result in asked]
    assert (data[0], stat.version, names, len(acls)) == (b"2", 1, ["x"], 2)
    hear_again(plain)


def test_strict_reads_leave_watches_and_see_what_was_acknowledged(make: Maker) -> None:
    writer, reader = make(), make(strict_reads=True)
    seen: list[Any] = []
    writer.create("/w/a", b"", makepath=True)
    for number in range(50):
        writer.set("/w/a", b"%d" % number)
        assert reader.get("/w/a")[0] == b"%d" % number
    reader.get("/w/a", watch=seen.append)
    reader.get_children("/w", watch=seen.append)
    writer.set("/w/a", b"new")
    writer.create("/w/b")
    wait_until(lambda: len(seen) == 2, "both watches told")
    assert sorted(event.type for event in seen) == ["CHANGED", "CHILD"]
