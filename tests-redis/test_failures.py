"""A node is killed without warning: whoever speaks to the others notices nothing."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
import redis

from conftest import library_client
from targets import STOP_SECONDS_MAX, TontineCluster, answers_ping

pytestmark = pytest.mark.only("tontine")

RESTART_SECONDS_MAX = 60.0


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[TontineCluster]:
    """A cluster of its own, because it is not the same afterwards."""
    if request.config.getoption("--address"):
        pytest.skip("kills nodes, so only of a cluster that it started")
    cluster = TontineCluster(request.config.getoption("--binary"))
    yield cluster
    cluster.stop()


def process_of(cluster: TontineCluster, node: int) -> int:
    found = re.search(rf"node {node} is process (\d+)", cluster.log())
    assert found, cluster.log()
    return int(found[1])


def restart_command(cluster: TontineCluster, node: int) -> list[str]:
    """The command that `tontine dev` names when a node has exited."""
    deadline = time.monotonic() + RESTART_SECONDS_MAX
    while True:
        found = re.search(rf"node {node} has exited .*\n +(.+)", cluster.log())
        if found:
            return shlex.split(found[1])
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.02)


def test_killing_one_node_fails_no_request_and_loses_no_write(
    cluster: TontineCluster, protocol: int, key: str
) -> None:
    victim = 3
    first, second, _ = (library_client(address, protocol) for address in cluster.addresses)
    written: dict[str, bytes] = {}

    def write(count: int) -> None:
        for _ in range(count):
            name = f"{key}:{len(written)}"
            assert first.set(name, name)
            written[name] = name.encode()

    def check(client: redis.Redis) -> None:
        assert client.mget(list(written)) == list(written.values())

    write(200)
    os.kill(process_of(cluster, victim), signal.SIGKILL)
    write(200)
    check(first)
    check(second)
    assert second.delete(f"{key}:0") == 1
    del written[f"{key}:0"]
    assert first.get(f"{key}:0") is None

    restarted = subprocess.Popen(
        restart_command(cluster, victim), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while not answers_ping(cluster.addresses[victim - 1]):
            assert restarted.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        returned = library_client(cluster.addresses[victim - 1], protocol)
        check(returned)
        assert returned.get(f"{key}:0") is None, "the delete that it missed holds"
        write(50)
        check(returned)
    finally:
        restarted.send_signal(signal.SIGINT)
        restarted.wait(STOP_SECONDS_MAX)
    assert restarted.returncode == 0
