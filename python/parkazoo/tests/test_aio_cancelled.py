"""`parkazoo.aio`: what a cancelled task has begun is ended, and nothing stays held.

What is "obtained just then" is obtained as the task is cancelled: the recipe's own
method has come to its end, and its thread is kept from handing the result over.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import parkazoo.aio
from conftest import EnsembleFactory
from servers import PATIENCE_SECONDS

HOUR = timedelta(hours=1)
# What happens at once, unless the machine is busy.
SOON_SECONDS = PATIENCE_SECONDS / 3


def calls() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "parkazoo-call"}


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def given_up(call: Any, after: float = 1) -> None:
    """A task is cancelled in that call, and ends at once."""
    begun = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(call, after)
    assert time.monotonic() - begun < after + 10


async def given_up_at(reached: threading.Event, call: Any) -> None:
    """A task is cancelled in that call when it has come so far, and ends at once."""
    task = asyncio.ensure_future(call)
    while not reached.is_set():
        await asyncio.sleep(0.01)
    await given_up(task, 0)


async def given_back(client: parkazoo.aio.Client) -> None:
    """Behind the backs of tasks that were cancelled all is done."""

    async def done() -> bool:
        return not client._taking_back

    assert await eventually(done, SOON_SECONDS), "it is given back"


@contextmanager
def late(made: Any, name: str) -> Iterator[threading.Event]:
    """The method comes to its end, and its thread does not."""
    function, done, go_on = getattr(made, name), threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        outcome = function(*arguments)
        done.set()
        go_on.wait(PATIENCE_SECONDS)
        return outcome

    setattr(made, name, slow)
    try:
        yield done
    finally:
        delattr(made, name)
        go_on.set()


@contextmanager
def late_maker(client: parkazoo.aio.Client, name: str) -> Iterator[threading.Event]:
    made = getattr(client.client, name)
    done, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        outcome = made.func(*arguments)
        done.set()
        go_on.wait(PATIENCE_SECONDS)
        return outcome

    setattr(client.client, name, partial(slow, client.client))
    try:
        yield done
    finally:
        setattr(client.client, name, made)
        go_on.set()


Program = Callable[[parkazoo.aio.Client, parkazoo.aio.Client], Any]


@pytest.fixture
def run(ensembles: EnsembleFactory) -> Callable[[Program], None]:
    """Runs a program with two clients; all their threads have ended before them."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    def run(program: Program) -> None:
        async def whole() -> None:
            before = calls()
            async with (
                parkazoo.aio.Client(hosts, timeout=30) as client,
                parkazoo.aio.Client(hosts, timeout=30) as other,
            ):
                await program(client, other)

                async def ended() -> bool:
                    return calls() <= before

                assert await eventually(ended, SOON_SECONDS), "its threads have ended"

        asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))

    return run


LOCKS = ["Lock", "ReadLock", "WriteLock", "Semaphore"]


@pytest.mark.parametrize("how", ["recipe", "run"])
@pytest.mark.parametrize("name", LOCKS)
def test_a_cancelled_acquire_leaves_nothing_held(
    run: Callable[[Program], None], name: str, how: str
) -> None:
    """It went on, and the lock was held for nobody. A second waiter of a Semaphore, who
    waits for the lock inside it, went on also with `acquired`."""

    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        async def made(of: parkazoo.aio.Client) -> Any:
            return await of.recipe("WriteLock" if name == "ReadLock" else name, "/lock")

        async def acquire(recipe: Any) -> Any:
            if how == "run":
                return await client.run(recipe._made.acquire)
            return await recipe.acquire()

        mine, second = [await client.recipe(name, "/lock") for _ in range(2)]
        async with other.acquired(await made(other)):
            await asyncio.gather(
                given_up(acquire(mine), 1.5), given_up(acquire(second), 1)
            )
            await given_back(client)
        assert not await mine.is_acquired()
        theirs = await made(other)
        assert await asyncio.wait_for(theirs.acquire(), SOON_SECONDS)
        assert await theirs.release()
        # And it serves again.
        assert await asyncio.wait_for(acquire(mine), SOON_SECONDS)
        assert await mine.release()

    run(program)


@pytest.mark.parametrize("name", LOCKS)
def test_what_is_acquired_just_then_is_released(
    run: Callable[[Program], None], name: str
) -> None:
    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        mine = await client.recipe(name, "/lock")
        with late(mine._made, "acquire") as acquired:
            await given_up_at(acquired, mine.acquire())
        theirs = await other.recipe(
            "WriteLock" if name == "ReadLock" else name, "/lock"
        )
        assert await asyncio.wait_for(theirs.acquire(), SOON_SECONDS)
        await theirs.release()
        assert await asyncio.wait_for(mine.acquire(), SOON_SECONDS)
        await mine.release()

    run(program)


def test_who_holds_it_already_goes_on_holding_it(
    run: Callable[[Program], None],
) -> None:
    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        mine = await client.recipe("Lock", "/lock")
        theirs = await other.recipe("Lock", "/lock")
        async with client.acquired(mine):
            await given_up(mine.acquire())
            await given_up(theirs.acquire(), 2)
            assert await mine.is_acquired()
        # Two tasks wait with one object, one of them is cancelled.
        async with client.acquired(mine):
            first = asyncio.create_task(theirs.acquire())
            await asyncio.sleep(0.5)
            await given_up(theirs.acquire(), 0.5)
            assert not first.done()
        assert await asyncio.wait_for(first, SOON_SECONDS)
        await theirs.release()
        # Both are.
        async with client.acquired(mine):
            await asyncio.gather(*[given_up(theirs.acquire()) for _ in range(2)])

            async def alone() -> bool:
                return len(await client.get_children("/lock")) == 1

            assert await eventually(alone, SOON_SECONDS)

    run(program)


def test_what_was_released_just_then_is_not_released_again(
    run: Callable[[Program], None],
) -> None:
    """By then it is held by another task with the same object."""

    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        mine = await client.recipe("Lock", "/lock")
        before = calls()
        assert await mine.acquire()
        waiting = asyncio.create_task(mine.acquire())
        await asyncio.sleep(0.3)
        with late(mine._made, "release") as released:
            await given_up_at(released, mine.release())
            assert await asyncio.wait_for(waiting, SOON_SECONDS)

        async def ended() -> bool:
            return calls() <= before

        assert await eventually(ended, SOON_SECONDS)
        assert await mine.is_acquired()
        await given_up((await other.recipe("Lock", "/lock")).acquire())
        await mine.release()

    run(program)


@pytest.mark.parametrize("name", ["Lock", "Semaphore", "LockingQueue", "Election"])
def test_cancelled_at_any_time_nobody_is_in_the_way(
    run: Callable[[Program], None], name: str
) -> None:
    """Tasks of two clients are cancelled at random; one is inside at a time, and after
    them who comes gets in."""
    dice = random.Random(20261122)
    inside: list[int] = []

    async def once(recipe: Any, number: int) -> None:
        async def lead() -> None:
            assert not inside
            inside.append(number)
            try:
                await asyncio.sleep(dice.random() * 0.02)
            finally:
                inside.remove(number)

        if name == "Election":
            await recipe.run(lead)
        elif name == "LockingQueue":
            await recipe.get()
            try:
                await lead()
            finally:
                await recipe.release()
        else:
            async with recipe._front.acquired(recipe):
                await lead()

    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        recipes = [
            await (other if number % 2 else client).recipe(name, "/p")
            for number in range(6)
        ]
        if name == "LockingQueue":
            await recipes[0].put(b"job")

        async def rounds(number: int) -> None:
            for _ in range(15):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        once(recipes[number], number), dice.random() * 0.3
                    )

        await asyncio.gather(*[rounds(number) for number in range(6)])
        for number in range(6):
            await asyncio.wait_for(once(recipes[number], number), SOON_SECONDS)

    run(program)


@pytest.mark.parametrize("name", ["LockingQueue", "Queue"])
def test_a_cancelled_get_takes_nothing(
    run: Callable[[Program], None], name: str
) -> None:
    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        mine = await client.recipe(name, "/jobs")
        theirs = await other.recipe(name, "/jobs")
        if name == "LockingQueue":
            await given_up(mine.get())
        await theirs.put(b"later", 200)
        await theirs.put(b"job", 150)
        with late(mine._made, "get") as got:
            await given_up_at(got, mine.get())
        await given_back(client)
        assert await asyncio.wait_for(theirs.get(), SOON_SECONDS) == b"job"
        if name == "LockingQueue":
            await theirs.consume()
        assert await asyncio.wait_for(mine.get(), SOON_SECONDS) == b"later"
        if name == "LockingQueue":  # who has an item goes on having it
            with late(mine._made, "get") as got:
                await given_up_at(got, mine.get())
            await given_back(client)
            assert await mine.holds_lock()

    run(program)


def test_a_cancelled_wait_at_a_barrier_ends(run: Callable[[Program], None]) -> None:
    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        async def children(path: str) -> list[str]:
            return list(await other.get_children(path))

        barrier = await client.recipe("Barrier", "/closed")
        await barrier.create()
        await given_up(barrier.wait())

        mine = await client.recipe("DoubleBarrier", "/both", 2)
        await given_up(mine.enter())

        async def nobody() -> bool:
            return await children("/both") == []

        assert await eventually(nobody, SOON_SECONDS)
        theirs = await other.recipe("DoubleBarrier", "/both", 2)
        await asyncio.wait_for(
            asyncio.gather(mine.enter(), theirs.enter()), SOON_SECONDS
        )
        await given_up(mine.leave())
        await asyncio.wait_for(theirs.leave(), SOON_SECONDS)
        assert await eventually(nobody, SOON_SECONDS)

        party = await client.recipe("Party", "/party")
        with late(party._made, "join") as joined:
            await given_up_at(joined, party.join())

        async def left() -> bool:
            return await children("/party") == []

        assert await eventually(left, SOON_SECONDS)

    run(program)


def test_a_cancelled_election_is_led_by_the_next(
    run: Callable[[Program], None],
) -> None:
    leads, ended = threading.Event(), []

    async def lead() -> None:
        leads.set()
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            ended.append(True)

    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        mine = await client.recipe("Election", "/e", "me")
        theirs = await other.recipe("Election", "/e", "they")
        leader = asyncio.create_task(theirs.run(lead))
        while not leads.is_set():
            await asyncio.sleep(0.01)
        await given_up(mine.run(lead))
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        next_leads = []
        await asyncio.wait_for(mine.run(next_leads.append, 1), SOON_SECONDS)
        assert (next_leads, ended) == ([1], [True])
        assert await mine.contenders() == []

    run(program)


def test_a_lease_or_a_partitioner_that_nobody_waits_for_is_given_back(
    run: Callable[[Program], None],
) -> None:
    async def program(client: parkazoo.aio.Client, other: parkazoo.aio.Client) -> None:
        for name in ("NonBlockingLease", "MultiNonBlockingLease"):
            many = () if name == "NonBlockingLease" else (1,)
            path = f"/{name}"

            async def lease(
                of: parkazoo.aio.Client, holder: str, path: str = path
            ) -> Any:
                return await of.recipe(name, *many, path, HOUR, holder)  # noqa: B023

            lock = path if not many else f"{path}/0"
            async with other.lock(lock):
                await given_up(lease(client, "me"))
                await given_back(client)
            assert await lease(other, "they")
            await other.delete(f"{lock}/lease_holder")

            with late_maker(client, name) as obtained:
                await given_up_at(obtained, lease(client, "me"))
            await given_back(client)
            assert await lease(other, "they")
            with late_maker(client, name) as obtained:  # a renewal stays
                await given_up_at(obtained, lease(client, "they"))
            await given_back(client)
            assert not await lease(other, "me")

        await given_up_partitioner(client, other)

    async def given_up_partitioner(
        client: parkazoo.aio.Client, other: parkazoo.aio.Client
    ) -> None:
        with late_maker(client, "SetPartitioner") as joined:
            joining = client.recipe("SetPartitioner", "/set", ("a", "b"))
            await given_up_at(joined, joining)

        async def nobody() -> bool:
            return (await other.get_children("/set/party")) == []

        assert await eventually(nobody, SOON_SECONDS)

    run(program)


@pytest.mark.parametrize("where", ["acquire", "inside"])
def test_time_outs_are_kept_while_servers_are_away(
    ensembles: EnsembleFactory, where: str
) -> None:
    """`asyncio.timeout` round a lock came to its end when the servers came back."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)

    async def hold(client: parkazoo.aio.Client, inside: asyncio.Event) -> None:
        async with client.lock("/lock"):
            inside.set()
            await asyncio.sleep(PATIENCE_SECONDS)

    def pause() -> None:
        for ensemble in taken:
            ensemble.pause()

    async def program() -> None:
        async with parkazoo.aio.Client(hosts, timeout=40) as client:
            await client.ensure_path("/lock")
            inside = asyncio.Event()
            if where == "acquire":
                pause()
            holding = asyncio.create_task(hold(client, inside))
            if where == "inside":
                await inside.wait()
                pause()
            try:
                await given_up(holding)
            finally:
                for ensemble in taken:
                    ensemble.resume()
            async with client.lock("/lock"):
                pass

    asyncio.run(asyncio.wait_for(program(), PATIENCE_SECONDS))
