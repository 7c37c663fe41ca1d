"""An exhaustive explorer of the step machines, against servers reduced to atoms.

What: `Shards` is a ZooKeeper tree in which every request is one atomic step.
`explore` runs a set of processes, each a list of operations, through every order
of their steps, with crashes, session ends and stale reads if asked for, and checks
every step taken and every reply given.

What is checked. The logical tree is read off the physical one after each step:

- a step leaves the tree alone, or does just one of: create a node below a parent
  that exists and is not ephemeral, delete a node without children, end ephemerals;
- a bucket exists only while its directory does, with a link;
- an operation that reports success made its change in one of its own steps, and
  once; one that reports an error made none, and the error was true at a moment
  while it ran. So every operation takes effect at one instant, and nothing that
  was acknowledged is lost, and nothing that was deleted comes back;
- a listing is one that was true at a moment while it ran.

The generators are the client's own: nothing is written a second time for the
model, so nothing can be right here and wrong there.

Must never: be told about the protocol. It knows the layout and ZooKeeper's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kazoo.exceptions import (
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    SetData,
    Sync,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import directory
from parkazoo.errors import Contention
from parkazoo.layout import BUCKET, Layout, decode, fence
from parkazoo.mapping import Rules, join, parent
from parkazoo.steps import Multi, MultiFailed

# A physical tree: path -> owner of the ephemeral, or 0. Small, so it is copied.
Tree = dict[str, int]


class Broken(AssertionError):
    """A check failed; the message has the steps that led to it."""


def documented(states: dict[str, int]) -> None:
    """Is each number of states in a table of the document that tells of them?"""
    design = Path(__file__).parent.parent / "docs" / "design.md"
    told = {
        number.strip().replace(",", "")
        for line in design.read_text().splitlines()
        if line.startswith("|")
        for number in line.split("|")[-2].split(";")
    }
    untold = {name: count for name, count in states.items() if str(count) not in told}
    assert not untold, f"{design} tells of other numbers of states"


def stat_of(tree: Tree, path: str) -> ZnodeStat:
    kids = sum(1 for other in tree if parent(other) == path)
    return ZnodeStat(0, 0, 0, 0, 0, 0, 0, tree[path], 0, kids, 0)


def apply(tree: Tree, request: Any, session: int) -> Any:
    """One request on one tree, as the server would; changes `tree` in place."""
    path = request.path
    if isinstance(request, (Create, Create2)):
        above = parent(path)
        if path in tree:
            raise NodeExistsError
        if above not in tree:
            raise NoNodeError
        if tree[above]:
            raise NoChildrenForEphemeralsError
        tree[path] = session if request.flags & 1 else 0
        return path
    if isinstance(request, Exists):
        return stat_of(tree, path) if path in tree else None
    if isinstance(request, Sync):
        return path
    if path not in tree:
        raise NoNodeError
    if isinstance(request, Delete):
        if any(parent(other) == path for other in tree):
            raise NotEmptyError
        del tree[path]
        return True
    if isinstance(request, SetData):
        return stat_of(tree, path)
    names = sorted(o[len(path) + 1 :] for o in tree if parent(o) == path)
    if isinstance(request, GetChildren):
        return names
    if isinstance(request, GetChildren2):
        return names, stat_of(tree, path)
    if isinstance(request, GetACL):
        return OPEN_ACL_UNSAFE, stat_of(tree, path)
    raise NotImplementedError(request)


def execute(tree: Tree, request: Any, session: int) -> tuple[Tree, Any]:
    """(the tree afterwards, the reply), where an error is a reply, too."""
    after = dict(tree)
    if not isinstance(request, Multi):
        try:
            return after, apply(after, request, session)
        except KazooException as error:
            return tree, error
    results = []
    for index, operation in enumerate(request.operations):
        try:
            results.append(apply(after, operation, session))
        except KazooException as error:
            return tree, MultiFailed(index, error)
    return after, results


Operation = tuple[Any, ...]


@dataclass(frozen=True)
class Process:
    """Where a process is: its operations, and the replies to the current one."""

    number: int
    operations: tuple[Operation, ...]
    replies: tuple[Any, ...] = ()
    position: int = 0  # within a list of calls sent together
    changed: int = 0  # how often a step of the current operation changed the tree
    facts: frozenset[Any] = frozenset()  # what was true while it ran
    current: frozenset[int] = frozenset()  # shards it may not read stale
    alive: bool = True
    session: bool = True

    @property
    def running(self) -> bool:
        return self.alive and bool(self.operations)


@dataclass(frozen=True)
class World:
    trees: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    older: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    processes: tuple[Process, ...]
    crashes: int


Frozen = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]


def freeze(trees: dict[int, Tree]) -> Frozen:
    return tuple(
        (shard, tuple(sorted(t.items()))) for shard, t in sorted(trees.items())
    )


def thaw(frozen: Frozen) -> dict[int, Tree]:
    return {shard: dict(items) for shard, items in frozen}


class Explorer:
    """Every order of the steps of `processes`, from a tree with `nodes` in it."""

    def __init__(
        self,
        processes: list[list[Operation]],
        nodes: list[str] | dict[str, int],
        crashes: int = 0,
        stale: bool = False,
        rules: Rules | None = None,
        setup: list[Operation] | None = None,
    ) -> None:
        self.layout = Layout(rules or Rules())
        self.stale = stale
        self.paths = self._paths([*processes, setup or []], nodes)
        self.states = 0
        self.replayed: dict[Any, tuple[Any, Any]] = {}
        self.trees: dict[Any, dict[str, int]] = {}
        trees: dict[int, Tree] = {}
        for path in self.paths | {"/", ""}:
            for bucket in self.layout.buckets(path):
                trees.setdefault(bucket.shard, {fence(bucket.shard): 0, "/parkazoo": 0})
        self._fill(trees, nodes, setup or [])
        actors = tuple(
            Process(number + 1, tuple(operations))
            for number, operations in enumerate(processes)
        )
        self.start = World(freeze(trees), freeze(trees), actors, crashes)

    @staticmethod
    def _paths(
        processes: list[list[Operation]], nodes: list[str] | dict[str, int]
    ) -> set[str]:
        found = set(nodes)
        for operations in processes:
            found |= {operation[1] for operation in operations}
        return found

    def _fill(self, trees: dict[int, Tree], nodes: Any, setup: list[Operation]) -> None:
        top = self.layout.buckets("")[0]
        for path in (top.anchor, top.path, self.layout.node("/").path):
            trees[top.shard][path] = 0
        for bucket in self.layout.buckets("/"):
            trees[bucket.shard][bucket.anchor] = trees[bucket.shard][bucket.path] = 0
        owners = nodes if isinstance(nodes, dict) else dict.fromkeys(nodes, 0)
        operations = [("create", path) for path in sorted(owners)] + setup
        for number, operation in enumerate(operations):
            machine = self.machine(operation, f"setup{number}")
            reply = None
            try:
                call = machine.send(None)
                while True:
                    calls = call if isinstance(call, list) else [call]
                    answers = []
                    for one in calls:
                        tree, reply = execute(
                            trees[one.shard], one.request, owners.get(operation[1], 0)
                        )
                        trees[one.shard] = tree
                        answers.append(reply)
                    if isinstance(call, list):
                        call = machine.send(answers)
                    elif isinstance(reply, Exception):
                        call = machine.throw(reply)
                    else:
                        call = machine.send(reply)
            except StopIteration:
                pass
        for path, owner in owners.items():
            node = self.layout.node(path)
            if node.path in trees[node.shard]:
                trees[node.shard][node.path] = owner

    # -- running one operation ---------------------------------------------------

    def machine(self, operation: Operation, tag: str) -> Any:
        kind, path = operation[:2]
        names: Iterator[int] = iter(range(1000))

        def new() -> str:
            return f"{tag}.{next(names)}"

        if kind == "create":
            flags = operation[2] if len(operation) > 2 else 0
            request = Create(path, b"", OPEN_ACL_UNSAFE, flags)
            return directory.create(self.layout, path, request, new)
        if kind == "delete":
            return directory.delete(self.layout, path, -1)
        if kind == "recursive":
            return self._recursive(path)
        if kind == "children":
            return directory.children(self.layout, path, False)
        raise NotImplementedError(kind)

    def _recursive(self, path: str) -> Any:
        """Delete a subtree bottom up, as the client does."""
        try:
            names = yield from directory.children(self.layout, path, False)
            for child in names:
                yield from self._recursive(join(path, child))
            yield from directory.delete(self.layout, path, -1)
        except NoNodeError:
            pass
        return True

    def replay(self, process: Process) -> tuple[Any, Any]:
        """(what it asks for next, None) or (None, its outcome)."""
        key = (process.number, process.operations, repr(process.replies))
        if key not in self.replayed:
            self.replayed[key] = self._replay(process)
        return self.replayed[key]

    def _replay(self, process: Process) -> tuple[Any, Any]:
        tag = f"{process.number}.{len(process.operations)}"
        machine = self.machine(process.operations[0], tag)
        try:
            asked = machine.send(None)
            for reply in process.replies:
                if isinstance(reply, Exception):
                    asked = machine.throw(reply)
                else:
                    asked = machine.send(reply)
            return asked, None
        except StopIteration as stopped:
            return None, (stopped.value,)
        except KazooException as error:
            return None, error

    # -- the logical tree --------------------------------------------------------

    def logical(self, trees: dict[int, Tree]) -> dict[str, int]:
        """The logical tree; fails if a bucket is without its directory."""
        key = freeze(trees)
        if key not in self.trees:
            self.trees[key] = self._logical(trees)
        return self.trees[key]

    def _logical(self, trees: dict[int, Tree]) -> dict[str, int]:
        nodes = {}
        for shard, tree in trees.items():
            for path, owner in tree.items():
                parts = path.split("/")
                if len(parts) == 6 and parts[4] == BUCKET[1:]:
                    nodes[join(decode(parts[3]), parts[5])] = owner
                elif len(parts) == 5 and parts[4] == BUCKET[1:]:
                    self._bucket_has_directory(trees, decode(parts[3]), shard)
        return nodes

    def _bucket_has_directory(
        self, trees: dict[int, Tree], path: str, shard: int
    ) -> None:
        if path in ("", "/"):
            return
        node = self.layout.node(path)
        tree = trees[node.shard]
        if not any(parent(other) == node.path for other in tree):
            raise Broken(f"shard {shard}: a bucket of {path}, which has no link")

    def check_step(
        self, before: dict[str, int], after: dict[str, int], expiry: bool
    ) -> bool:
        """Is this a legal change of the logical tree? Returns whether it is one."""
        added, gone = after.keys() - before.keys(), before.keys() - after.keys()
        if expiry:
            if added or any(not before[path] for path in gone):
                raise Broken(f"the end of a session added {added}, removed {gone}")
            return False
        if len(added) + len(gone) > 1:
            raise Broken(f"one step added {added} and removed {gone}")
        for path in added:
            above = parent(path)
            if above not in after and above != "":
                raise Broken(f"{path} was created below a parent that is not there")
            if after.get(above):
                raise Broken(f"{path} was created below an ephemeral")
        for path in gone:
            if any(parent(other) == path for other in after):
                raise Broken(f"{path} was deleted with children in it")
        return bool(added or gone)

    # -- facts and outcomes ------------------------------------------------------

    @staticmethod
    def facts(operation: Operation, tree: dict[str, int]) -> frozenset[Any]:
        kind, path = operation[:2]
        above = parent(path)
        found: set[Any] = {"there" if path in tree else "absent"}
        if above not in tree and above != "/":
            found.add("parent absent")
        if tree.get(above):
            found.add("parent ephemeral")
        kids = tuple(sorted(p for p in tree if parent(p) == path))
        if kids:
            found.add("children")
        if kind == "children" and path in tree:
            found.add(kids)
        return frozenset(found)

    @staticmethod
    def check_outcome(process: Process, outcome: Any) -> None:
        operation, facts = process.operations[0], process.facts
        kind = operation[0]
        if kind == "recursive":
            return
        what = f"process {process.number}, {operation}: {outcome!r}"
        if isinstance(outcome, Contention) and not process.changed:
            return  # it may give up, as long as it says so and did nothing
        if isinstance(outcome, Exception):
            if process.changed:
                raise Broken(f"{what}, but it changed the tree")
            truth = {
                NodeExistsError: "there",
                NotEmptyError: "children",
                NoChildrenForEphemeralsError: "parent ephemeral",
                NoNodeError: "parent absent" if kind == "create" else "absent",
            }.get(type(outcome))
            if truth not in facts:
                raise Broken(f"{what}, but that was never so: {set(facts)}")
        elif kind == "children":
            path = operation[1]
            if tuple(sorted(join(path, n) for n in outcome[0])) not in facts:
                raise Broken(f"{what}, but it was never so: {set(facts)}")
        elif process.changed != 1:
            raise Broken(f"{what}, but it made {process.changed} changes")

    # -- exploring ---------------------------------------------------------------

    def run(self, states_max: int = 3_000_000) -> int:
        """Visit everything; returns the number of states. Raises `Broken`."""
        seen = {self._key(self.start)}
        stack: list[tuple[World, Any]] = [(self.start, None)]
        while stack:
            world, trail = stack.pop()
            for label, step in self.steps(world):
                try:
                    following = step()
                except Broken as broken:
                    raise Broken(f"{broken}\n" + self._story(trail, label)) from None
                key = self._key(following)
                if key not in seen:
                    seen.add(key)
                    if len(seen) > states_max:
                        raise RuntimeError(f"more than {states_max} states")
                    stack.append((following, (label, trail)))
        self.states = len(seen)
        return self.states

    @staticmethod
    def _key(world: World) -> Any:
        actors = tuple(
            (len(p.operations), repr(p.replies), p.position, p.changed, p.facts,
             p.current, p.alive, p.session)
            for p in world.processes
        )  # fmt: skip
        return hash((world.trees, world.older, actors, world.crashes))

    @staticmethod
    def _story(trail: Any, last: str) -> str:
        lines = [last]
        while trail:
            lines.append(trail[0])
            trail = trail[1]
        return "\n".join(reversed(lines))

    def steps(self, world: World) -> Iterator[tuple[str, Callable[[], World]]]:
        for process in world.processes:
            if not process.running:
                if not process.alive and process.session:
                    yield (
                        f"session {process.number} ends",
                        lambda p=process: self._expire(world, p),
                    )
                continue
            asked, _ = self.replay(process_without_partial(process))
            calls = asked if isinstance(asked, list) else [asked]
            call = calls[process.position]
            writes = isinstance(call.request, (Multi, Sync))
            for old in (False, True):
                if old and (
                    not self.stale or writes or call.shard in process.current
                    or dict(world.older)[call.shard] == dict(world.trees)[call.shard]
                ):  # fmt: skip
                    continue
                label = f"{process.number} {process.operations[0]} {call.request}"
                yield (
                    label + (" (stale)" if old else ""),
                    lambda p=process, c=calls, o=old: self._step(world, p, c, o),
                )
            if world.crashes:
                yield (
                    f"{process.number} crashes",
                    lambda p=process: self._crash(world, p),
                )

    @staticmethod
    def _put(world: World, process: Process) -> tuple[Process, ...]:
        return tuple(
            process if other.number == process.number else other
            for other in world.processes
        )

    def _crash(self, world: World, process: Process) -> World:
        dead = replace(process, alive=False)
        return replace(
            world, processes=self._put(world, dead), crashes=world.crashes - 1
        )

    def _expire(self, world: World, process: Process) -> World:
        trees = thaw(world.trees)
        before = self.logical(trees)
        for shard, tree in trees.items():
            trees[shard] = {p: o for p, o in tree.items() if o != process.number}
        after = self.logical(trees)
        self.check_step(before, after, True)
        gone = replace(process, session=False)
        others = self._learn(self._put(world, gone), after)
        return replace(world, trees=freeze(trees), processes=others)

    def _learn(
        self, processes: tuple[Process, ...], tree: dict[str, int]
    ) -> tuple[Process, ...]:
        return tuple(
            replace(p, facts=p.facts | self.facts(p.operations[0], tree))
            if p.running
            else p
            for p in processes
        )

    def _step(
        self, world: World, process: Process, calls: list[Any], old: bool
    ) -> World:
        trees = thaw(world.trees)
        call = calls[process.position]
        before = self.logical(trees)
        source = dict(dict(world.older)[call.shard]) if old else trees[call.shard]
        if not process.facts:
            process = replace(process, facts=self.facts(process.operations[0], before))
        tree, reply = execute(source, call.request, process.number)
        older = dict(world.older)
        if not old:
            process = replace(process, current=process.current | {call.shard})
        others = self._put(world, process)
        changed = False
        if not old and tree != trees[call.shard]:
            older[call.shard] = dict(world.trees)[call.shard]
            trees[call.shard] = tree
            after = self.logical(trees)
            changed = self.check_step(before, after, False)
            others = tuple(
                p if p.number == process.number
                else replace(p, current=p.current - {call.shard})
                for p in others
            )  # fmt: skip
            others = self._learn(others, after)
        process = next(p for p in others if p.number == process.number)
        process = self._resumed(process, calls, reply, changed, self.logical(trees))
        return World(
            freeze(trees),
            tuple(sorted(older.items())),
            tuple(process if p.number == process.number else p for p in others),
            world.crashes,
        )

    def _resumed(
        self,
        process: Process,
        calls: list[Any],
        reply: Any,
        changed: bool,
        tree: dict[str, int],
    ) -> Process:
        process = replace(process, changed=process.changed + changed)
        asked, _ = self.replay(process_without_partial(process))
        if isinstance(asked, list):
            partial = (*process.replies[len(process.replies) - process.position :],
                       reply)  # fmt: skip
            done = process.replies[: len(process.replies) - process.position]
            if len(partial) < len(calls):
                return replace(
                    process, replies=(*done, *partial), position=len(partial)
                )
            process = replace(process, replies=(*done, list(partial)), position=0)
        else:
            process = replace(process, replies=(*process.replies, reply))
        asked, outcome = self.replay(process)
        if asked is not None:
            return process
        if isinstance(outcome, tuple):
            outcome = outcome if process.operations[0][0] == "children" else outcome[0]
        self.check_outcome(process, outcome)
        rest = process.operations[1:]
        facts = self.facts(rest[0], tree) if rest else frozenset()
        return replace(
            process, operations=rest, replies=(), position=0, changed=0, facts=facts
        )


def process_without_partial(process: Process) -> Process:
    """The process before the replies to the list of calls it is in the middle of."""
    cut = len(process.replies) - process.position
    return replace(process, replies=process.replies[:cut])
