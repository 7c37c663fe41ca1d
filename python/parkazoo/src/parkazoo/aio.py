"""asyncio: the client with `await`.

    async with parkazoo.aio.Client("h1:2181;h2:2181") as client:
        await client.create("/a", b"1")
        async with client.lock("/lock"):
            ...
        counter = await client.recipe("Counter", "/hits")
        await counter.on_thread(lambda c: c + 1)

What: a front over a `ParKazooClient` of its own (or a `PooledClient`). Data operations
are awaited without a thread of their own: they are Kazoo's `_async` forms, whose
results come back to the event loop. What blocks, as recipes do, runs on a thread.
Watches and listeners are called on the event loop; a coroutine function becomes a task.

Why each on a thread of its own: what waits for a lock is woken by a release, what waits
for a queue by a put. On a pool of threads those who wait would fill it, and who could
wake them would stand behind them in its queue.

What a cancelled task has begun is taken back on a thread, too, so that it is also if
the task is cancelled again, or the event loop ends. The task does not wait for it,
except for a start: servers may be away. The client's end does, and who next acquires
with the same object.

Must never: block the event loop, call a watch or a listener off it, let what ends a
wait stand behind those who wait, or leave a lock held, or a client started, for nobody.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from kazoo.exceptions import LockTimeout

from parkazoo.cancelling import GIVE_BACK_MADE, Call, Seen, insist
from parkazoo.cancelling import other as give_back_other
from parkazoo.client import ParKazooClient
from parkazoo.pool import PooledClient

# Calls of one client that may wait at the same time, for instance for locks. Each has
# a thread; a process has room for some ten thousand.
WAITING_MAX = 4096
# How soon a start is stopped again that began just after it was cancelled.
LOOK_SECONDS = 0.05
# How long the end of a client waits until what cancelled tasks held is given back.
TAKE_BACK_SECONDS = 10.0
# How long a cancelled task waits until what it held is released.
RELEASE_SECONDS = 1.0


def _takes(function: Any, count: int) -> bool:
    """Can it be called with so many arguments?"""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _without_event(function: Any) -> Any:
    """Kazoo's DataWatch calls functions of two arguments and of three."""
    return lambda data, stat, event: function(data, stat)


def _on_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Begin a call that blocks. It has begun, and is not undone by a cancellation.

    :raises RuntimeError: the process may have no more threads.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="parkazoo-call", daemon=True).start()
    return future


def _end(client: Any, taking_back: Iterable[Future[Any]] = ()) -> None:
    wait(taking_back, TAKE_BACK_SECONDS)
    client.stop()
    client.close()


def _take_back_start(client: Any, starting: Future[Any]) -> None:
    while not starting.done():
        client.stop()  # it may not have begun yet
        wait([starting], LOOK_SECONDS)
    _end(client)


class _OnLoop:
    """A user's function, which other threads may call. Equal functions are one watch,
    and one listener, as Kazoo's are.

    `over`: it is called no more.
    """

    def __init__(self, front: Client, function: Any) -> None:
        self.front, self.function, self.over = front, function, False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _OnLoop)
            and self.front is other.front
            and self.function == other.function
        )

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, *arguments: Any) -> Any:
        if self.over:
            return False  # so that Kazoo ends a watch
        loop = self.front._loop
        assert loop is not None
        loop.call_soon_threadsafe(self._call, arguments)
        return None

    def _call(self, arguments: tuple[Any, ...]) -> None:
        if not self.over:
            self.front._call(self.function, arguments)


def _acquirable(recipe: Any) -> Any:
    """What blocks until it is held: Kazoo's own object."""
    made = recipe._made if isinstance(recipe, Recipe) else recipe
    for name in ("acquire", "release"):
        found = getattr(made, name, None)
        if not callable(found) or inspect.iscoroutinefunction(found):
            raise TypeError(
                f"{type(made).__name__} cannot be acquired: it has no {name}() that"
                " blocks; give a Lock, ReadLock, WriteLock or Semaphore, of Kazoo's"
                " client or of this client's recipe()"
            )
    return made


class Recipe:
    """One of Kazoo's recipes. Whatever it has is called, and awaited: methods, and
    attributes, too, because some of them ask the servers.

        queue = await client.recipe("Queue", "/jobs")
        await queue.put(b"x")
        party = await client.recipe("Party", "/members", "me")
        print(await party.on_thread(list))

    `run` of an Election calls its function on a thread, since it may block. What a
    coroutine function gives runs on the event loop, and leads until it ends.
    """

    # Names of ours hide those of Kazoo's recipes: none has any of these.
    def __init__(self, front: Client, made: Any) -> None:
        self._front, self._made = front, made

    async def on_thread(self, function: Callable[[Any], Any]) -> Any:
        """Call a function that blocks with Kazoo's own recipe object, on a thread."""
        return await self._front.run(function, self._made)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def reach(*arguments: Any, **named: Any) -> Any:
            found = getattr(self._made, name)
            return found(*arguments, **named) if callable(found) else found

        async def call(*arguments: Any, **named: Any) -> Any:
            function = partial(reach, *arguments, **named)
            return await self._front._call_of(self._made, name, function)

        return call

    def __bool__(self) -> bool:
        """Whether a lease was obtained."""
        if hasattr(type(self._made), "__bool__"):
            return bool(self._made)
        if hasattr(type(self._made), "__len__"):
            raise TypeError("its length is the servers': await recipe.on_thread(len)")
        return True


class Client:
    """The client for one event loop. Takes what `ParKazooClient` takes, and:

    :param pooled: share sessions with other clients of the process that say so, too;
        takes what `PooledClient` takes, then.
    """

    def __init__(
        self,
        hosts: Any = "127.0.0.1:2181",
        *more: Any,
        pooled: bool = False,
        **options: Any,
    ) -> None:
        kind: Any = PooledClient if pooled else ParKazooClient
        self.client: Any = kind(hosts, *more, **options)
        self._room = threading.BoundedSemaphore(WAITING_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        # What is given back for tasks that were cancelled, and of which object.
        self._taking_back: dict[Future[Any], Any] = {}

    # -- life --------------------------------------------------------------------

    async def start(self, timeout: float = 15) -> None:
        self._loop = asyncio.get_running_loop()
        starting = _on_thread(self.client.start, timeout)
        try:
            await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            await self._finish(_take_back_start, self.client, starting)
            raise

    async def stop(self) -> None:
        await self._finish(_end, self.client, list(self._taking_back))

    async def restart(self) -> None:
        await self._finish(self.client.restart)

    def close(self) -> None:
        """Free what a client that is stopped and will not start again has left."""
        self.client.close()

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stop()
        self.close()

    @property
    def connected(self) -> bool:
        return bool(self.client.connected)

    @property
    def state(self) -> str:
        return str(self.client.state)

    @property
    def client_state(self) -> str:
        return str(self.client.client_state)

    @property
    def client_id(self) -> Any:
        return self.client.client_id

    @property
    def client_ids(self) -> dict[str, tuple[int, bytes]]:
        """Of each ensemble's session; may be given as `client_id`."""
        ids: dict[str, tuple[int, bytes]] = self.client.client_ids
        return ids

    def set_hosts(self, hosts: Any, randomize_hosts: bool | None = None) -> None:
        self.client.set_hosts(hosts, randomize_hosts)

    def unchroot(self, path: str) -> str:
        return str(self.client.unchroot(path))

    def add_listener(self, listener: Callable[[str], Any]) -> Callable[[str], None]:
        """Returns what `remove_listener` of the client underneath takes."""
        on_loop: Callable[[str], None] = self._on_loop(listener)
        self.client.add_listener(on_loop)
        return on_loop

    def remove_listener(self, listener: Callable[[str], Any]) -> None:
        """Takes what `add_listener` was given, or what it returned."""
        ours = isinstance(listener, _OnLoop)
        self.client.remove_listener(listener if ours else self._on_loop(listener))

    async def command(self, cmd: bytes = b"ruok") -> str:
        return str(await self._finish(self.client.command, cmd))

    async def server_version(self, retries: int = 3) -> Any:
        return await self._finish(self.client.server_version, retries)

    # -- running what blocks -------------------------------------------------------

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call something that blocks, such as a recipe's method, on a thread.

        If the task is cancelled, a recipe's method is ended, and what it has obtained
        is given back. Any other function runs on, and what it obtains is kept.

        :raises RuntimeError: `WAITING_MAX` such calls of this client have not ended.
        """
        made, name = getattr(function, "__self__", None), ""
        if made is not None:
            name = getattr(function, "__name__", "")
        return await self._call_of(made, name, partial(function, *arguments))

    async def _call_of(
        self,
        made: Any,
        name: str,
        function: partial[Any],
        give_back: Callable[[Call], None] | None = None,
    ) -> Any:
        call = Call(self.client, made, name, function, self._loop)
        call.give_back = call.give_back or give_back
        if call.give_back is not None and call.acquires:
            before = [f for f, of in list(self._taking_back.items()) if of is made]
            if before:
                await asyncio.wait([asyncio.wrap_future(future) for future in before])
        # Who ends a wait needs no room among those who wait.
        begin = _on_thread if name == "release" else self._begin
        call.begin(begin)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            if call.give_back is not None:
                self._behind(made, call.take_back)
            raise

    def _behind(self, made: Any, function: Callable[[], Any]) -> Future[Any]:
        """Begin what is done behind a cancelled task's back."""
        future = _on_thread(function)
        self._taking_back[future] = made
        future.add_done_callback(self._taking_back.pop)
        return future

    def _begin(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if not self._room.acquire(blocking=False):
            raise RuntimeError(
                f"{WAITING_MAX} calls of this client are waiting already, each on a"
                " thread; let fewer tasks wait at a time, with an asyncio.Semaphore"
            )
        try:
            future = _on_thread(function, *arguments)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    @staticmethod
    async def _finish(function: Callable[..., Any], *arguments: Any) -> Any:
        """The same for what ends by itself, and may be what others wait for."""
        return await asyncio.wrap_future(_on_thread(function, *arguments))

    async def recipe(self, name: str, *arguments: Any, **named: Any) -> Recipe:
        """A recipe by the name of Kazoo's attribute, such as "Queue" or "Counter".

        For "DataWatch" and "ChildrenWatch", which call a function, it is called on
        the event loop; what it returns is not heard, so it cannot end the watch.
        """
        if name in ("DataWatch", "ChildrenWatch"):
            return await self._watch(name, *arguments, **named)
        recipe = getattr(self.client, name)
        if name in GIVE_BACK_MADE:
            recipe = partial(recipe.func, Seen(self.client))
        make = partial(recipe, *arguments, **named)
        return Recipe(self, await self._call_of(None, name, make))

    async def _watch(
        self, name: str, path: str, func: Any = None, *arguments: Any, **named: Any
    ) -> Recipe:
        if not callable(func):
            raise TypeError(f"{name} is no decorator here: give it the function")
        if name == "DataWatch" and not _takes(func, 3):
            func = _without_event(func)
        on_loop = self._on_loop(func)
        make = partial(getattr(self.client, name), path, on_loop, *arguments, **named)
        try:
            return Recipe(self, await self._call_of(None, name, make))
        except asyncio.CancelledError:
            on_loop.over = True
            raise

    async def retry(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Kazoo's `retry`, for a function that blocks."""
        return await self.run(self.client.retry, function, *arguments)

    @asynccontextmanager
    async def lock(
        self, path: str, identifier: str | None = None
    ) -> AsyncIterator[Any]:
        """Hold Kazoo's Lock recipe. Any of its kind works with `acquired`."""
        async with self.acquired(self.client.Lock(path, identifier)) as lock:
            yield lock

    @asynccontextmanager
    async def acquired(self, recipe: Any) -> AsyncIterator[Any]:
        """Hold a recipe that has `acquire` and `release`: one of Kazoo's own, or what
        `recipe` gave for one.

        :raises TypeError: it has not, or they do not block until they have.
        """
        made = _acquirable(recipe)
        held = await self._call_of(
            made, "acquire", partial(made.acquire), give_back_other
        )
        if held is False:
            raise LockTimeout("it was not acquired")
        try:
            yield recipe
        except asyncio.CancelledError:
            releasing = self._behind(made, partial(insist, made.release))
            await asyncio.wait(
                [asyncio.wrap_future(releasing)], timeout=RELEASE_SECONDS
            )
            raise
        except BaseException:
            await self._call_of(made, "release", partial(made.release))
            raise
        await self._call_of(made, "release", partial(made.release))

    # -- data ----------------------------------------------------------------------

    async def create(
        self,
        path: str,
        value: bytes = b"",
        acl: Any = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        include_data: bool = False,
    ) -> Any:
        return await self._result(
            self.client.create_async(
                path, value, acl, ephemeral, sequence, makepath, include_data
            )
        )

    async def ensure_path(self, path: str, acl: Any = None) -> Any:
        return await self._result(self.client.ensure_path_async(path, acl))

    async def exists(self, path: str, watch: Any = None) -> Any:
        return await self._result(self.client.exists_async(path, self._on_loop(watch)))

    async def get(self, path: str, watch: Any = None) -> Any:
        return await self._result(self.client.get_async(path, self._on_loop(watch)))

    async def get_children(
        self, path: str, watch: Any = None, include_data: bool = False
    ) -> Any:
        watch = self._on_loop(watch)
        return await self._result(
            self.client.get_children_async(path, watch, include_data)
        )

    async def get_acls(self, path: str) -> Any:
        return await self._result(self.client.get_acls_async(path))

    async def set_acls(self, path: str, acls: Any, version: int = -1) -> Any:
        return await self._result(self.client.set_acls_async(path, acls, version))

    async def set(self, path: str, value: bytes, version: int = -1) -> Any:
        return await self._result(self.client.set_async(path, value, version))

    async def delete(
        self, path: str, version: int = -1, recursive: bool = False
    ) -> Any:
        if recursive:
            return await self._finish(self.client.delete, path, -1, True)
        return await self._result(self.client.delete_async(path, version))

    async def sync(self, path: str) -> Any:
        return await self._result(self.client.sync_async(path))

    async def add_auth(self, scheme: str, credential: str) -> Any:
        return await self._result(self.client.add_auth_async(scheme, credential))

    async def reconfig(
        self, joining: Any, leaving: Any, new_members: Any, from_config: int = -1
    ) -> Any:
        return await self._result(
            self.client.reconfig_async(joining, leaving, new_members, from_config)
        )

    def transaction(self) -> Any:
        """Kazoo's transaction; hand it to `commit`."""
        return self.client.transaction()

    async def commit(self, transaction: Any) -> Any:
        return await self._result(transaction.commit_async())

    # -- between threads and the loop ------------------------------------------------

    async def _result(self, result: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if future.done():
                return  # the caller was cancelled; the request was not
            if result.successful():
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        result.rawlink(lambda _: loop.call_soon_threadsafe(settle))
        return await future

    def _on_loop(self, function: Any) -> Any:
        return _OnLoop(self, function) if callable(function) else function

    def _call(self, function: Any, arguments: tuple[Any, ...]) -> None:
        outcome = function(*arguments)
        if inspect.isawaitable(outcome):
            task = asyncio.ensure_future(outcome)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
