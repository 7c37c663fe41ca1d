"""The history checker finds each violation it exists for, and only those.

Every planted history here is a small execution that must not happen; beside each
stands the nearest one that may.
"""

from __future__ import annotations

from typing import Any

import pytest

from history import (
    BAD_VERSION,
    EXISTS,
    NO_NODE,
    NOT_EMPTY,
    OK,
    UNKNOWN,
    History,
    Holding,
    Operation,
)


def op(
    process: str, kind: str, times: tuple[float, float], outcome: str = OK, **more: Any
) -> Operation:
    path = more.pop("path", "/n")
    return Operation(process, kind, path, times[0], times[1], outcome, **more)


def check(*operations: Operation, final: dict[str, Any] | None = None) -> list[str]:
    return History(operations=list(operations)).violations(final)


CREATED = op("a", "create", (0, 1), value="x")


ALLOWED = {
    "a read of what was written": [CREATED, op("b", "read", (2, 3), result="x")],
    "overlapping creates, one wins": [
        CREATED,
        op("b", "create", (0.5, 1.5), EXISTS, value="y"),
    ],
    "an unanswered set that happened late": [
        CREATED,
        op("b", "set", (2, 3), UNKNOWN, value="y"),
        op("c", "read", (4, 5), result="x"),
        op("c", "read", (6, 7), result="y"),
    ],
    "an unanswered delete that never happened": [
        CREATED,
        op("b", "delete", (2, 3), UNKNOWN),
        op("c", "read", (4, 5), result="x"),
    ],
    "two deletes while one create was in doubt": [
        CREATED,
        op("b", "delete", (2, 3)),
        op("b", "create", (3.5, 4), UNKNOWN, value="x"),
        op("c", "delete", (5, 6)),
    ],
    "versions count up": [
        CREATED,
        op("b", "set", (2, 3), value="y", version=0, result=1),
        op("c", "set", (2, 3), BAD_VERSION, value="z", version=0),
    ],
}

FORBIDDEN = {
    "a read of an overwritten value": [
        CREATED,
        op("b", "set", (2, 3), value="y"),
        op("c", "read", (4, 5), result="x"),
    ],
    "a read that goes back": [
        CREATED,
        op("b", "set", (2, 9), value="y"),
        op("c", "read", (3, 4), result="y"),
        op("c", "read", (5, 6), result="x"),
    ],
    "two creates that both won": [CREATED, op("b", "create", (2, 3), value="y")],
    "two deletes of one node": [
        CREATED,
        op("b", "delete", (2, 3)),
        op("c", "delete", (4, 5)),
    ],
    "a set of a deleted node": [
        CREATED,
        op("b", "delete", (2, 3)),
        op("c", "set", (4, 5), value="y"),
    ],
    "a missing node that exists": [CREATED, op("b", "delete", (2, 3), NO_NODE)],
    "a compare-and-set that both won": [
        CREATED,
        op("b", "set", (2, 3), value="y", version=0, result=1),
        op("c", "set", (2, 3), value="z", version=0, result=1),
    ],
    "a bad version that was right": [
        CREATED,
        op("c", "set", (2, 3), BAD_VERSION, value="z", version=0),
    ],
    "a value nobody wrote": [CREATED, op("b", "read", (2, 3), result="q")],
}


def child(
    process: str, kind: str, times: tuple[float, float], **more: Any
) -> Operation:
    return op(process, kind, times, path="/n/c", parent_matters=True, **more)


ALLOWED["a directory goes once its child is gone"] = [
    CREATED,
    child("b", "create", (2, 3), value="y"),
    op("c", "delete", (2, 4), NOT_EMPTY),
    child("b", "delete", (4, 5)),
    op("c", "delete", (6, 7)),
    child("b", "create", (8, 9), outcome=NO_NODE, value="z"),
]
FORBIDDEN["a child of a directory that is gone"] = [
    CREATED,
    op("b", "delete", (2, 3)),
    child("c", "create", (4, 5), value="y"),
]
FORBIDDEN["a directory deleted over its child"] = [
    CREATED,
    child("b", "create", (2, 3), value="y"),
    op("c", "delete", (4, 5)),
]
FORBIDDEN["a child refused by a directory that exists"] = [
    CREATED,
    child("c", "create", (4, 5), outcome=NO_NODE, value="y"),
]
FORBIDDEN["a full directory that is empty"] = [
    CREATED,
    op("c", "delete", (4, 5), NOT_EMPTY),
]


@pytest.mark.parametrize("name", ALLOWED)
def test_possible_histories_are_accepted(name: str) -> None:
    assert check(*ALLOWED[name]) == []


@pytest.mark.parametrize("name", FORBIDDEN)
def test_impossible_histories_are_named(name: str) -> None:
    (violation,) = check(*FORBIDDEN[name])
    assert "no order explains the operations on /n" in violation


def test_a_lost_node_is_named() -> None:
    assert check(CREATED, final={"/n": "x"}) == []
    unordered, lost = check(CREATED, final={})
    assert "no order" in unordered and "is lost" in lost
    deleted_maybe = op("b", "delete", (2, 3), UNKNOWN)
    assert check(CREATED, deleted_maybe, final={}) == []
    assert "nobody wrote" in check(CREATED, final={"/n": "q"})[1]


def test_a_resurrected_node_is_named() -> None:
    deleted = op("b", "delete", (2, 3))
    assert check(CREATED, deleted, final={}) == []
    unordered, back = check(CREATED, deleted, final={"/n": "x"})
    assert "no order" in unordered and "is back" in back
    again = op("c", "create", (4, 5), UNKNOWN, value="x")
    assert check(CREATED, deleted, again, final={"/n": "x"}) == []


def test_a_lock_held_twice_is_named() -> None:
    first, second = Holding("/lock", "a", 0, 2), Holding("/lock", "b", 1, 3)
    later, other = Holding("/lock", "b", 2, 3), Holding("/other", "c", 1, 3)
    assert History(holdings=[first, later, other]).violations() == []
    (violation,) = History(holdings=[second, first]).violations()
    assert "/lock held by a until" in violation
    # A short holding inside a long one does not hide the next overlap.
    long, short = Holding("/lock", "a", 0, 9), Holding("/lock", "b", 1, 2)
    third = Holding("/lock", "c", 3, 4)
    assert len(History(holdings=[long, short, third]).violations()) == 2


def test_lost_and_doubled_items_are_named() -> None:
    assert History(put=[1, 2], taken=[2, 1]).violations() == []
    assert "taken twice" in History(put=[1], taken=[1, 1]).violations()[0]
    assert "never put" in History(taken=[1]).violations()[0]
    assert "lost: [2]" in History(put=[1, 2], taken=[1]).violations()[0]
    assert History(put_unknown=[1]).violations() == []
    assert History(put_unknown=[1], taken=[1]).violations() == []
    assert History(put=[1], taken_unknown=1).violations() == []
    assert History(put=[1, 2], taken_unknown=1).violations() != []


def test_sequence_numbers_out_of_order_are_named() -> None:
    good = [("/q", 0.0, 1.0, 0), ("/q", 2.0, 3.0, 1), ("/r", 4.0, 5.0, 0)]
    overlapping = [("/q", 0.0, 3.0, 1), ("/q", 1.0, 2.0, 0)]
    assert History(numbers=good).violations() == []
    assert History(numbers=overlapping).violations() == []
    back = [("/q", 0.0, 1.0, 5), ("/q", 2.0, 3.0, 4)]
    assert "4 was given under /q after 5" in History(numbers=back).violations()[0]
    twice = [("/q", 0.0, 1.0, 5), ("/q", 0.5, 3.0, 5)]
    assert "given twice" in History(numbers=twice).violations()[0]
