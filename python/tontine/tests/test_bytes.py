"""What Spark builds is what a single process builds, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from conftest import files
from tontine.spark import write_store


def text(dice: random.Random, length: int) -> str:
    words = ["north", "river", "copper", "seven", "quiet", "lantern", "ember", "glass"]
    found = ""
    while len(found) < length:
        found += f"{dice.choice(words)}-{dice.randrange(1000)} "
    return found[:length]


def records(count: int, length: int, seed: int = 1) -> list[tuple[str, str]]:
    dice = random.Random(seed)
    return [(f"key-{number}", text(dice, dice.randint(0, 2 * length))) for number in range(count)]


def frame(spark: SparkSession, rows: list[tuple[str, str]], seed: int = 2) -> DataFrame:
    mixed = random.Random(seed).sample(rows, len(rows))
    return spark.createDataFrame(mixed, "word string, text string").repartition(3)


@pytest.mark.parametrize(
    ("count", "length", "compression", "layout", "ranges"),
    [
        pytest.param(3, 10, "none", None, 1, id="a-handful"),
        pytest.param(60_000, 100, "none", None, 2, id="in-pages"),
        pytest.param(9_000, 1_000, "none", None, 2, id="in-slots"),
        pytest.param(60_000, 100, "zstd", None, 2, id="with-a-dictionary"),
        pytest.param(9_000, 1_000, "lz4", "pages", 2, id="values-that-leave-pages"),
    ],
)
def test_a_data_frame_makes_the_bytes_that_the_command_makes(
    spark: SparkSession,
    by_command: Callable[..., str],
    prove: Callable[[Path], None],
    tmp_path: Path,
    count: int,
    length: int,
    compression: str,
    layout: str | None,
    ranges: int,
) -> None:
    rows = records(count, length)
    options = ["--compression", compression, *(["--layout", layout] if layout else [])]
    expected = by_command(rows, 7, *options)
    # A range holds 4 MiB at least, so these have `ranges` of them.
    assert ranges == 1 or sum(len(k) + len(v) for k, v in rows) > 5 << 20
    made = write_store(
        frame(spark, rows),
        key="word",
        value="text",
        store="words",
        path=f"file://{tmp_path}/by-spark",
        number=7,
        compression=compression,
        layout=layout,
        task_bytes=1,
        memory_bytes=16 << 20,
    )
    assert made.manifest == expected
    assert made.records == count
    assert made.bytes == sum(len(k) + len(v) for k, v in rows)
    assert files(tmp_path / "by-spark") == files(tmp_path / "by-command")
    prove(tmp_path / "by-spark")


def test_sorting_goes_on_on_disk_when_a_task_has_more_than_its_memory(
    spark: SparkSession, by_command: Callable[..., str], tmp_path: Path
) -> None:
    rows = records(250_000, 100)
    assert sum(len(k) + len(v) for k, v in rows) > 25 << 20
    expected = by_command(rows, 7)
    made = write_store(
        frame(spark, rows),
        key="word",
        value="text",
        store="words",
        path=str(tmp_path / "by-spark"),
        number=7,
        memory_bytes=1,
    )
    assert made.manifest == expected


def test_bytes_that_are_no_text_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(bytes([number, 0, 255]), bytes([255, number])) for number in range(256)]
    table = spark.createDataFrame(rows, "id binary, payload binary")
    for name in ["one", "two"]:
        made = write_store(
            table, key="id", value="payload", store="words", path=str(tmp_path / name), number=1
        )
        assert made.records == 256
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_of_equal_keys_the_greatest_of_a_column_counts(
    spark: SparkSession, by_command: Callable[..., str], tmp_path: Path
) -> None:
    rows = [("a", "old", 1), ("a", "new", 2), ("a", "older", None), ("b", "x", 5), ("b", "y", 5)]
    expected = by_command([("a", "new"), ("b", "y")], 3)
    table = spark.createDataFrame(rows, "word string, text string, at int").repartition(3)
    made = write_store(
        table,
        key="word",
        value="text",
        greatest="at",
        store="words",
        path=str(tmp_path / "by-spark"),
        number=3,
    )
    assert made.manifest == expected
