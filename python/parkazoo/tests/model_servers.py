"""Made-up ZooKeeper servers for an exhaustive explorer, and the client that asks them.

What: ensembles whose every request is one atomic step on a tree of znodes, and what
the client's own functions find in place of its connections: whoever asks a server
something is stopped there, as a routine, until the explorer answers.

Must never: know what is explored, or contain a second version of the client's work.
`Ensemble` has the handful of Kazoo's calls in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet
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

from parkazoo import buckets, intents, operation, remove
from parkazoo.mapping import parent
from parkazoo.steps import EPHEMERAL, Multi, MultiFailed


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
        hidden = path.endswith("/hidden")  # but from everybody here
        return [] if hidden else OPEN_ACL_UNSAFE, stat_of(tree, path)
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
    routine = getcurrent()
    if routine.stopped:
        raise GreenletExit
    reply = routine.parent.switch((name, request))
    if isinstance(reply, Exception):
        raise reply
    return reply


class Ensemble:
    """One session with one ensemble, as `remove` and `intents` use it."""

    connected = True

    def __init__(self, name: str, session: int) -> None:
        self.name, self._session_id = name, session

    def sync(self, path: str) -> Any:
        return asks(self.name, Sync(path))

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

    def transaction(self) -> Together:
        return Together(self.name)


def refused(count: int, index: int, error: Exception) -> list[Any]:
    """The answer to a transaction of so many operations, of which one is refused."""
    before = [RolledBackError() for _ in range(index)]
    return [*before, error, *(RuntimeInconsistency(),) * (count - index - 1)]


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
            return refused(len(self.operations), failed.index, failed.error)


class Result:
    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self.run: Callable[[], None] = lambda: None

    def set(self, value: Any = None) -> None:
        self.value = value

    def set_exception(self, error: Exception) -> None:
        self.error = error

    def wait(self) -> None: ...

    def get(self) -> Any:
        self.run()
        if self.error is not None:
            raise self.error
        return self.value


class InTurn:
    """In place of `operation.Operation`: several at once are done one by one, when
    their answer is waited for, and at once if nobody waits. Their order among each
    other is not what is judged."""

    def __init__(self, client: Any, machine: Any, done: Any, failed: Any) -> None:
        self.client, self.machine = client, machine
        self.done, self.failed = done, failed
        self.ensemble: Any = None

    def resume(self, value: Any, error: Any) -> None:
        if isinstance(getattr(self.done, "__self__", None), Result):
            self.done.__self__.run = self.run
        else:
            self.run()

    def run(self) -> None:
        try:
            self.done(drive(self.client, self.machine, self.asked))
        except KazooException as error:
            self.failed(error)

    def asked(self, name: str) -> None:
        self.ensemble = self.client._sessions.by_name[name]


def drive(
    client: Any, machine: Any, asked_at: Callable[[str], None] = lambda name: None
) -> Any:
    """Run a step machine to its end."""
    owners = client._sessions.table.owners

    def answer(call: Any) -> Any:
        try:
            asked_at(owners[call.shard])
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
    before = remove.ask, intents.ask, operation.Operation, buckets.uuid
    remove.ask = intents.ask = ask  # type: ignore[assignment]
    operation.Operation = InTurn  # type: ignore[assignment,misc]
    names = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=getcurrent().name()))
    buckets.uuid = names  # type: ignore[assignment]
    try:
        yield
    finally:
        remove.ask, intents.ask = before[:2]
        operation.Operation = before[2]  # type: ignore[misc]
        buckets.uuid = before[3]


class Routine(greenlet):
    """One process, from its first step; it makes the same names every time."""

    def __init__(self, number: int, run: Callable[[], Any]) -> None:
        super().__init__(run)
        self.number, self.names = number, 0
        self.stopped = False

    def stop(self) -> None:
        """It asks nothing more, whatever it would do on its way out."""
        self.stopped = True
        self.throw()

    def name(self) -> str:
        self.names += 1
        return f"{self.number}.{self.names}"
