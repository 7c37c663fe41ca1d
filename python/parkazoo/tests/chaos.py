"""Work to do while things break, recorded for the history checker.

What: callers that create, set, read and delete nodes and directories, take locks,
lead, and use queues, each in a thread, each noting what it asked and what it was
told; and the timetable of faults that runs beside them.

Why: what must hold under faults can only be judged from what callers saw.

Contention is the client's word that a request waited too long and had no effect. It
is taken at that word: such a request is not in the history, so that any trace of it
is a violation.

Must never: record an outcome more certain than the caller's knowledge (a lost
connection makes it unknown, not failed), or swallow an error it does not expect:
`Chaos.errors` must be empty at the end.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    CancelledError,
    ConnectionClosedError,
    ConnectionLoss,
    LockTimeout,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import RetryFailedError

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
from parkazoo.errors import Contention

REFUSALS = {
    NodeExistsError: EXISTS,
    NoNodeError: NO_NODE,
    BadVersionError: BAD_VERSION,
    NotEmptyError: NOT_EMPTY,
}
INTERRUPTIONS = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
    RetryFailedError,
)
# Enough to interleave, few enough that a history stays quick to check.
PAUSE_SECONDS = (0.005, 0.03)

Client = Any


class Chaos:
    """Callers of one namespace and what they saw. `reads` says whether plain reads
    are strict here (one server per ensemble) and so belong into the history."""

    def __init__(self, connect: Callable[[], Client], seed: int, reads: bool) -> None:
        self.connect = connect
        self.seed = seed
        self.reads = reads
        self.history = History()
        self.errors: list[str] = []
        self.contended: list[str] = []
        self.final: dict[str, bytes] = {}
        self.stopping = threading.Event()
        self.progress: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._clients: list[Client] = []

    def start(self, work: Callable[..., None], count: int, *arguments: Any) -> None:
        """Run `work(client, name, rng, *arguments)` over and over, `count` times
        side by side, each with a client of its own."""
        for number in range(count):
            name = f"{work.__name__}{number}"
            client = self.connect()
            self._clients.append(client)
            rng = random.Random(f"{self.seed}/{name}")
            thread = threading.Thread(
                target=self._repeat,
                args=(work, client, name, rng, *arguments),
                name=name,
                daemon=True,
            )
            self._threads.append(thread)
        for thread in self._threads:
            if not thread.is_alive() and thread.ident is None:
                thread.start()

    def _repeat(
        self, work: Callable[..., None], client: Client, name: str, *rest: Any
    ) -> None:
        while not self.stopping.is_set():
            try:
                if client.state == KazooState.CONNECTED:
                    work(client, name, *rest)
                    self.progress[name] = self.progress.get(name, 0) + 1
            except INTERRUPTIONS:
                time.sleep(0.2)
            except Contention as error:
                self.contended.append(f"{name}: {error}")
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
                time.sleep(0.2)
            time.sleep(random.uniform(*PAUSE_SECONDS))

    def stop(self, seconds: float = 60) -> None:
        """Let every caller finish what it is at; one that hangs is an error."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                self.errors.append(f"{thread.name} hangs")
        for client in self._clients:
            # On a starved machine a connection may need longer to end than Kazoo
            # waits for it; what was seen until here is what is judged.
            with contextlib.suppress(*INTERRUPTIONS, WriterNotClosedException):
                client.stop()
                client.close()

    # -- nodes ---------------------------------------------------------------------

    def ask(
        self,
        process: str,
        kind: str,
        path: str,
        call: Callable[[], Any],
        value: Any = None,
        version: int = -1,
        parent_matters: bool = True,
    ) -> Any:
        """Make one call and record it. Returns its result; raises interruptions."""
        asked = self.history.now()
        result, outcome, raised = None, OK, None
        try:
            result = call()
        except tuple(REFUSALS) as error:
            outcome = REFUSALS[type(error)]
        except INTERRUPTIONS as error:
            outcome, raised = UNKNOWN, error
        told = result[0] if kind == "read" and result else None
        if kind == "set" and outcome == OK:
            told = result.version
        if not (kind == "read" and outcome == UNKNOWN):
            answered = self.history.now()
            self.history.record(
                Operation(
                    process,
                    kind,
                    path,
                    asked,
                    answered,
                    outcome,
                    value,
                    version,
                    told,
                    parent_matters,
                )
            )
        if raised is not None:
            raise raised
        return result if outcome == OK else None

    def nodes(
        self, client: Client, name: str, rng: random.Random, directories: list[str]
    ) -> None:
        """One random operation on a node of a directory."""
        path = f"{rng.choice(directories)}/n{rng.randrange(3)}"
        value = f"{name}-{rng.randrange(1 << 40)}".encode()
        kind = rng.choice(["create", "create", "set", "delete", "read"])
        if kind == "create":
            self.ask(name, kind, path, lambda: client.create(path, value), value)
        elif kind == "set":
            self.ask(name, kind, path, lambda: client.set(path, value), value)
        elif kind == "delete":
            self.ask(name, kind, path, lambda: client.delete(path))
        elif self.reads:
            self.ask(name, kind, path, lambda: client.get(path))

    def directories(
        self, client: Client, name: str, rng: random.Random, directories: list[str]
    ) -> None:
        """Create or remove a directory that others work in."""
        path = rng.choice(directories)
        if rng.random() < 0.6:
            call = lambda: client.create(path, b"d")  # noqa: E731
            self.ask(name, "create", path, call, b"d", parent_matters=False)
        else:
            call = lambda: client.delete(path)  # noqa: E731
            self.ask(name, "delete", path, call, parent_matters=False)

    def numbers(
        self, client: Client, name: str, rng: random.Random, directory: str
    ) -> None:
        """Take a sequence number."""
        asked = self.history.now()
        path = client.create(f"{directory}/s-", b"", sequence=True)
        entry = (directory, asked, self.history.now(), int(path[-10:]))
        self.history.numbers.append(entry)

    # -- recipes -------------------------------------------------------------------

    def locks(
        self, client: Client, name: str, rng: random.Random, paths: list[str]
    ) -> None:
        """Hold a lock for a moment, unless the connection wavers meanwhile."""
        path = rng.choice(paths)
        lock = client.Lock(path, name)
        try:
            if not lock.acquire(timeout=5):
                return
        except (LockTimeout, CancelledError):
            return
        with self._held(client, path, name):
            time.sleep(rng.uniform(0, 0.05))
        lock.release()

    def leaders(self, client: Client, name: str, rng: random.Random, path: str) -> None:
        """Lead for a moment."""

        def lead() -> None:
            with self._held(client, path, name):
                time.sleep(rng.uniform(0, 0.05))

        client.Election(path, name).run(lead)

    @contextlib.contextmanager
    def _held(self, client: Client, path: str, name: str) -> Iterator[None]:
        """Record a holding; it ends at the latest when the client says it may."""
        since = self.history.now()
        until: list[float] = []

        def listen(state: str) -> None:
            if state != KazooState.CONNECTED and not until:
                until.append(self.history.now())

        client.add_listener(listen)
        try:
            if client.state == KazooState.CONNECTED:
                yield
            else:
                until.append(since)
                yield
        finally:
            end = min([*until, self.history.now()])
            client.remove_listener(listen)
            self.history.record(Holding(path, name, since, end))

    def puts(self, client: Client, name: str, rng: random.Random, path: str) -> None:
        item = f"{name}-{rng.randrange(1 << 40)}".encode()
        try:
            client.LockingQueue(path).put(item)
        except INTERRUPTIONS:
            self.history.put_unknown.append(item)
            raise
        self.history.put.append(item)

    def takes(self, client: Client, name: str, rng: random.Random, path: str) -> None:
        queue = client.LockingQueue(path)
        sessions = client.client_ids
        try:
            item = queue.get(timeout=1)
        except NoNodeError:
            # Kazoo gives back what it took of an item that is gone; that went by
            # itself if the session did.
            if client.client_ids == sessions:
                raise
            return
        if item is None:
            return
        try:
            consumed = queue.consume()
        except NoNodeError:
            return  # Kazoo's way to say that the session that took it is gone
        except INTERRUPTIONS:
            self.history.taken_unknown += 1
            raise
        if consumed:
            self.history.taken.append(item)

    def drain(self, client: Client, path: str) -> None:
        """At the end: take what is left, so that what is missing is lost."""
        queue = client.LockingQueue(path)
        while (item := queue.get(timeout=2)) is not None:
            assert queue.consume()
            self.history.taken.append(item)


def final_state(client: Client, directories: list[str]) -> dict[str, bytes]:
    """What exists under the directories once everything has calmed down."""
    found: dict[str, bytes] = {}
    for directory in directories:
        client.sync(directory)
        with contextlib.suppress(NoNodeError):
            found[directory] = client.get(directory)[0]
            for child in client.get_children(directory):
                path = f"{directory}/{child}"
                client.sync(path)
                found[path] = client.get(path)[0]
    return found
