"""Recorded histories of a namespace under faults, and what must hold in them.

What: a thread-safe recorder of operations (who, what, when asked, when answered,
with which outcome) and of holdings (who believed to hold a lock, from when until
when), and checks that name every violation they find:

- `not_linearizable`: writes and strict reads of a directory and its nodes that no
  order explains;
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
    # Whether the directory's own creation and removal are in the history, too.
    parent_matters: bool = False

    @property
    def family(self) -> str:
        """What must be explained together: a directory with its nodes."""
        return self.path.rpartition("/")[0] if self.parent_matters else self.path


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

    def grouped(self, by: str) -> list[tuple[str, list[Operation]]]:
        groups: dict[str, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            groups[getattr(operation, by)].append(operation)
        return sorted(groups.items())

    def violations(self, final: dict[str, Any] | None = None) -> list[str]:
        """Everything wrong with this history; `final` maps the paths that exist at
        the end, read after all faults have ended, to their values."""
        found = [*held_twice(self.holdings), *sequence_disorder(self.numbers)]
        found += items_lost_or_doubled(
            self.put, self.taken, self.put_unknown, self.taken_unknown
        )
        for family, operations in self.grouped("family"):
            if final is not None:
                operations = operations + final_reads(operations, final)
            found += not_linearizable(family, operations)
        for path, operations in self.grouped("path"):
            if final is not None:
                found += nodes_lost(path, operations, final)
                found += nodes_back(path, operations, final)
        return found


def final_reads(operations: list[Operation], final: dict[str, Any]) -> list[Operation]:
    """What was found at the end, as reads that came after everything else."""
    end = max(o.answered for o in operations if o.answered < FOREVER) + 1
    return [
        Operation(
            "the end",
            "read",
            path,
            end,
            end,
            OK if path in final else NO_NODE,
            result=final.get(path),
            parent_matters=any(o.path == path and o.parent_matters for o in operations),
        )
        for path in sorted({o.path for o in operations})
    ]


# -- a directory and its nodes, in some order --------------------------------------

# What exists: path, value and version of each node, sorted.
State = tuple[tuple[str, Any, int], ...]


def after(state: State, operation: Operation) -> tuple[bool, State]:
    """Whether `operation`, with the outcome seen, may happen in `state`, and then?

    An unknown outcome is tried as the success it may have been; that it never
    happened at all is the search's business.
    """
    nodes = {path: (value, version) for path, value, version in state}
    path, kind, outcome = operation.path, operation.kind, operation.outcome
    found = nodes.get(path)
    parent = path.rpartition("/")[0]
    # A directory that nobody in this history operates on is taken to exist.
    orphan = operation.parent_matters and parent not in nodes
    children = any(other.startswith(path + "/") for other in nodes)
    if kind == "create":
        if outcome == EXISTS:
            return found is not None, state
        if outcome == NO_NODE:
            return orphan, state
        nodes[path] = (operation.value, 0)
        return found is None and not orphan, _frozen(nodes)
    if found is None:
        return outcome == NO_NODE, state
    value, version = found
    matches = operation.version in (-1, version)
    if outcome == NO_NODE:
        return False, state
    if kind == "read":
        return operation.result == value, state
    if outcome == BAD_VERSION:
        return not matches, state
    if outcome == NOT_EMPTY:
        return children, state
    if not matches:
        return False, state
    if kind == "delete":
        del nodes[path]
        return not children, _frozen(nodes)
    assert kind == "set", kind
    nodes[path] = (operation.value, version + 1)
    return operation.result in (None, version + 1), _frozen(nodes)


def _frozen(nodes: dict[str, tuple[Any, int]]) -> State:
    return tuple(sorted((path, *node) for path, node in nodes.items()))


def not_linearizable(name: str, operations: Iterable[Operation]) -> list[str]:
    """Search for one order of the operations that respects real time and explains
    every outcome; a violation if there is none."""
    ordered = sorted(operations, key=lambda o: o.asked)
    ends = [FOREVER if o.outcome == UNKNOWN else o.answered for o in ordered]
    everything = (1 << len(ordered)) - 1
    must = sum(1 << i for i, o in enumerate(ordered) if o.outcome != UNKNOWN)
    seen: set[tuple[int, State]] = set()
    frontier: list[tuple[int, State]] = [(everything, ())]
    while frontier:
        left, state = frontier.pop()
        if not left & must:
            return []
        if (left, state) in seen:
            continue
        seen.add((left, state))
        next_ones = _may_be_next(left, ordered, ends)
        # The likeliest next is pushed last, so that it is tried first.
        for i in sorted(next_ones, key=lambda i: -ends[i]):
            allowed, then = after(state, ordered[i])
            if allowed:
                frontier.append((left & ~(1 << i), then))
    lines = [
        f"  {o.process} {o.kind} {o.path} ({o.value!r}, version={o.version}) ->"
        f" {o.outcome} {o.result!r} [{o.asked:.6f}, {end:.6f}]"
        for o, end in zip(ordered, ends, strict=True)
    ]
    return [f"no order explains the operations on {name}:\n" + "\n".join(lines)]


def _may_be_next(left: int, ordered: list[Operation], ends: list[float]) -> list[int]:
    """Whatever was asked before the first of the rest was answered."""
    waiting, horizon = [], FOREVER
    first = (left & -left).bit_length() - 1
    for i in range(first, len(ordered)):
        if ordered[i].asked > horizon:
            break
        if left >> i & 1:
            waiting.append(i)
            horizon = min(horizon, ends[i])
    return [i for i in waiting if ordered[i].asked <= horizon]


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
