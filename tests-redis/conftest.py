"""Starts the target once for the whole run and hands out clients of it."""

from __future__ import annotations

import itertools
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

sys.path.insert(0, str(Path(__file__).parent))

from programs import Programs
from raw import Raw
from targets import Address, RedisServer, Running, Target, TontineCluster

# The library gives up after 5 s by default; a busy machine may take longer over 15 MiB.
CLIENT_SECONDS_MAX = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", choices=["redis", "tontine"], default="tontine")
    parser.addoption("--binary", type=Path, default=Path("target/proof/tontine"))
    parser.addoption("--clients", type=Path, default=Path("target/check-clients"))
    parser.addoption("--address", action="append", help="host:port of a target that runs already")


def pytest_configure(config: pytest.Config) -> None:
    # Ends as after Ctrl-C, so that the target is stopped and its folder removed.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))
    config.addinivalue_line("markers", "only(target, reason): holds on one target only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, elsewhere = [], []
    for item in items:
        marks = [mark.args[0] for mark in item.iter_markers("only")]
        (kept if all(name == config.getoption("--target") for name in marks) else elsewhere).append(item)
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = kept


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    name = request.config.getoption("--target")
    addresses = request.config.getoption("--address")
    if addresses:
        pairs = [address.rsplit(":", 1) for address in addresses]
        running: Target = Running(name, [(host, int(port)) for host, port in pairs])
    elif name == "redis":
        running = RedisServer()
    else:
        running = TontineCluster(request.config.getoption("--binary"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Programs:
    return Programs(request.config.getoption("--clients"))


@pytest.fixture(autouse=True)
def alive(target: Target) -> Iterator[None]:
    """No test, however rude, may end a process."""
    yield
    target.check_alive()


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def raw(target: Target, protocol: int) -> Iterator[Raw]:
    with Raw(target.addresses[0], protocol) as connection:
        yield connection


@pytest.fixture
def raw2(target: Target) -> Iterator[Raw]:
    """A bare connection that speaks RESP2."""
    with Raw(target.addresses[0]) as connection:
        yield connection


def library_client(address: Address, protocol: int) -> redis.Redis:
    host, port = address
    return redis.Redis(host=host, port=port, protocol=protocol, socket_timeout=CLIENT_SECONDS_MAX)


@pytest.fixture
def client(target: Target, protocol: int) -> Iterator[redis.Redis]:
    with library_client(target.addresses[0], protocol) as client:
        yield client


@pytest.fixture
def elsewhere(target: Target, protocol: int) -> Iterator[redis.Redis]:
    """A client of another node than `client`'s, where there is one."""
    with library_client(target.addresses[-1], protocol) as client:
        yield client


@pytest.fixture
def null(protocol: int) -> bytes:
    return b"_\r\n" if protocol == 3 else b"$-1\r\n"


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Names keys that no other test uses: nothing can be emptied between tests."""
    run, count = uuid.uuid4().hex[:12], itertools.count()
    return lambda: f"{run}:{next(count)}"


@pytest.fixture
def key(fresh: Callable[[], str]) -> str:
    return fresh()
