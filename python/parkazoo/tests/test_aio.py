"""`parkazoo.aio`: recipes, listeners and pooled clients on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

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
