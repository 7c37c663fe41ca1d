"""What cannot make an artifact is refused with the reason, and leaves none."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tontine import TontineError, _core
from tontine.spark import write_store


def refused(scratch: Path, table: object, **options: object) -> str:
    out = scratch / "out"
    arguments = {"key": "k", "value": "v", "store": "words", "path": str(out), "number": 1}
    with pytest.raises(TontineError) as caught:
        write_store(table, **{**arguments, **options})
    assert not (out / "manifest").exists()
    assert not (out / "building").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("rows", "kinds", "reason"),
    [
        pytest.param([], "k string, v string", "the data frame has no records", id="no-records"),
        pytest.param(
            [("a", "1"), (None, "2"), (None, "3")],
            "k string, v string",
            '2 records with a null key: filter them out, such as with df.dropna(subset=["k"])',
            id="null-key",
        ),
        pytest.param(
            [("a", "1"), ("b", None)], "k string, v string", "1 record with a null value", id="null"
        ),
        pytest.param([("", "1")], "k string, v string", "1 record with an empty key", id="empty"),
        pytest.param(
            [("k" * 4097, "1")],
            "k string, v string",
            "a key of more than 4096 bytes",
            id="long-key",
        ),
        pytest.param(
            [("a", b"1" * ((16 << 20) + 1))],
            "k string, v binary",
            "a value of more than 16 MiB",
            id="long-value",
        ),
        pytest.param(
            [(7, "1")],
            "k bigint, v string",
            'column "k" holds bigint, and a key must be bytes or text',
            id="key-is-a-number",
        ),
        pytest.param(
            [("a", [1])],
            "k string, v array<int>",
            'column "v" holds array<int>, and a value must be bytes or text',
            id="value-is-a-list",
        ),
        pytest.param(
            [("a", "1"), ("b", "2"), ("a", "3")],
            "k string, v string",
            'two records have the key "a". Remove one of them, or name a column',
            id="equal-keys",
        ),
    ],
)
def test_records_that_make_no_artifact(
    spark: SparkSession, tmp_path: Path, rows: list[tuple[object, ...]], kinds: str, reason: str
) -> None:
    assert reason in refused(tmp_path, spark.createDataFrame(rows, kinds))


def test_arguments_that_make_no_artifact(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.createDataFrame([("a", "1")], "k string, v string")
    asked = {
        'no column "x"; its columns are k, v': {"key": "x"},
        'compression "gzip" is unknown': {"compression": "gzip"},
        'layout "rows" is unknown': {"layout": "rows"},
        "s3://bucket/words names no directory": {"path": "s3://bucket/words"},
        "Words": {"store": "Words"},
    }
    for reason, options in asked.items():
        assert reason in refused(tmp_path, table, **options)


def test_an_artifact_is_never_written_over(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.createDataFrame([("a", "1")], "k string, v string")
    out = str(tmp_path / "out")
    write_store(table, key="k", value="v", store="words", path=out, number=1)
    before = (tmp_path / "out" / "manifest").read_bytes()
    with pytest.raises(TontineError, match="holds an artifact already"):
        write_store(table, key="k", value="v", store="words", path=out, number=2)
    assert (tmp_path / "out" / "manifest").read_bytes() == before


def test_a_data_frame_that_differs_when_it_is_computed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def differ(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            values = [os.urandom(1 + os.urandom(1)[0]) for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(values)], names=["k", "v"])

    keys = spark.range(1000).select(sf.col("id").cast("string").alias("k"))
    table = keys.mapInArrow(differ, "k string, v binary")
    assert "computed twice and differs" in refused(tmp_path, table)


def test_a_data_frame_is_computed_twice_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    seen = spark.sparkContext.accumulator(0)

    def count(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    table = spark.range(1000).select(
        sf.col("id").cast("string").alias("k"), sf.col("id").cast("string").alias("v")
    )
    counted = table.mapInArrow(count, "k string, v string")
    write_store(counted, key="k", value="v", store="words", path=str(tmp_path / "out"), number=1)
    assert seen.value == 2000


def test_a_task_refuses_records_of_another_range(tmp_path: Path) -> None:
    keys, values = pa.array([b"a", b"b"]), pa.array([b"1", b"2"])
    half = (0, (1 << 63) - 1, 2, 4)
    build = _core.RangeBuild(("words", 1, "none", None), half, str(tmp_path), 1)
    tokens = _core.ranges_of(keys, [0, 1 << 63])
    assert sorted(tokens) == [0, 0, 0, 0, 0, 0, 0, 1], "the keys lie in both halves"
    with pytest.raises(TontineError, match="came to the task of 0000000000000000"):
        build.add(keys, values)
