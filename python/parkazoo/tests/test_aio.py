"""`parkazoo.aio`: recipes, listeners and pooled clients on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import parkazoo.aio
from conftest import EnsembleFactory
from servers import PATIENCE_SECONDS


def test_recipes_are_awaited(ensembles: EnsembleFactory) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))

    async def program() -> None:
        async with parkazoo.aio.Client(hosts, timeout=30) as client:
            counter = await client.recipe("Counter", "/hits")
            await asyncio.gather(*[counter.run(lambda c: c + 2) for _ in range(5)])
            assert await counter.value() == 10
            queue = await client.recipe("LockingQueue", "/jobs")
            await queue.put_all([b"a", b"b"])
            assert await queue.get(PATIENCE_SECONDS) == b"a"
            assert await queue.consume()
            party = await client.recipe("Party", "/members", "me")
            await party.join()
            assert await party.run(list) == ["me"]

            seen: asyncio.Queue[Any] = asyncio.Queue()
            await client.create("/watched", b"1")
            await client.recipe(
                "DataWatch", "/watched", lambda data, stat: seen.put_nowait(data)
            )
            await client.set("/watched", b"2")
            told = []
            while b"2" not in told:
                told.append(await asyncio.wait_for(seen.get(), PATIENCE_SECONDS))
            assert (await client.server_version())[:2] == (3, 9)

    asyncio.run(program())


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
