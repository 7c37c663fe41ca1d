"""`parkazoo.aio`: recipes, listeners and pooled clients on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import parkazoo.aio
from conftest import EnsembleFactory, started
from servers import PATIENCE_SECONDS, wait_until


def test_recipes_are_awaited(ensembles: EnsembleFactory) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    async def program() -> None:
        async with parkazoo.aio.Client(hosts, timeout=30) as client:
            counter = await client.recipe("Counter", "/hits")
            await asyncio.gather(
                *[counter.on_thread(lambda c: c + 2) for _ in range(5)]
            )
            assert await counter.value() == 10
            queue = await client.recipe("LockingQueue", "/jobs")
            await queue.put_all([b"a", b"b"])
            assert await queue.get(PATIENCE_SECONDS) == b"a"
            assert await queue.consume()
            party = await client.recipe("Party", "/members", "me")
            await party.join()
            assert await party.on_thread(list) == ["me"]

            seen: asyncio.Queue[Any] = asyncio.Queue()
            await client.create("/watched", b"1")
            await client.recipe(
                "DataWatch", "/watched", lambda data, stat: seen.put_nowait(data)
            )
            await client.set("/watched", b"2")
            told = []
            while b"2" not in told:
                told.append(await asyncio.wait_for(seen.get(), PATIENCE_SECONDS))
            assert (await client.server_version(retries=1))[:2] == (3, 9)

    asyncio.run(program())


def test_functions_are_called_on_the_loop_and_as_often_as_kazoos(
    ensembles: EnsembleFactory,
) -> None:
    """A watch that was set twice was called twice; and what a DataWatch was given as
    `func` was called off the loop, also when nobody had waited for the watch."""
    (one,) = ensembles(1)

    async def program() -> None:
        async with parkazoo.aio.Client(one.hosts, timeout=30) as client:
            seen: list[Any] = []
            await client.create("/x", b"0")
            await client.get("/x", seen.append)
            await client.get("/x", seen.append)
            await client.exists("/x", seen.append)
            heard: list[Any] = []  # CONNECTED, maybe: `start` does not wait for that
            client.add_listener(heard.append)
            client.add_listener(heard.append)
            client.remove_listener(heard.append)
            assert not client.client.state_listeners
            with pytest.raises(TypeError):
                await client.get("/x", 1)

            def told(*arguments: Any) -> None:
                threads.append(threading.current_thread())
                given.append(arguments)

            async def told_too(data: bytes, stat: Any) -> None:
                told(data)

            threads: list[threading.Thread] = []
            given: list[tuple[Any, ...]] = []
            await client.recipe("DataWatch", "/x", func=told_too)
            await client.recipe("ChildrenWatch", path="/x", func=told, send_event=True)
            with pytest.raises(TypeError, match="give it the function"):
                await client.recipe("DataWatch", "/x")

            cancelled = asyncio.create_task(
                client.recipe("DataWatch", "/x", lambda *_: seen.append("cancelled"))
            )
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            seen.clear()  # what the watch's thread told before the cancelling was heard
            await asyncio.sleep(0.5)
            await client.set("/x", b"1")
            while not seen or (b"1",) not in given:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)  # for what is too much
            assert [event.type for event in seen] == ["CHANGED"]
            assert given == [(b"0",), ([], None), (b"1",)]
            assert set(threads) == {threading.main_thread()}

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


MADE: dict[str, tuple[Any, ...]] = {
    "Barrier": ("/p",),
    "ChildrenWatch": ("/", print),
    "Counter": ("/c",),
    "DataWatch": ("/", print),
    "DoubleBarrier": ("/p", 2),
    "Election": ("/p",),
    "Lock": ("/p",),
    "LockingQueue": ("/p",),
    "MultiNonBlockingLease": (1, "/m", timedelta(hours=1)),
    "NonBlockingLease": ("/l", timedelta(hours=1)),
    "Party": ("/p",),
    "Queue": ("/p",),
    "ReadLock": ("/p",),
    "Semaphore": ("/p",),
    "SetPartitioner": ("/s", ("a", "b")),
    "ShallowParty": ("/p",),
    "WriteLock": ("/p",),
}


def test_no_name_of_ours_hides_one_of_a_recipe(ensembles: EnsembleFactory) -> None:
    """`await election.run(lead)` called `lead` itself: nobody was elected, all led."""
    (one,) = ensembles(1)

    async def program() -> None:
        async with parkazoo.aio.Client(one.hosts, timeout=30) as client:
            kazoos = {
                name
                for name, made in vars(client.client).items()
                if getattr(getattr(made, "func", None), "__module__", "").startswith(
                    "kazoo.recipe."
                )
            }
            assert kazoos == set(MADE)
            for name, arguments in MADE.items():
                recipe = await client.recipe(name, *arguments)
                ours = {*vars(parkazoo.aio.Recipe), *vars(recipe)} - set(dir(object))
                both = ours & set(dir(recipe._made)) - {"__dict__", "__weakref__"}
                # A lease's, which ours hands on.
                assert both - {"__module__", "__bool__"} == set(), name

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


@pytest.mark.parametrize(
    "name", ["Lock", "ReadLock", "WriteLock", "Semaphore", "of Kazoo"]
)
def test_what_is_acquired_is_held(ensembles: EnsembleFactory, name: str) -> None:
    """A recipe that was made by `recipe` was entered by everybody at once."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    async def program() -> None:
        async with (
            parkazoo.aio.Client(hosts, timeout=30) as client,
            parkazoo.aio.Client(hosts, timeout=30) as other,
        ):

            async def made(of: parkazoo.aio.Client) -> Any:
                if name == "of Kazoo":
                    return of.client.Lock("/lock")
                return await of.recipe(name, "/lock")

            mine, theirs = await made(client), await made(other)
            async with client.acquired(mine) as held:
                assert held is mine
                if name == "ReadLock":
                    theirs = await other.recipe("WriteLock", "/lock")
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(enter(other, theirs), 1)
            await enter(other, theirs)

    async def enter(client: parkazoo.aio.Client, recipe: Any) -> None:
        async with client.acquired(recipe):
            pass

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


def test_what_cannot_be_acquired_is_refused(ensembles: EnsembleFactory) -> None:
    (one,) = ensembles(1)

    async def program() -> None:
        async with parkazoo.aio.Client(one.hosts, timeout=30) as client:
            for refused in (
                asyncio.Lock(),
                await client.recipe("Election", "/e"),
                client.client.LockingQueue("/q"),
            ):
                with pytest.raises(TypeError, match="give a Lock, ReadLock"):
                    async with client.acquired(refused):
                        raise AssertionError("it is not held")

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


def test_one_leads_at_a_time(ensembles: EnsembleFactory) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    leading, led = [], []

    def begin() -> None:
        leading.append(1)
        assert len(leading) == 1

    def end() -> None:
        leading.pop()
        led.append(1)

    def lead_on_thread(seconds: float) -> None:
        begin()
        time.sleep(seconds)
        end()

    async def lead(seconds: float) -> None:
        begin()
        await asyncio.sleep(seconds)
        end()

    async def program() -> None:
        async with parkazoo.aio.Client(hosts, timeout=30) as client:
            made = [await client.recipe("Election", "/e", str(n)) for n in range(4)]
            await asyncio.gather(
                *[
                    election.run(lead if index % 2 else lead_on_thread, 0.3)
                    for index, election in enumerate(made)
                ]
            )
            assert (led, leading) == ([1] * 4, [])

            async def fail() -> None:
                raise LookupError("led badly")

            with pytest.raises(LookupError):
                await made[0].run(fail)
            await made[1].run(func=lead, seconds=0)
            await client.run(made[2]._made.run, lead, 0)
            assert (led, leading) == ([1] * 6, [])

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


def test_a_lease_that_another_holds_is_false(ensembles: EnsembleFactory) -> None:
    """It was true, as every object is that does not say otherwise."""
    (one,) = ensembles(1)

    async def program() -> None:
        async with parkazoo.aio.Client(one.hosts, timeout=30) as client:

            async def lease(holder: str) -> Any:
                hour = timedelta(hours=1)
                return await client.recipe("NonBlockingLease", "/l", hour, holder)

            assert await lease("me")
            assert not await lease("you")
            with pytest.raises(TypeError, match="on_thread"):
                bool(await client.recipe("Queue", "/q"))

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


def test_pooled_clients_listen_on_the_loop(ensembles: EnsembleFactory) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    async def program() -> None:
        states: list[str] = []
        async with parkazoo.aio.Client(hosts, pooled=True, timeout=30) as first:
            second = parkazoo.aio.Client(hosts, pooled=True, timeout=30)
            second.add_listener(states.append)
            ignored = second.add_listener(lambda state: states.append("ignored"))
            second.remove_listener(ignored)
            await second.start(PATIENCE_SECONDS)
            await second.create("/e", ephemeral=True)
            assert await first.exists("/e") is not None
            await second.stop()
            second.close()
            assert await first.exists("/e") is None
            assert states == ["CONNECTED", "LOST"]

    asyncio.run(program())


# Far more than any pool of threads that one would make for it.
MANY = 100


def test_what_ends_a_wait_does_not_stand_behind_those_who_wait(
    ensembles: EnsembleFactory,
) -> None:
    """They shared 64 threads: once as many waited, the release, the put, the deletion
    and the end of the client stood behind them for ever."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    async def program() -> None:
        client = parkazoo.aio.Client(hosts, timeout=30)
        await client.start(PATIENCE_SECONDS)
        inside, most, held = 0, 0, 0

        async def hold() -> None:
            nonlocal inside, most, held
            async with client.lock("/lock"):
                inside, held = inside + 1, held + 1
                most = max(most, inside)
                await client.exists("/lock")
                inside -= 1

        await asyncio.gather(*[hold() for _ in range(MANY)])
        assert (held, most) == (MANY, 1)

        async def taken() -> bytes:
            queue = await client.recipe("LockingQueue", "/jobs")
            found: bytes = await queue.get()
            await queue.consume()
            return found

        takers = [asyncio.ensure_future(taken()) for _ in range(MANY)]
        await asyncio.sleep(1)
        queue = await client.recipe("LockingQueue", "/jobs")
        jobs = [b"%d" % number for number in range(MANY)]
        await queue.put_all(jobs)
        assert sorted(await asyncio.gather(*takers)) == sorted(jobs)

        takers = [asyncio.ensure_future(taken()) for _ in range(MANY)]
        await asyncio.sleep(1)
        await client.create("/tree/branch", makepath=True)
        await client.delete("/tree", recursive=True)
        await client.stop()
        client.close()
        for taker in takers:
            taker.cancel()

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


def test_more_that_wait_than_there_is_room_for_are_refused_with_words(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ensemble,) = ensembles(1)
    monkeypatch.setattr(parkazoo.aio, "WAITING_MAX", 3)

    async def program() -> None:
        async with parkazoo.aio.Client(ensemble.hosts, timeout=30) as client:
            async with client.lock("/lock"):
                waiting = [
                    asyncio.ensure_future(
                        client.run(client.client.Lock("/lock").acquire)
                    )
                    for _ in range(3)
                ]
                await asyncio.sleep(0.1)
                with pytest.raises(RuntimeError, match=r"3 calls .* waiting already"):
                    await client.recipe("Counter", "/hits")
            # Who held it could release it all the same.
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert await client.run(lambda: "there is room again")

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


@pytest.mark.parametrize("pooled", [False, True], ids=["own", "pooled"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_start_that_is_cancelled_leaves_nothing(
    ensembles: EnsembleFactory, pooled: bool, times: int
) -> None:
    """The client connected when it could, and stayed, for nobody."""
    (one,) = ensembles(1)
    with started(one.hosts):
        pass
    one.pause()

    def calls() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "parkazoo-call"}

    before = calls()  # those of tests that left some waiting
    seconds = 8 if times == 1 else 40
    made = parkazoo.aio.Client(one.hosts, pooled=pooled, timeout=seconds)
    cancelled = asyncio.Event()

    async def hold() -> None:
        try:
            async with made:
                raise AssertionError("it has started")
        finally:
            cancelled.set()

    async def program() -> None:
        task = asyncio.create_task(hold())
        await asyncio.sleep(1)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.1)
        if times == 2:  # whoever cancels twice does not wait for a server that hangs
            await asyncio.wait_for(cancelled.wait(), seconds / 2)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))
    one.resume()
    underneath = made.client._carrier if pooled else made.client
    wait_until(lambda: underneath._stopped.is_set(), "it is stopped")
    sessions = underneath._sessions
    wait_until(
        lambda: all(
            ensemble._connection.connection_stopped.is_set()
            for ensemble in list(sessions.by_name.values())
        ),
        "its connections have ended",
    )
    assert not (underneath.connected or sessions.running)
    wait_until(
        lambda: calls() <= before,
        "what was begun has been taken back",
    )
    made.client.start(PATIENCE_SECONDS)  # and may be used again
    assert made.client.exists("/") is not None
    made.client.stop()
    made.client.close()


def test_a_start_that_is_cancelled_as_it_begins_leaves_nothing(
    ensembles: EnsembleFactory,
) -> None:
    (one,) = ensembles(1)

    async def program() -> None:
        for turns in (1, 2, 3):
            client = parkazoo.aio.Client(one.hosts, timeout=30)
            task = asyncio.create_task(client.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            sessions = client.client._sessions
            assert not (client.connected or sessions.running)
            for ensemble in sessions.by_name.values():
                assert ensemble._connection.connection_stopped.is_set()

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))


@pytest.mark.parametrize("loop_ends", [False, True], ids=["goes on", "loop ends"])
def test_who_is_cancelled_twice_as_he_waits_for_a_lock_does_not_keep_it(
    ensembles: EnsembleFactory, loop_ends: bool
) -> None:
    """It was acquired just then, and the second cancellation ended the release."""
    (one,) = ensembles(1)
    with started(one.hosts) as other:

        class Slow:
            """A lock that is given just as its waiter is cancelled."""

            def __init__(self, lock: Any) -> None:
                self.lock, self.go_on = lock, threading.Event()

            def acquire(self) -> bool:
                taken: bool = self.lock.acquire()
                self.go_on.wait(PATIENCE_SECONDS)
                return taken

            def cancel(self) -> None: ...

            def release(self) -> bool:
                return bool(self.lock.release())

        async def program() -> parkazoo.aio.Client:
            client = parkazoo.aio.Client(one.hosts, timeout=30)
            await client.start(PATIENCE_SECONDS)
            slow = Slow(client.client.Lock("/lock"))

            async def hold() -> None:
                async with client.acquired(slow):
                    raise AssertionError("it was cancelled")

            task = asyncio.create_task(hold())
            while not slow.lock.is_acquired:
                await asyncio.sleep(0.01)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.05)
            with pytest.raises(asyncio.CancelledError):
                await task
            if loop_ends:
                threading.Timer(0.5, slow.go_on.set).start()
            else:
                slow.go_on.set()
                await asyncio.sleep(1)
            return client

        client = asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))
        wait_until(lambda: other.get_children("/lock") == [], "it is released", 30)
        client.client.stop()
        client.close()


def test_what_a_client_says_of_itself_is_said_on_the_loop_too(
    ensembles: EnsembleFactory,
) -> None:
    one, two = ensembles(2)

    hosts = f"{one.hosts};{two.hosts}"
    with started(hosts) as first:
        first.create("/app")

    async def program() -> None:
        async with parkazoo.aio.Client(f"{hosts}/app", timeout=30) as client:
            assert client.client_state == "CONNECTED"
            assert set(client.client_ids) == {"e0", "e1"}
            assert client.client_id in client.client_ids.values()
            assert client.unchroot("/app/x") == "/x"
            client.set_hosts(f"{two.hosts};{one.hosts}/app")
            assert client.client.bootstrap == [two.hosts, one.hosts]

    asyncio.run(program())
