"""Each node is stopped and started again in its turn: the programs of docs/guides notice nothing, and neither does ioredis,
which has one address and waits for its node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from conftest import CLIENT_SECONDS_MAX
from programs import LANGUAGES, Programs
from targets import STOP_SECONDS_MAX, TontineCluster, answers_ping
from test_failures import RESTART_SECONDS_MAX, process_of, restart_command

pytestmark = pytest.mark.only("tontine", "Redis has no nodes that stand in for each other")

# How long the programs run before the first node stops and after the last one is back.
STEADY_SECONDS = 2.0
CLIENTS = [*LANGUAGES, "ioredis"]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[TontineCluster]:
    """A cluster of its own, because it is not the same afterwards."""
    if request.config.getoption("--address"):
        pytest.skip("stops nodes, so only of a cluster that it started")
    cluster = TontineCluster(request.config.getoption("--binary"))
    yield cluster
    cluster.stop()


class Rolling:
    """Restarts nodes as docs/operating/upgrading.md says: one after the other, each when `doctor` finds nothing."""

    def __init__(self, cluster: TontineCluster, binary: Path) -> None:
        self.cluster = cluster
        self.binary = binary.resolve()
        self.restarted: list[subprocess.Popen[bytes]] = []

    def restart(self, node: int) -> float:
        """Returns how long the node took to stop."""
        began = time.monotonic()
        os.kill(process_of(self.cluster, node), signal.SIGTERM)
        command = restart_command(self.cluster, node)
        took = time.monotonic() - began
        self.restarted.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
        self.wait(lambda: answers_ping(self.cluster.addresses[node - 1]))
        self.wait(self.is_healthy)
        return took

    def is_healthy(self) -> bool:
        asked = [str(self.binary), "doctor", "--connect", self.cluster.native[0]]
        return subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0

    def wait(self, until) -> None:
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while not until():
            assert all(process.poll() is None for process in self.restarted)
            assert time.monotonic() < deadline, self.cluster.log()
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self.restarted:
            process.send_signal(signal.SIGINT)
        for process in self.restarted:
            process.wait(STOP_SECONDS_MAX)


@pytest.fixture
def rolling(cluster: TontineCluster, request: pytest.FixtureRequest) -> Iterator[Rolling]:
    rolling = Rolling(cluster, request.config.getoption("--binary"))
    yield rolling
    rolling.stop()


def test_a_rolling_restart_fails_no_command_of_the_guides_and_loses_no_write(
    cluster: TontineCluster, rolling: Rolling, programs: Programs, key: str, tmp_path: Path
) -> None:
    commands = {language: programs.rolling(language) for language in CLIENTS}
    ends = tmp_path / "ends"
    # Each program begins at another node, so that each stop meets one that is in the middle of something.
    running = {}
    for turn, (language, command) in enumerate(commands.items()):
        places = [f"{host}:{port}" for host, port in cluster.addresses]
        places = places[turn % 3 :] + places[: turn % 3]
        running[language] = subprocess.Popen(
            [*command, f"{key}:{language}", str(ends), *places],
            cwd=programs.folder(language),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        time.sleep(STEADY_SECONDS)
        stops = [rolling.restart(node) for node in (1, 2, 3)]
        time.sleep(STEADY_SECONDS)
        ends.touch()
        ended = {language: program.communicate(timeout=60) for language, program in running.items()}
    finally:
        for program in running.values():
            program.kill()
            program.wait()
    told = {}
    for language, (printed, complaints) in ended.items():
        assert running[language].returncode == 0, (language, complaints[-2000:])
        told[language] = json.loads(printed)
    counts = {language: sum(map(len, report["acknowledged"].values())) for language, report in told.items()}
    failed = {language: Counter(report["errors"]) for language, report in told.items()}
    print(f"writes {counts}, stops took {stops}, failed {failed}")
    assert not any(failed.values()), failed
    assert not any(report["missing"] for report in told.values()), told
    assert min(counts.values()) > 100, counts
    for host, port in cluster.addresses:
        client = redis.Redis(host=host, port=port, socket_timeout=CLIENT_SECONDS_MAX)
        for language, report in told.items():
            client.execute_command("TONTINE.STORE", "default" if language == "ioredis" else "siblings")
            for cart, items in report["acknowledged"].items():
                _, *siblings = client.execute_command("TONTINE.GET", cart)
                found = {item for value in siblings for item in value.decode().split(",")}
                assert found >= {str(item) for item in items}, (cart, items, found)
