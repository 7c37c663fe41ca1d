"""An exhaustive explorer of work with intents: recursive deletes, transactions.

What: runs the client's own functions (`remove`, `intents`), which wait for their
answers, against ensembles whose every request is one atomic step. Each process is a
routine that is stopped wherever it asks a server something; the explorer answers
the processes in every order, lets a process crash, and lets one of its sessions end
at any moment while it goes on with the others: that is what a client does that was
stopped and does not know yet what it has lost.

What is checked, at every step and where nothing is left to do: `Story`.

Must never: contain a second version of what it checks. Only the servers are made up:
`model_servers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
)
from kazoo.protocol.serialization import (
    Create,
)
from kazoo.security import OPEN_ACL_UNSAFE

from model_servers import (
    READS,
    Ensemble,
    Result,
    Routine,
    Tree,
    Znode,
    ask,
    execute,
    in_the_model,
)
from parkazoo import directory, intents, remove
from parkazoo.layout import BUCKET, CONFIG, INTENTS, Layout, decode, fence
from parkazoo.mapping import Rules, Table, join, parent


class Broken(AssertionError):
    """A check failed; the message has the steps that led to it."""


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
    unanswered: int = 0


class Explorer:
    """Every order of the steps of `processes`, from a tree with `nodes` in it.

    `losses`: how many sessions may end, of the first `losers` processes; `crashes`:
    how many processes may: the first only. `unanswered`: how many requests of those
    `losers` may be without an answer, whether they arrived or not. `left`: work that
    was begun by somebody who died after so many steps, before anybody else began.
    `renewed`: a session that has ended is followed by the next at once, and the
    process goes on in that.
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
        losers: int = 1,
        unanswered: int = 0,
    ) -> None:
        self.renewed, self.losers = renewed, losers
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
        self.start = replace(
            world, processes=actors, losses=losses, crashes=crashes,
            unanswered=unanswered,
        )  # fmt: skip

    @staticmethod
    def freeze(trees: dict[str, Tree]) -> Any:
        return tuple((n, tuple(sorted(t.items()))) for n, t in sorted(trees.items()))

    @staticmethod
    def thaw(world: World) -> dict[str, Tree]:
        return {name: dict(items) for name, items in world.trees}

    # -- processes ---------------------------------------------------------------

    def client(self, number: int) -> Any:
        by_name = {name: Ensemble(name, number) for name in self.table.ensembles}
        sessions = SimpleNamespace(
            table=self.table, by_name=by_name, seat=lambda: by_name[self.table.seat]
        )
        handler = SimpleNamespace(
            async_result=Result,
            sleep_func=lambda seconds: None,
            spawn=lambda work, *given: work(*given),
        )
        never_again = SimpleNamespace(wait=lambda seconds: True)
        logger = logging.Logger("model", logging.CRITICAL + 1)
        return SimpleNamespace(
            _sessions=sessions, _layout=Layout(Rules()), handler=handler,
            _stopped=never_again,
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
            client, outcomes = self.client(process.number), []
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
            routine.stop()
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
    def _judge_owners(process: Process, before: Tree, after: Tree) -> None:
        """Nobody ends another's ownership, unless with the intent."""
        for path, node in before.items():
            intent, _, name = path.rpartition("/")
            ended = name == "owner" and path not in after and intent in after
            if ended and node.owner != process.number:
                raise Broken(f"process {process.number} ended {path} of {node.owner}")

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
        left = (world.losses, world.crashes, world.unanswered)
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
            if process.number > self.losers:
                continue
            if world.unanswered:
                for arrives in (True, False):
                    yield (
                        f"{process.number} {name} {request} has no answer ({arrives=})",
                        lambda p=process, a=arrives: self._no_answer(world, p, a),
                    )
            if world.crashes and process.number == 1:
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
            self._judge_owners(process, old, trees[name])
            lives, marked = self._judge(world, process, before, self.logical(trees))
            self._note_intents(trees, lives, marked)
            world = replace(
                world, trees=self.freeze(trees), lives=tuple(sorted(lives.items())),
                marked=tuple(sorted(marked.items())),
            )  # fmt: skip
        return self._put(world, self._told(process, reply))

    def _no_answer(self, world: World, process: Process, arrives: bool) -> World:
        after = self.step(world, process) if arrives else world
        after = replace(after, unanswered=world.unanswered - 1)
        return self._put(after, self._told(process, ConnectionLoss()))

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
        """All have ended: whoever comes by finishes what is left, and looks. Nobody may
        keep him from that who lives on, and does nothing more."""
        for name, items in world.trees:
            if owned := [
                path for path, node in items if node.owner and INTENTS in path
            ]:
                raise Broken(f"{name}: {owned} is left to a client that lives")
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
