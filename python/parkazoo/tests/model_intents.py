"""An exhaustive explorer of work with intents: recursive deletes, transactions.

What: runs the client's own functions (`remove`, `intents`), which wait for their
answers, against ensembles whose every request is one atomic step. Each process is a
routine that is stopped wherever it asks a server something; the explorer answers
the processes in every order, lets a process crash, and lets one of its sessions end
at any moment while it goes on with the others: that is what a client does that was
stopped and does not know yet what it has lost.

What is checked, at every step and where nothing is left to do: `Story`.

Must never: contain a second version of what it checks. Only the servers are made up,
and who talks to them directly: `Ensemble` has the handful of Kazoo's calls in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Sync,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import directory, intents, operation, remove
from parkazoo.layout import BUCKET, CONFIG, INTENTS, Layout, decode, fence
from parkazoo.mapping import Rules, Table, join, parent
from parkazoo.steps import EPHEMERAL, Multi, MultiFailed


class Broken(AssertionError):
    """A check failed; the message has the steps that led to it."""


class Znode(NamedTuple):
    owner: int = 0
    version: int = 0
    data: bytes = b""


Tree = dict[str, Znode]
READS = (Exists, GetACL, GetChildren, GetChildren2, GetData, Sync)


# -- servers ---------------------------------------------------------------------


def stat_of(tree: Tree, path: str) -> ZnodeStat:
    node = tree[path]
    kids = sum(1 for other in tree if parent(other) == path)
    return ZnodeStat(0, 0, 0, 0, node.version, 0, 0, node.owner, 0, kids, 0)


def apply(tree: Tree, request: Any, session: int) -> Any:
    """One request on one tree, as the server would; changes `tree` in place."""
    path = request.path
    if isinstance(request, Create):
        if path in tree:
            raise NodeExistsError
        if parent(path) not in tree:
            raise NoNodeError
        owner = session if request.flags & EPHEMERAL else 0
        tree[path] = Znode(owner, 0, bytes(request.data or b""))
        return path
    if isinstance(request, Exists):
        return stat_of(tree, path) if path in tree else None
    if isinstance(request, Sync):
        return path
    if path not in tree:
        raise NoNodeError
    node = tree[path]
    if isinstance(request, (Delete, SetData, CheckVersion)) and request.version not in (
        -1,
        node.version,
    ):
        raise BadVersionError
    if isinstance(request, CheckVersion):
        return True
    if isinstance(request, Delete):
        if any(parent(other) == path for other in tree):
            raise NotEmptyError
        del tree[path]
        return True
    if isinstance(request, SetData):
        tree[path] = Znode(node.owner, node.version + 1, bytes(request.data or b""))
        return stat_of(tree, path)
    if isinstance(request, GetData):
        return node.data, stat_of(tree, path)
    if isinstance(request, GetACL):
        return OPEN_ACL_UNSAFE, stat_of(tree, path)
    names = sorted(other[len(path) + 1 :] for other in tree if parent(other) == path)
    return (names, stat_of(tree, path)) if type(request) is GetChildren2 else names


def execute(tree: Tree, request: Any, session: int) -> tuple[Tree, Any]:
    """(the tree afterwards, the reply), where an error is a reply, too."""
    if isinstance(request, READS):
        try:
            return tree, apply(tree, request, session)
        except KazooException as error:
            return tree, error
    after, results = dict(tree), []
    several = isinstance(request, Multi)
    for index, one in enumerate(request.operations if several else (request,)):
        try:
            results.append(apply(after, one, session))
        except KazooException as error:
            return tree, MultiFailed(index, error) if several else error
    return after, results if several else results[0]


# -- what the client's functions are given -----------------------------------------


def asks(name: str, request: Any) -> Any:
    """Ask an ensemble: the explorer answers when it is this process's turn."""
    reply = getcurrent().parent.switch((name, request))
    if isinstance(reply, Exception):
        raise reply
    return reply


class Ensemble:
    """One session with one ensemble, as `remove` and `intents` use it."""

    connected = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, path: str) -> Any:
        return asks(self.name, GetData(path, None))

    def exists(self, path: str) -> Any:
        return asks(self.name, Exists(path, None))

    def get_children(self, path: str) -> Any:
        return asks(self.name, GetChildren(path, None))

    def set(self, path: str, data: bytes, version: int = -1) -> Any:
        return asks(self.name, SetData(path, data, version))

    def delete(self, path: str, version: int = -1) -> Any:
        return asks(self.name, Delete(path, version))

    def create(self, path: str, data: bytes = b"", ephemeral: bool = False) -> Any:
        return asks(self.name, Create(path, data, [], EPHEMERAL if ephemeral else 0))

    def retry(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    def transaction(self) -> Together:
        return Together(self.name)


class Together:
    """Kazoo's transaction: all of it, or a list of errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: list[Any] = []

    def check(self, path: str, version: int) -> None:
        self.operations.append(CheckVersion(path, version))

    def create(self, path: str, data: bytes = b"", acl: Any = None,
               ephemeral: bool = False) -> None:  # fmt: skip
        flags = EPHEMERAL if ephemeral else 0
        self.operations.append(Create(path, data, acl, flags))

    def delete(self, path: str, version: int = -1) -> None:
        self.operations.append(Delete(path, version))

    def set_data(self, path: str, data: bytes, version: int = -1) -> None:
        self.operations.append(SetData(path, data, version))

    def commit(self) -> list[Any]:
        try:
            results: list[Any] = asks(self.name, Multi(tuple(self.operations)))
            return results
        except MultiFailed as failed:
            after = len(self.operations) - failed.index - 1
            before: list[Any] = [RolledBackError() for _ in range(failed.index)]
            return [*before, failed.error, *(RuntimeInconsistency(),) * after]


class Result:
    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self.run: Callable[[], None] = lambda: None

    def set(self, value: Any = None) -> None:
        self.value = value

    def set_exception(self, error: Exception) -> None:
        self.error = error

    def get(self) -> Any:
        self.run()
        if self.error is not None:
            raise self.error
        return self.value


class InTurn:
    """In place of `operation.Operation`: several at once are done one by one, when
    their answer is waited for. Their order among each other is not what is judged."""

    def __init__(self, client: Any, machine: Any, done: Any, failed: Any) -> None:
        self.client, self.machine = client, machine
        self.done, self.failed = done, failed

    def resume(self, value: Any, error: Any) -> None:
        self.done.__self__.run = self.run

    def run(self) -> None:
        try:
            self.done(drive(self.client, self.machine))
        except KazooException as error:
            self.failed(error)


def drive(client: Any, machine: Any) -> Any:
    """Run a step machine to its end."""
    owners = client._sessions.table.owners

    def answer(call: Any) -> Any:
        try:
            return asks(owners[call.shard], call.request)
        except SessionExpiredError:
            raise  # whatever else there is, this operation is over
        except Exception as error:
            return error

    reply: Any = None
    try:
        while True:
            if isinstance(reply, Exception):
                asked = machine.throw(reply)
            else:
                asked = machine.send(reply)
            if isinstance(asked, list):
                reply = [answer(call) for call in asked]
            else:
                reply = answer(asked)
    except StopIteration as finished:
        return finished.value
    except MultiFailed as failed:
        raise failed.error from None


def ask(client: Any, make: Any) -> Any:
    return drive(client, make(client._layout))


@contextmanager
def in_the_model() -> Iterator[None]:
    """The client's functions ask the explorer, and make names that repeat."""
    before = remove.ask, intents.ask, operation.Operation, directory.uuid
    remove.ask = intents.ask = ask  # type: ignore[assignment]
    operation.Operation = InTurn  # type: ignore[assignment,misc]
    names = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=getcurrent().name()))
    directory.uuid = names  # type: ignore[assignment]
    try:
        yield
    finally:
        remove.ask, intents.ask = before[:2]
        operation.Operation = before[2]  # type: ignore[misc]
        directory.uuid = before[3]


class Routine(greenlet):
    """One process, from its first step; it makes the same names every time."""

    def __init__(self, number: int, run: Callable[[], Any]) -> None:
        super().__init__(run)
        self.number, self.names = number, 0

    def name(self) -> str:
        self.names += 1
        return f"{self.number}.{self.names}"


# -- the explorer ------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """`replies`: the answers so far. `lost`: the ensembles its session has ended at."""

    number: int
    work: tuple[Any, ...]
    replies: tuple[Any, ...] = ()
    digest: int = 0  # of the replies
    lost: frozenset[str] = frozenset()
    alive: bool = True

    @property
    def finishes(self) -> bool:
        """Does it only finish what others have left?"""
        return all(kind == "finish" for kind, *_ in self.work)


@dataclass(frozen=True)
class World:
    """`lives`: by path, the number of the life it leads. `marked`: by intent, the
    life that it is about."""

    trees: tuple[tuple[str, tuple[tuple[str, Znode], ...]], ...]
    processes: tuple[Process, ...]
    lives: tuple[tuple[str, int], ...]
    marked: tuple[tuple[str, int], ...]
    losses: int
    crashes: int


class Explorer:
    """Every order of the steps of `processes`, from a tree with `nodes` in it.

    `losses`: how many sessions may end, `crashes`: how many processes may: those of
    the first only. `left`: work that was begun by somebody who died after so many
    steps, before anybody else began. `renewed`: a session that has ended is followed
    by the next at once, and the process goes on in that.
    """

    def __init__(
        self,
        processes: list[list[Any]],
        nodes: list[str],
        losses: int = 0,
        crashes: int = 0,
        ensembles: int = 2,
        left: tuple[Any, int] | None = None,
        renewed: bool = False,
    ) -> None:
        self.renewed = renewed
        self.layout = Layout(Rules())
        names = {f"e{number}": f"h{number}:1" for number in range(ensembles)}
        self.table = Table.initial(names, Rules())
        self.replayed: dict[Any, Any] = {}
        self.listed: dict[Any, set[str]] = {}
        self.states = 0
        trees: dict[str, Tree] = {}
        for name in names:
            tree = trees[name] = {"/parkazoo": Znode(), INTENTS: Znode()}
            tree[CONFIG] = Znode(0, 0, self.table.serialize())
        for bucket in (*self.layout.buckets(""), *self.layout.buckets("/")):
            tree = trees[self.table.owners[bucket.shard]]
            for path in (fence(bucket.shard), bucket.anchor, bucket.path):
                tree[path] = Znode()
        root = self.layout.node("/")
        trees[self.table.owners[root.shard]][root.path] = Znode()
        self.paths = set(nodes) | {
            entry[1] for work in processes for entry in work if len(entry) > 1
            and isinstance(entry[1], str)
        }  # fmt: skip
        for path in self.paths:
            for bucket in (*self.layout.buckets(path), self.layout.node(path).bucket):
                trees[self.table.owners[bucket.shard]][fence(bucket.shard)] = Znode()
        actors = tuple(
            Process(number + 1, tuple(work)) for number, work in enumerate(processes)
        )
        made = Process(0, tuple(("create", path) for path in sorted(nodes)))
        world = World(self.freeze(trees), (made,), (), (), 0, 0)
        world = self.alone(world)
        if left is not None:
            dying = Process(90, (left[0],))
            world = self.alone(replace(world, processes=(dying,)), left[1])
            world = self._lose(world, world.processes[0], set(names))
        self.start = replace(world, processes=actors, losses=losses, crashes=crashes)

    @staticmethod
    def freeze(trees: dict[str, Tree]) -> Any:
        return tuple((n, tuple(sorted(t.items()))) for n, t in sorted(trees.items()))

    @staticmethod
    def thaw(world: World) -> dict[str, Tree]:
        return {name: dict(items) for name, items in world.trees}

    # -- processes ---------------------------------------------------------------

    def client(self) -> Any:
        by_name = {name: Ensemble(name) for name in self.table.ensembles}
        sessions = SimpleNamespace(
            table=self.table, by_name=by_name, session=by_name.__getitem__
        )
        handler = SimpleNamespace(async_result=Result, sleep_func=lambda seconds: None)
        logger = logging.Logger("model", logging.CRITICAL + 1)
        return SimpleNamespace(
            _sessions=sessions, _layout=Layout(Rules()), handler=handler,
            logger=logger, unchroot=lambda path: path,
        )  # fmt: skip

    def does(self, client: Any, entry: Any) -> Any:
        kind, *rest = entry
        if kind == "recursive":
            return remove.delete_recursive(client, rest[0])
        if kind == "finish":
            return remove.roll_forward(client)
        if kind == "create":
            made = Create(rest[0], b"", OPEN_ACL_UNSAFE, 0)
            return ask(client, lambda layout: directory.create(layout, rest[0], made))
        if kind == "delete":
            return ask(client, lambda layout: directory.delete(layout, rest[0], -1))
        assert kind == "transaction", kind
        result = Result()
        intents.commit(client, list(rest[0]), result)
        results = result.get()
        errors = [r for r in results if isinstance(r, Exception)]
        if errors:
            raise errors[0]
        return results

    def replay(self, process: Process) -> Any:
        """What it asks next, as (ensemble, request); or the outcomes of its work."""
        key = (process.number, process.digest)
        if key not in self.replayed:
            self.replayed[key] = self._replay(process)
        return self.replayed[key]

    def _replay(self, process: Process) -> Any:
        def run() -> list[Any]:
            client, outcomes = self.client(), []
            for entry in process.work:
                try:
                    outcomes.append(self.does(client, entry))
                except SessionExpiredError as error:
                    return [*outcomes, error]
                except KazooException as error:
                    outcomes.append(error)
            return outcomes

        routine = Routine(process.number, run)
        found = routine.switch()
        for reply in process.replies:
            found = routine.switch(reply)
        if not routine.dead:
            routine.throw()
        return found

    # -- what is checked -----------------------------------------------------------

    def logical(self, trees: dict[str, Tree]) -> set[str]:
        nodes: set[str] = set()
        for tree in trees.values():
            nodes |= self._logical(tree)
        return nodes

    def _logical(self, tree: Tree) -> set[str]:
        key = frozenset(tree)
        if key not in self.listed:
            found = (path.split("/") for path in tree if path.count("/") == 5)
            self.listed[key] = {
                join(decode(parts[3]), parts[5])
                for parts in found
                if parts[4] == BUCKET[1:]
            }
        return self.listed[key]

    def _judge(
        self, world: World, process: Process, before: set[str], after: set[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """A step's change of the logical tree is legal, and the process's to make.
        Returns the lives and the marked ones afterwards."""
        lives, marked = dict(world.lives), dict(world.marked)
        added, gone = after - before, before - after
        what = f"process {process.number} added {added}, removed {gone}"
        for path in added:
            if parent(path) not in after and parent(path):
                raise Broken(f"{what}: without a parent")
        for path in gone:
            if any(parent(other) == path for other in after):
                raise Broken(f"{what}: with children in it")
            if process.finishes and not self._may_finish(world, path):
                raise Broken(f"{what}: of a life that no intent is about")
        for path in added:
            lives[path] = lives.get(path, 0) + 1
        return lives, marked

    @staticmethod
    def _may_finish(world: World, path: str) -> bool:
        """Is this node below (or at) a life that a recursive delete is about, or one
        that a transaction has made?"""
        lives = dict(world.lives)
        for intent, life in world.marked:
            root, _, _ = intent.partition("#")
            if root == "*":
                return True  # a transaction's undoing is judged by its outcome
            if (path == root or path.startswith(root + "/")) and lives[root] == life:
                return True
        return False

    def _note_intents(
        self, trees: dict[str, Tree], lives: dict[str, int], marked: dict[str, int]
    ) -> None:
        for tree in trees.values():
            for path in tree:
                name = path[len(INTENTS) + 1 :]
                if not path.startswith(INTENTS + "/") or "/" in name:
                    continue
                if name.startswith("t-"):
                    marked.setdefault(f"*#{name}", 0)
                else:
                    about = str(remove.json.loads(tree[path].data)["path"])
                    marked.setdefault(f"{about}#{name}", lives[about])

    # -- exploring -----------------------------------------------------------------

    def run(self, judge: Callable[[World, dict[str, Tree]], None],
            states_max: int = 2_000_000) -> int:  # fmt: skip
        """Visit everything; `judge` sees each end, when all that is left is finished.
        Returns the number of states. Raises `Broken`."""
        with in_the_model():
            seen = {self._key(self.start)}
            stack: list[tuple[World, Any]] = [(self.start, None)]
            while stack:
                world, trail = stack.pop()
                steps = list(self.steps(world))
                try:
                    if not any(self.asks_next(p) for p in world.processes):
                        self._end(world, judge)
                    for label, step in steps:
                        following = step()
                        key = self._key(following)
                        if key not in seen:
                            seen.add(key)
                            if len(seen) > states_max:
                                raise RuntimeError(f"more than {states_max} states")
                            stack.append((following, (label, trail)))
                except Broken as broken:
                    raise Broken(f"{broken}\n" + self._story(trail)) from None
        self.states = len(seen)
        return self.states

    def asks_next(self, process: Process) -> Any:
        """(ensemble, request), or None if it has ended."""
        found = self.replay(process) if process.alive else None
        return found if isinstance(found, tuple) else None

    @staticmethod
    def _key(world: World) -> Any:
        actors = tuple((p.digest, p.lost, p.alive) for p in world.processes)
        left = (world.losses, world.crashes)
        return hash((world.trees, actors, world.lives, world.marked, left))

    @staticmethod
    def _story(trail: Any) -> str:
        lines = []
        while trail:
            lines.append(trail[0])
            trail = trail[1]
        return "\n".join(reversed(lines))

    def steps(self, world: World) -> Iterator[tuple[str, Callable[[], World]]]:
        for process in world.processes:
            asked = self.asks_next(process)
            if asked is None:
                continue
            name, request = asked
            yield (
                f"{process.number} {name} {request}",
                lambda p=process: self.step(world, p),
            )
            if process.finishes or process.number > 1:
                continue
            if world.crashes:
                yield (
                    f"{process.number} crashes",
                    lambda p=process: self._crash(world, p),
                )
            if world.losses:
                for ensemble in set(self.table.ensembles) - process.lost:
                    yield (
                        f"the session of {process.number} at {ensemble} ends",
                        lambda p=process, e=ensemble: self._lose(world, p, {e}),
                    )

    def step(self, world: World, process: Process) -> World:
        name, request = self.replay(process)
        if name in process.lost and not self.renewed:
            return self._put(world, self._told(process, SessionExpiredError()))
        trees = self.thaw(world)
        if isinstance(request, READS):
            _, reply = execute(trees[name], request, process.number)
            return self._put(world, self._told(process, reply))
        before, old = self.logical(trees), trees[name]
        trees[name], reply = execute(trees[name], request, process.number)
        if trees[name] is not old:
            lives, marked = self._judge(world, process, before, self.logical(trees))
            self._note_intents(trees, lives, marked)
            world = replace(
                world, trees=self.freeze(trees), lives=tuple(sorted(lives.items())),
                marked=tuple(sorted(marked.items())),
            )  # fmt: skip
        return self._put(world, self._told(process, reply))

    @staticmethod
    def _told(process: Process, reply: Any) -> Process:
        digest = hash((process.digest, repr(reply)))
        return replace(process, replies=(*process.replies, reply), digest=digest)

    @staticmethod
    def _put(world: World, process: Process) -> World:
        return replace(
            world,
            processes=tuple(
                process if other.number == process.number else other
                for other in world.processes
            ),
        )

    def _crash(self, world: World, process: Process) -> World:
        dead = replace(process, alive=False)
        world = self._lose(self._put(world, dead), dead, set(self.table.ensembles))
        return replace(world, losses=world.losses + 1, crashes=world.crashes - 1)

    def _lose(self, world: World, process: Process, names: set[str]) -> World:
        trees = self.thaw(world)
        for name in names:
            trees[name] = {
                path: node for path, node in trees[name].items()
                if node.owner != process.number
            }  # fmt: skip
        gone = replace(process, lost=process.lost | names)
        return replace(
            self._put(world, gone), trees=self.freeze(trees), losses=world.losses - 1
        )

    def alone(self, world: World, steps: int = 1000) -> World:
        """Run the only process to its end, or for so many steps."""
        with in_the_model():
            for _ in range(steps):
                (process,) = world.processes
                if self.asks_next(process) is None:
                    break
                world = self.step(world, process)
        return world

    def _end(
        self, world: World, judge: Callable[[World, dict[str, Tree]], None]
    ) -> None:
        """All have ended: whoever comes by finishes what is left, and looks."""
        ended = world
        for process in world.processes:
            ended = self._lose(ended, process, set(self.table.ensembles))
        last = Process(max(p.number for p in world.processes) + 1, (("finish",),))
        ended = self.alone(replace(ended, processes=(last,)))
        trees = self.thaw(ended)
        for name, tree in trees.items():
            left = [path for path in tree if path.startswith(INTENTS + "/")]
            if left:
                raise Broken(f"{name}: {left} was never finished")
        judge(world, trees)

    def outcomes(self, process: Process) -> list[Any] | None:
        """What its callers were told; None if it crashed before."""
        found = self.replay(process)
        return found if isinstance(found, list) else None
