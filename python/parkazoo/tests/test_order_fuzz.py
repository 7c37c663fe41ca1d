"""What one client asks for without waiting is answered as if it had waited.

Random requests are sent in batches, and every answer is compared with that of a tree
in memory, which does them one after the other: on one shard, and with `session_order`
on several, also while the shards move.

Longer: PARKAZOO_FUZZ_SECONDS; other requests: PARKAZOO_FUZZ_SEED.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from conftest import Maker
from model_servers import refused
from parkazoo import ParKazooClient
from parkazoo.mapping import parent, shard_of
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS

SECONDS = float(os.environ.get("PARKAZOO_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("PARKAZOO_FUZZ_SEED", "7"))
pytestmark = pytest.mark.timeout(SECONDS + 300)
DONE = "done"
# Whoever set it may still read and delete, and set another.
ACLS = {
    b"all": OPEN_ACL_UNSAFE,
    b"rcda": [make_acl("world", "anyone", True, False, True, True, True)],
    b"rwda": [make_acl("world", "anyone", True, True, False, True, True)],
}


class Request(NamedTuple):
    """`value`: of an ACL that is set, its name."""

    kind: str
    path: str = ""
    value: bytes = b""
    version: int = -1
    parts: tuple[Request, ...] = ()


class Node(NamedTuple):
    value: bytes
    version: int = 0
    acl: bytes = b"all"
    aversion: int = 0


class Tree:
    """Nodes by path; an answer is a value, names, an ACL, or an error's type."""

    def __init__(self) -> None:
        self.nodes = {"/": Node(b"")}

    def children(self, path: str) -> list[str]:
        return [p for p in self.nodes if p != "/" and parent(p) == path]

    def do(self, request: Request) -> Any:
        kind, path, value, version, parts = request
        if kind == "transaction":
            return self._transact(parts)
        if kind == "remove":
            gone = [p for p in self.nodes if f"{p}/".startswith(f"{path}/")]
            for each in gone:
                del self.nodes[each]
            return DONE
        if kind == "create":
            if parent(path) not in self.nodes:
                return NoNodeError
            if self.nodes[parent(path)].acl == b"rwda":
                return NoAuthError
            if path in self.nodes:
                return NodeExistsError
            self.nodes[path] = Node(value)
            return DONE
        if path not in self.nodes:
            return NoNodeError
        now = self.nodes[path]
        if kind == "set" and now.acl == b"rcda":
            return NoAuthError
        if version not in (-1, now.aversion if kind == "set_acls" else now.version):
            return BadVersionError
        if kind == "set":
            self.nodes[path] = now._replace(value=value, version=now.version + 1)
        if kind == "set_acls":
            self.nodes[path] = now._replace(acl=value, aversion=now.aversion + 1)
        if kind == "get_acls":
            return ACLS[now.acl], now.aversion
        if kind == "delete":
            if self.children(path):
                return NotEmptyError
            del self.nodes[path]
        if kind == "get":
            return now.value
        if kind == "list":
            return sorted(self.children(path))
        return DONE

    def _transact(self, parts: tuple[Request, ...]) -> Any:
        before, results = dict(self.nodes), []
        for number, part in enumerate(parts):
            results.append(self.do(part))
            if results[-1] != DONE:
                self.nodes = before
                return [type(e) for e in refused(len(parts), number, results[-1]())]
        return results


def send(client: Any, request: Request) -> Callable[[], Any]:
    """Ask for it without waiting; what is returned waits for the answer."""
    kind, path, value, version, parts = request
    if kind == "remove":
        try:
            client.delete(path, recursive=True)
        except NoAuthError:
            return lambda: NoAuthError
        return lambda: DONE
    if kind == "transaction":
        both = client.transaction()
        for part in parts:
            add = {
                "create": lambda p=part: both.create(p.path, p.value),
                "set": lambda p=part: both.set_data(p.path, p.value, p.version),
                "delete": lambda p=part: both.delete(p.path),
                "check": lambda p=part: both.check(p.path, p.version),
            }
            add[part.kind]()
        result = both.commit_async()
    elif kind == "create":
        result = client.create_async(path, value)
    elif kind == "set":
        result = client.set_async(path, value, version)
    elif kind == "set_acls":
        result = client.set_acls_async(path, ACLS[value], version)
    elif kind == "list":
        result = client.get_children_async(path)
    else:
        result = getattr(client, f"{kind}_async")(path)

    def answer() -> Any:
        try:
            found = result.get(timeout=PATIENCE_SECONDS)
        except KazooException as error:
            return type(error)
        if kind == "get":
            return found[0]
        if kind == "get_acls":
            return found[0], found[1].aversion
        if kind == "list":
            return sorted(f"{path}/{name}" for name in found)
        if kind == "transaction":
            return [type(r) if isinstance(r, Exception) else DONE for r in found]
        return DONE

    return answer


Batch = Callable[[random.Random, int, Callable[[Request], None]], list[Request]]


def compare(client: ParKazooClient, batch: Batch, seconds: float = SECONDS) -> None:
    """Send batch after batch; `batch` may have requests done at once, before."""
    dice, tree = random.Random(SEED), Tree()

    def at_once(request: Request) -> None:
        assert send(client, request)() == tree.do(request), request

    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        requests = batch(dice, number, at_once)
        waiting = [send(client, request) for request in requests]
        for at, (request, answer) in enumerate(zip(requests, waiting, strict=True)):
            seen, wanted = answer(), tree.do(request)
            if seen != wanted:
                told = "\n".join(f"{n}: {r}" for n, r in enumerate(requests))
                raise AssertionError(
                    f"PARKAZOO_FUZZ_SEED={SEED}, batch {number}, request {at}:"
                    f" {seen}, not {wanted}\n{told}"
                )
        number += 1
    print(f"{number} batches")


def some_value(dice: random.Random) -> bytes:
    return b"%d" % dice.randrange(1000)


def transaction(dice: random.Random, paths: list[str]) -> Request:
    parts = []
    for _ in range(dice.randrange(1, 4)):
        kind = dice.choice(["create", "create", "set", "set", "delete", "check"])
        version = dice.choice([-1, -1, 0, 1]) if kind == "set" else 0
        parts.append(Request(kind, dice.choice(paths), some_value(dice), version))
    cleared = [p._replace(version=-1) if p.kind == "delete" else p for p in parts]
    return Request("transaction", parts=tuple(cleared))


def some_acl(dice: random.Random, path: str) -> Request:
    if dice.random() < 0.4:
        return Request("get_acls", path)
    acl = dice.choice([b"all", *ACLS])
    return Request("set_acls", path, acl, dice.choice([-1, -1, -1, 0, 1]))


def on_leaf(dice: random.Random, path: str) -> Request:
    if dice.random() < 0.2:
        return some_acl(dice, path)
    kind = dice.choice(["create", "create", "delete", "set", "set", "get"])
    version = dice.choice([-1, -1, -1, 0, 1]) if kind == "set" else -1
    return Request(kind, path, some_value(dice), version)


def on_directory(dice: random.Random, path: str) -> Request:
    """Nothing that sets its value: behind its removal that may come before it."""
    if dice.random() < 0.2:
        return some_acl(dice, path)
    kind = dice.choice(["create", "create", "delete", "get", "remove", "made anew"])
    if kind == "made anew":
        parts = Request("delete", path), Request("create", path, some_value(dice))
        few = dice.choice([parts, parts[:1], parts[1:]])
        return Request("transaction", parts=few)
    return Request(kind, path, some_value(dice))


def listing(path: str, before: list[Request]) -> Request:
    """Behind the removal of a directory it may show that yet, and not yet what waits
    for an ACL; then only a look."""
    leaves = [f"{path}/x", f"{path}/y"]
    late = any(
        parent(part.path) == path
        and (
            part.kind == "set_acls"
            or (part.kind == "delete" and part.path not in leaves)
        )
        for request in before
        for part in request.parts or [request]
    )
    return Request("get" if late else "list", path)


def one_shard(lives: int) -> Batch:
    """Children of one directory, one of which is a directory that has, or had, a child;
    in a new one every so many batches."""

    def batch(
        dice: random.Random, number: int, at_once: Callable[[Request], None]
    ) -> list[Request]:
        d = f"/h{number // lives}"
        at_once(Request("create", d))
        if dice.random() < 0.8:
            at_once(Request("remove", f"{d}/k"))
            at_once(Request("create", f"{d}/k"))
            at_once(Request("create", f"{d}/k/z"))
            if dice.random() < 0.7:
                at_once(Request("delete", f"{d}/k/z"))
            if dice.random() < 0.3:  # so that d's bucket may be made anew
                at_once(Request("remove", d))
                at_once(Request("create", d))
        requests = []
        for _ in range(dice.randrange(3, 14)):
            kind = dice.random()
            if kind < 0.2:
                requests.append(transaction(dice, [f"{d}/x", f"{d}/y"]))
            elif kind < 0.5:
                requests.append(on_directory(dice, f"{d}/k"))
            elif kind < 0.6:
                requests.append(listing(d, requests))
            elif kind < 0.62:
                requests.append(Request("remove", d))
            elif kind < 0.72:
                value = some_value(dice)
                requests.append(Request(dice.choice(["get", "set"]), d, value))
            else:
                requests.append(on_leaf(dice, dice.choice([f"{d}/x", f"{d}/y"])))
        return requests

    return batch


def on_two_shards(d: str) -> str:
    """Where a child and its own children are not on one shard: there a creation below
    what is not there may find that it was created later."""
    while shard_of(d) in (shard_of(f"{d}/a"), shard_of(f"{d}/b")):
        d += "-"
    return d


def several_shards(lives: int) -> Batch:
    """Directories made and removed with what is below them, for `session_order`."""

    def batch(
        dice: random.Random, number: int, at_once: Callable[[Request], None]
    ) -> list[Request]:
        d = on_two_shards(f"/s{number // lives}")
        requests = [Request("create", d)]
        if dice.random() < 0.3:
            both = (Request("create", f"{d}/a"), Request("create", f"{d}/b"))
            requests.append(Request("transaction", parts=both))
        for _ in range(dice.randrange(4, 16)):
            sub = dice.choice([f"{d}/a", f"{d}/b"])
            leaf = dice.choice([f"{sub}/x", f"{sub}/y"])
            kind = dice.random()
            if kind < 0.2:
                requests.append(transaction(dice, [f"{sub}/x", f"{sub}/y"]))
            elif kind < 0.45:
                requests.append(on_directory(dice, sub))
            elif kind < 0.55:
                requests.append(listing(d, requests))
            else:
                requests.append(on_leaf(dice, leaf))
        if (number + 1) % lives == 0 or dice.random() < 0.1:
            requests.append(Request("remove", d))
        return requests

    return batch


@contextmanager
def moving(client: ParKazooClient) -> Iterator[list[int]]:
    """Another client sends all shards round the ensembles, some at a time, and counts
    how often."""
    over, dice, moved, failed = threading.Event(), random.Random(SEED), [0], []

    def move() -> None:
        mover, table = Mover(client), client.table
        assert table is not None
        names = list(table.ensembles)
        shards = list(range(len(table.owners)))
        try:
            while not over.is_set():
                table = client.table
                assert table is not None
                some = dice.sample(shards, len(shards) // 3)
                target = {s: dice.choice(names) for s in some}
                mover.move({s: t for s, t in target.items() if table.owners[s] != t})
                moved[0] += 1
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield moved
    finally:
        over.set()
        thread.join()
    print(f"{moved[0]} moves")
    assert not failed, failed


@pytest.mark.parametrize("session_order", [False, True])
def test_on_one_shard(make: Maker, session_order: bool) -> None:
    compare(make(session_order=session_order), one_shard(1))


def test_on_several_shards_with_session_order(make: Maker) -> None:
    compare(make(session_order=True), several_shards(1))


@pytest.mark.parametrize("session_order", [False, True])
def test_while_shards_move(make: Maker, session_order: bool) -> None:
    client, mover = make(session_order=session_order), make()
    with moving(mover):
        compare(client, several_shards(20) if session_order else one_shard(20))
