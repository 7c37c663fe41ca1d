"""Fixtures: real ensembles for every test, reused between tests and emptied first.

A JVM takes most of a second to start, so ensembles are kept for the whole run in
a pool and handed out empty. A test may pause or kill what it was given; whatever
does not serve afterwards is started again before the next test sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from servers import Ensemble, start_ensembles

EnsembleFactory = Callable[..., list[Ensemble]]


class Pool:
    """Started ensembles by size. At most one test uses it at a time."""

    def __init__(self) -> None:
        self.by_size: dict[int, list[Ensemble]] = {}

    def take(self, count: int, size: int) -> list[Ensemble]:
        pool = self.by_size.setdefault(size, [])
        if len(pool) < count:
            pool.extend(start_ensembles(count - len(pool), size))
        taken = pool[:count]
        for ensemble in taken:
            ensemble.start()
            empty(ensemble)
        return taken

    def close(self) -> None:
        for pool in self.by_size.values():
            for ensemble in pool:
                ensemble.close()


def empty(ensemble: Ensemble) -> None:
    """Delete everything but ZooKeeper's own subtree, with a plain Kazoo client."""
    client = KazooClient(ensemble.hosts, timeout=10)
    client.start(30)
    try:
        for name in client.get_children("/"):
            if name != "zookeeper":
                client.delete(f"/{name}", recursive=True)
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def ensembles(pool: Pool) -> Iterator[EnsembleFactory]:
    """`ensembles(n, size=1)`: n empty, serving ensembles of `size` servers each."""

    def take(count: int, size: int = 1) -> list[Ensemble]:
        taken.extend(pool.take(count, size))
        return taken

    taken: list[Ensemble] = []
    yield take
    for ensemble in taken:
        for server in ensemble.servers:
            if server.running and server.paused:
                server.resume()
