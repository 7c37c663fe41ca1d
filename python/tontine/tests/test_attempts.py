"""Tasks that die, and second attempts beside the first, on two workers of a real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from conftest import files
from tontine.spark import write_store

HOME = Path(pyspark.__file__).parent
# What an attempt has not finished: build, attempt, process, number of the chunk.
ATTEMPT = re.compile(r"([0-9a-f]+)-(\d+)-(\d+)-\d+\.tmp.*")


class Cluster:
    """A master and two workers; Spark starts no second attempt on the host of the first."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.started: list[subprocess.Popen[bytes]] = []
        logs = self.start(
            "master", "127.0.0.1", "master.Master", "--port", "0", "--webui-port", "0"
        )
        self.url = self.found(logs, r"Starting Spark master at (spark://\S+)")
        for host in ["127.0.0.2", "127.0.0.3"]:
            arguments = ["--webui-port", "0", "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(scratch / host), self.url]
            logs = self.start(host, host, "worker.Worker", *arguments)
            self.found(logs, r"Successfully registered with (master)")

    def start(self, name: str, host: str, what: str, *arguments: str) -> Path:
        logs = self.scratch / f"{name}.log"
        command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{what}", "--host", host]
        environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(HOME)}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "512m"}
        with open(logs, "wb") as output:
            process = subprocess.Popen(
                [*command, *arguments], env=environment, stdout=output, stderr=output
            )
        self.started.append(process)
        return logs

    def found(self, logs: Path, pattern: str) -> str:
        while not (match := re.search(pattern, logs.read_text())):
            assert all(process.poll() is None for process in self.started), logs.read_text()
            time.sleep(0.05)
        return match.group(1)

    def stop(self) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
    scratch = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(scratch)
    session = (
        SparkSession.builder.master(cluster.url)
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "600m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )
    yield session
    session.stop()
    cluster.stop()


class Catcher(threading.Thread):
    """Sends a signal to the first process that it meets in the middle of a chunk."""

    def __init__(self, output: Path, sent: signal.Signals) -> None:
        super().__init__(daemon=True)
        self.building, self.sent = output / "building", sent
        self.caught: tuple[int, int] | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        while self.caught is None and not self.ended.is_set():
            for name, (attempt, process) in self.attempts().items():
                os.kill(process, self.sent)
                # One that had finished its chunk in that moment may have nothing left to do.
                if self.sent == signal.SIGKILL or (self.building / name).exists():
                    self.caught = (attempt, process)
                    break
                os.kill(process, signal.SIGCONT)

    def attempts(self) -> dict[str, tuple[int, int]]:
        with contextlib.suppress(FileNotFoundError):
            names = [ATTEMPT.fullmatch(entry.name) for entry in os.scandir(self.building)]
            return {name[0]: (int(name[2]), int(name[3])) for name in names if name}
        return {}

    def release(self) -> None:
        self.ended.set()
        self.join()
        if self.caught is not None and self.sent == signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.caught[1], signal.SIGKILL)


def table(spark: SparkSession) -> DataFrame:
    number = sf.col("id").cast("string")
    value = sf.repeat(sf.sha2(number, 256), 8)
    return spark.range(60_000).select(number.alias("k"), value.alias("v"))


def others(spark: SparkSession, attempt: int) -> list[dict[str, object]]:
    """The other attempts at the task that this one was of, when its stage is complete."""
    context = spark.sparkContext
    address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages"
    while True:
        with urllib.request.urlopen(f"{address}?details=true&status=complete") as answer:
            stages = [list((stage.get("tasks") or {}).values()) for stage in json.load(answer)]
        for tasks in stages:
            mine = [task["index"] for task in tasks if task["taskId"] == attempt]
            if mine:
                same = [task for task in tasks if task["index"] == mine[0]]
                return [task for task in same if task["taskId"] != attempt]
        time.sleep(0.1)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_an_attempt_that_dies_or_stands_still_leaves_the_same_artifact(
    cluster: SparkSession, tmp_path: Path, prove: Callable[[Path], None], sent: signal.Signals
) -> None:
    def write(name: str) -> str:
        path = tmp_path / name
        made = write_store(
            table(cluster),
            key="k",
            value="v",
            store="words",
            path=str(path),
            number=1,
            compression="zstd",
            task_bytes=8 << 20,
        )
        return made.manifest

    undisturbed = write("undisturbed")
    catcher = Catcher(tmp_path / "disturbed", sent)
    catcher.start()
    try:
        assert write("disturbed") == undisturbed
        assert catcher.caught is not None, "no attempt was met in the middle of a chunk"
        second = others(cluster, catcher.caught[0])
        assert second, "the task was not tried a second time"
        if sent == signal.SIGSTOP:
            # The first attempt stands still on one machine, so another one ran beside it.
            assert any(task["speculative"] for task in second)
    finally:
        catcher.release()
    prove(tmp_path / "disturbed")
    named = files(tmp_path / "undisturbed")
    left = files(tmp_path / "disturbed")
    assert {name: left[name] for name in named} == named
