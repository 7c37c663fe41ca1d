"""Fixtures: real ensembles for every test, reused between tests and emptied first.

A JVM takes most of a second to start, so ensembles are kept for the whole run in
a pool, one for each runner (`pytest -n`), and handed out empty. A test may pause or
kill what it was given; whatever does not serve afterwards is started again before the
next test sees it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import ParKazooClient, sessions
from parkazoo.connection import BatchingClient
from selection import fits, lines, only_in_full
from servers import HERE, PATIENCE_SECONDS, SUPERUSER, Ensemble, start_ensembles

EnsembleFactory = Callable[..., list[Ensemble]]
Maker = Callable[..., ParKazooClient]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Marks what `full.txt` names, and refuses a name that no test has."""
    tests = [item.nodeid.rpartition("tests/")[2] for item in items]
    for item, test in zip(items, tests, strict=True):
        if only_in_full(test):
            item.add_marker("fault")
    if any("::" in argument for argument in config.args):
        return  # only some tests of a file were collected
    files = {test.partition("::")[0] for test in tests}
    for entry in (line.lstrip("!") for line in lines()):
        file = entry.partition("::")[0]
        asked = file in files or not (HERE / file).exists()
        if asked and not any(fits(entry, test) for test in tests):
            raise pytest.UsageError(f"tests/full.txt: there is no test {entry}")


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """A command silences its process, which is ours where a test runs it here."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that a busy machine makes slow are not taken for silent."""
    monkeypatch.setattr(sessions, "STRANGER_SECONDS", PATIENCE_SECONDS / 4)


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


@contextlib.contextmanager
def running(client: Any) -> Iterator[Any]:
    """It is connected, and is stopped and closed whatever happens."""
    client.start(PATIENCE_SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def started(hosts: str, **options: Any) -> Iterator[ParKazooClient]:
    with running(ParKazooClient(hosts, **{"timeout": 30, **options})) as client:
        yield client


def empty(ensemble: Ensemble) -> None:
    """Delete everything but ZooKeeper's own subtree.

    A namespace leaves a thousand nodes, so no request waits for the one before it:
    a level of the tree is listed at once, and all of it is deleted from the leaves.
    """
    client = BatchingClient(ensemble.hosts, timeout=30, auth_data=[SUPERUSER])
    client.start(PATIENCE_SECONDS)
    try:
        if client.get("/")[0] or client.get_acls("/")[0] != OPEN_ACL_UNSAFE:
            client.set("/", b"")
            client.set_acls("/", OPEN_ACL_UNSAFE)
        while left := below_root(client):
            level, found = left, [left]
            while level:
                asked = [(path, client.get_children_async(path)) for path in level]
                level = [
                    f"{path}/{name}"
                    for path, listed in asked
                    for name in _or_none(listed) or ()
                ]
                found.append(level)
            deleted = [
                client.delete_async(path) for paths in reversed(found) for path in paths
            ]
            for result in deleted:
                _or_none(result)
    finally:
        client.stop()
        client.close()


def below_root(client: BatchingClient) -> list[str]:
    return [f"/{name}" for name in client.get_children("/") if name != "zookeeper"]


def _or_none(result: Any) -> Any:
    """What was answered; a session that ends meanwhile takes nodes of its own away
    or, before it ends, adds some."""
    with contextlib.suppress(NoNodeError, NotEmptyError):
        return result.get(timeout=PATIENCE_SECONDS)
    return None


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


@pytest.fixture
def make(ensembles: EnsembleFactory) -> Iterator[Maker]:
    """Clients of one namespace over three ensembles, stopped afterwards."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(3))
    made: list[ParKazooClient] = []

    def maker(**options: Any) -> ParKazooClient:
        client = ParKazooClient(hosts, timeout=30, **options)
        client.start(PATIENCE_SECONDS)
        made.append(client)
        return client

    yield maker
    for client in made:
        client.stop()
        client.close()
