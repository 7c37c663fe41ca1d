"""Recorded histories of a namespace under faults, and what must hold in them.

What: a thread-safe recorder of operations (who, what, when asked, when answered,
with which outcome) and of holdings (who believed to hold a lock, from when until
when), and checks that name every violation they find:

- `not_linearizable`: writes and strict reads of one node that no order explains;
- `nodes_lost`, `nodes_back`: the final state against what was acknowledged;
- `held_twice`: two holders of one lock, or two leaders, at one moment;
- `items_lost_or_doubled`: a queue's items, put against taken;
- `sequence_disorder`: sequence numbers against real time.

Why: a fault test that only looks for exceptions passes on a client that loses
data quietly.

Must never: accept a history because an operation's outcome is unknown in a way
that a real execution could not explain, or be trusted without `test_history.py`,
which plants each violation and sees it named.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# Outcomes of an operation, as its caller saw them.
OK = "ok"
NO_NODE = "no node"
EXISTS = "node exists"
BAD_VERSION = "bad version"
NOT_EMPTY = "not empty"
UNKNOWN = "unknown"  # asked, never answered: may have happened, now or later

# An operation that was never answered is explained by any moment after it was
# asked, including one after the end of the history.
FOREVER = float("inf")


@dataclass(frozen=True)
class Operation:
    """One call on one node. `result` is what it returned: the value of a read,
    the version of a set."""

    process: str
    kind: str  # create, set, delete, read
    path: str
    asked: float
    answered: float
    outcome: str
    value: Any = None
    version: int = -1
    result: Any = None


@dataclass(frozen=True)
class Holding:
    """`holder` believed to hold `name` from when it was told so until it let go
    or was told its session is suspended or lost."""

    name: str
    holder: str
    since: float
    until: float


@dataclass
class History:
    """What happened, recorded by many threads, and the checks over it."""

    operations: list[Operation] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    put: list[Any] = field(default_factory=list)
    put_unknown: list[Any] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)
    taken_unknown: int = 0
    # (parent, asked, answered, number)
    numbers: list[tuple[str, float, float, int]] = field(default_factory=list)
    _mutex: Any = field(default_factory=threading.Lock)

    def record(self, entry: Operation | Holding) -> None:
        with self._mutex:
            if isinstance(entry, Operation):
                self.operations.append(entry)
            else:
                self.holdings.append(entry)

    def now(self) -> float:
        return time.monotonic()

    def by_path(self) -> dict[str, list[Operation]]:
        grouped: dict[str, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            grouped[operation.path].append(operation)
        return grouped

    def violations(self, final: dict[str, Any] | None = None) -> list[str]:
        """Everything wrong with this history; `final` maps the paths that exist at
        the end, read after all faults have ended, to their values."""
        found = [*held_twice(self.holdings), *sequence_disorder(self.numbers)]
        found += items_lost_or_doubled(
            self.put, self.taken, self.put_unknown, self.taken_unknown
        )
        for path, operations in sorted(self.by_path().items()):
            found += not_linearizable(path, operations)
            if final is not None:
                found += nodes_lost(path, operations, final)
                found += nodes_back(path, operations, final)
        return found


# -- one node, in some order -----------------------------------------------------

# A node's state: None while it does not exist, else (value, version).
State = tuple[Any, int] | None


def after(state: State, operation: Operation) -> tuple[bool, State]:
    """Whether `operation`, with the outcome seen, may happen in `state`, and then?

    An unknown outcome is tried as the success it may have been; that it never
    happened at all is the search's business.
    """
    kind, outcome = operation.kind, operation.outcome
    if kind == "create":
        if outcome == EXISTS:
            return state is not None, state
        return state is None, (operation.value, 0)
    if state is None:
        if kind == "read" and outcome == OK:
            return False, state
        return outcome == NO_NODE, state
    value, version = state
    if outcome == NO_NODE:
        return False, state
    if kind == "read":
        return operation.result == value, state
    if outcome == NOT_EMPTY:
        return True, state
    matches = operation.version in (-1, version)
    if outcome == BAD_VERSION:
        return not matches, state
    if not matches:
        return False, state
    if kind == "delete":
        return True, None
    assert kind == "set", kind
    wanted = operation.result
    return wanted in (None, version + 1), (operation.value, version + 1)


def not_linearizable(path: str, operations: Iterable[Operation]) -> list[str]:
    """Search for one order of the operations that respects real time and explains
    every outcome; a violation if there is none."""
    ordered = sorted(operations, key=lambda o: o.asked)
    ends = [FOREVER if o.outcome == UNKNOWN else o.answered for o in ordered]
    everything = (1 << len(ordered)) - 1
    must = sum(1 << i for i, o in enumerate(ordered) if o.outcome != UNKNOWN)
    seen: set[tuple[int, State]] = set()
    frontier: list[tuple[int, State]] = [(everything, None)]
    while frontier:
        left, state = frontier.pop()
        if not left & must:
            return []
        if (left, state) in seen:
            continue
        seen.add((left, state))
        # Whatever was asked before the first of the rest was answered may be next.
        waiting = [i for i in range(len(ordered)) if left >> i & 1]
        horizon = min(ends[i] for i in waiting)
        for i in waiting:
            if ordered[i].asked > horizon:
                break
            allowed, then = after(state, ordered[i])
            if allowed:
                frontier.append((left & ~(1 << i), then))
    lines = [
        f"  {o.process} {o.kind}({o.value!r}, version={o.version}) -> {o.outcome}"
        f" {o.result!r} [{o.asked:.6f}, {end:.6f}]"
        for o, end in zip(ordered, ends, strict=True)
    ]
    return [f"no order explains the operations on {path}:\n" + "\n".join(lines)]


# -- the end against what was acknowledged ----------------------------------------


def nodes_lost(
    path: str, operations: list[Operation], final: dict[str, Any]
) -> list[str]:
    """A create was acknowledged, nobody ever asked to delete it after, and it is
    gone; or an acknowledged value was replaced by one nobody wrote after it."""
    created = [o for o in operations if o.kind == "create" and o.outcome == OK]
    if not created:
        return []
    last = max(created, key=lambda o: o.asked)
    deletes = [
        o
        for o in operations
        if o.kind == "delete"
        and o.outcome in (OK, UNKNOWN)
        and (o.outcome == UNKNOWN or o.answered > last.asked)
    ]
    if deletes:
        return []
    if path not in final:
        return [f"{path} was created by {last.process}, never deleted, and is lost"]
    written = [o.value for o in operations if o.kind in ("create", "set")]
    if final[path] not in written:
        return [f"{path} ends with {final[path]!r}, which nobody wrote"]
    return []


def nodes_back(
    path: str, operations: list[Operation], final: dict[str, Any]
) -> list[str]:
    """A delete was acknowledged, nobody asked to create after, and it is there."""
    if path not in final:
        return []
    deleted = [o for o in operations if o.kind == "delete" and o.outcome == OK]
    if not deleted:
        return []
    last = max(deleted, key=lambda o: o.answered)
    created = [
        o
        for o in operations
        if o.kind == "create"
        and o.outcome in (OK, UNKNOWN)
        and (o.outcome == UNKNOWN or o.answered > last.asked)
    ]
    if created:
        return []
    return [f"{path} was deleted by {last.process}, not created since, and is back"]


# -- holders, items, numbers --------------------------------------------------------


def held_twice(holdings: Iterable[Holding]) -> list[str]:
    found = []
    by_name: dict[str, list[Holding]] = defaultdict(list)
    for holding in holdings:
        by_name[holding.name].append(holding)
    for name, held in by_name.items():
        held.sort(key=lambda h: h.since)
        longest: Holding | None = None
        for holding in held:
            if longest is not None and holding.since < longest.until:
                found.append(
                    f"{name} held by {longest.holder} until {longest.until:.6f} and "
                    f"by {holding.holder} since {holding.since:.6f}"
                )
            if longest is None or holding.until > longest.until:
                longest = holding
    return found


def items_lost_or_doubled(
    put: list[Any], taken: list[Any], put_unknown: list[Any], taken_unknown: int
) -> list[str]:
    """Items of a queue that was drained at the end.

    A put that was never answered may be there or not. A take that was never
    answered may have removed one item nobody saw.
    """
    found = [
        f"item {item!r} taken twice" for item in set(taken) if taken.count(item) > 1
    ]
    known = set(put) | set(put_unknown)
    found += [f"item {item!r} taken, never put" for item in set(taken) - known]
    lost = sorted(set(put) - set(taken), key=repr)
    if len(lost) > taken_unknown:
        found.append(f"items put and acknowledged but lost: {lost!r}")
    return found


def sequence_disorder(numbers: Iterable[tuple[str, float, float, int]]) -> list[str]:
    """A later create under the same parent must get the larger number."""
    found = []
    by_parent: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for parent, asked, answered, number in numbers:
        by_parent[parent].append((asked, answered, number))
    for parent, made in by_parent.items():
        if len({number for _, _, number in made}) != len(made):
            found.append(f"a sequence number was given twice under {parent}")
        by_answer = sorted(made, key=lambda m: m[1])
        by_asking = sorted(made)
        largest, index = -1, 0
        for asked, _answered, number in by_asking:
            while index < len(by_answer) and by_answer[index][1] < asked:
                largest = max(largest, by_answer[index][2])
                index += 1
            if number < largest:
                found.append(
                    f"{number} was given under {parent} after {largest} had been"
                )
    return found
