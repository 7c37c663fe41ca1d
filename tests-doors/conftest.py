"""Starts the clusters once for the whole run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from clusters import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--binary", type=Path, default=Path("target/proof/tontine"))
    parser.addoption("--clients", type=Path, default=Path("target/check-clients"))
    parser.addoption("--full", action="store_true", help="what takes too long for each change, too")


def pytest_configure(config: pytest.Config) -> None:
    # Ends as after Ctrl-C, so that servers are stopped and their folders removed.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))


def start(request: pytest.FixtureRequest, closed: bool) -> Iterator[Cluster]:
    cluster = Cluster(request.config.getoption("--binary"), closed)
    yield cluster
    try:
        cluster.check_alive()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def open_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from start(request, closed=False)


@pytest.fixture(scope="session")
def closed_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from start(request, closed=True)


@pytest.fixture(scope="module")
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A closed cluster for tests that break it."""
    yield from start(request, closed=True)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--full")


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> Path:
    """The Java clients that `./check setup` has installed from their lock files."""
    folder = request.config.getoption("--clients").resolve() / "java" / "lib"
    assert any(folder.glob("jedis-*.jar")), f"{folder} is not there: ./check setup"
    return folder
