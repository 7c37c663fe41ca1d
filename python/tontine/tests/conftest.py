"""A Spark session on this machine, and the program that builds the same artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

# Executors take the Python of this environment, which has the package.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

Records = list[tuple[bytes, bytes]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--binary", required=True, help="the program tontine")


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest) -> str:
    return str(Path(request.config.getoption("--binary")).resolve())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = settings(SparkSession.builder.master("local[2]"), tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def settings(builder: SparkSession.Builder, scratch: Path) -> SparkSession:
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )


@pytest.fixture
def by_command(binary: str, tmp_path: Path) -> Callable[..., str]:
    """Builds an artifact in a single process; answers the digest of its manifest."""

    def build(records: list[tuple[str, str]], number: int, *options: str) -> str:
        source, target = tmp_path / "records.jsonl", tmp_path / "by-command"
        with open(source, "w") as lines:
            lines.writelines(json.dumps({"k": k, "v": v}) + "\n" for k, v in records)
        command = [binary, "artifact", "build", str(source), "--key", "k", "--value", "v"]
        command += ["-s", "words", "--number", str(number), "--to", str(target), "-o", "json"]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["manifest"]

    return build


@pytest.fixture
def prove(binary: str) -> Callable[[Path], None]:
    def prove(path: Path) -> None:
        subprocess.run([binary, "artifact", "check", str(path)], check=True, capture_output=True)

    return prove


def files(path: Path) -> dict[str, bytes]:
    """All files of an artifact."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
