"""Builds an artifact from a Spark data frame.

    data frame ─▶ measured (bytes of each partition) ─▶ ranges of chunks
               └▶ number of its range (from the key) ─▶ repartitionById ─▶ a task sorts a range
                                                                           and makes its chunks
    entries of all chunks ─▶ the driver writes the manifest, last

Spark computes the data frame twice: to measure it, and to build. Both must give the same
records; a task that gets others fails.

A task writes files of its own names and renames a chunk to its digest when it is durable. So
a task that dies, or a second attempt beside the first, leaves at most files that no manifest
names.

Must never: decide anything about bytes. The native core does, with the code of
`tontine artifact build`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType

from tontine import _core
from tontine._core import TontineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame

__all__ = ["Artifact", "TontineError", "write_store"]

# Keys and values of a task. Fewer and larger tasks cost less; smaller ones fail for less.
_TASK_BYTES = 256 << 20
# Memory in which a task sorts; beyond it, it sorts on the disk of its machine.
_MEMORY_BYTES = 256 << 20
# The local property that tells tasks what the first range decided. Without it they settle that.
_SETTLED = "tontine.settled"
# All tokens.
_ALL = (0, (1 << 64) - 1, 0, 0)


@dataclass(frozen=True)
class Artifact:
    """What was written."""

    path: str
    store: str
    number: int
    records: int
    bytes: int
    chunks: int
    manifest: str
    """Digest of the manifest: two artifacts with the same one are the same."""


@dataclass(frozen=True)
class _Plan:
    """What each task must know."""

    store: str
    number: int
    compression: str
    layout: str | None
    root: str
    memory_bytes: int
    build: str
    """Tells the files of this build from those of others."""
    ranges: list[_core.Range]

    def range_build(self, number: int, scratch: str) -> _core.RangeBuild:
        artifact = (self.store, self.number, self.compression, self.layout)
        return _core.RangeBuild(artifact, self.ranges[number], scratch, self.memory_bytes)


def write_store(
    df: DataFrame,
    *,
    key: str,
    value: str,
    store: str,
    path: str,
    number: int | None = None,
    greatest: str | None = None,
    compression: str = "none",
    layout: str | None = None,
    task_bytes: int = _TASK_BYTES,
    memory_bytes: int = _MEMORY_BYTES,
) -> Artifact:
    """Writes the records of a data frame as an artifact of a read-only store.

    `key` and `value` name columns of bytes or text. `path` is a directory that the driver and
    all executors reach under the same name, such as one on a shared file system; it must not
    hold an artifact yet. `number` is greater than that of every earlier artifact of the store;
    by default it is the seconds since 1970.

    Two records with one key are refused, unless `greatest` names a column: then the one with
    the greatest value there counts, and of several, the one with the greatest value.

    `compression` is "none", "lz4" or "zstd". `layout` is "pages" or "slots"; by default, the
    size of records decides. A task makes chunks of about `task_bytes`, and sorts them in
    `memory_bytes`.

    Raises `TontineError` when the records or the arguments cannot make an artifact.
    """
    context = _context(df)
    root = _directory(path)
    frame = _records(df, key, value, greatest)
    if number is None:
        number = int(time.time())
    build = uuid.uuid4().hex[:12]
    plan = _Plan(store, number, compression, layout, root, memory_bytes, build, [_ALL])
    # Refuses what cannot be, before Spark works for minutes.
    plan.range_build(0, root)
    output = _core.Output(root)
    try:
        ranges = _core.ranges(_measured(frame, key, value), max(task_bytes, 1))
        settled, entries = _build(context, frame, replace(plan, ranges=ranges))
        dictionary = base64.b64decode(settled["dictionary"])
        manifest, digest = _core.manifest(store, number, compression, dictionary, entries)
        output.publish(manifest)
    finally:
        # What attempts left that died. One that still runs may leave more.
        shutil.rmtree(Path(root, "building"), ignore_errors=True)
        output.close()
    records, size = sum(entry[5] for entry in entries), sum(entry[6] for entry in entries)
    return Artifact(path, store, number, records, size, len(entries), digest)


def _context(df: DataFrame) -> SparkContext:
    try:
        return df.sparkSession.sparkContext
    except Exception as error:
        raise TontineError(
            "this data frame belongs to a session of Spark Connect, which cannot run a job on a "
            "part of a data frame. Run the program on the cluster, with spark-submit"
        ) from error


def _directory(path: str) -> str:
    """The directory that a path or a file URL names."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return os.path.abspath(path)
    if scheme == "file" and rest.startswith("/"):
        return rest
    raise TontineError(
        f"{path} names no directory: use a path, or file:///…, on a file system that the driver "
        "and all executors reach"
    )


def _records(df: DataFrame, key: str, value: str, greatest: str | None) -> DataFrame:
    """Keys and values as bytes, each key once if that is asked for."""
    columns = [
        _bytes_of(df, key, "key").alias("key"),
        _bytes_of(df, value, "value").alias("value"),
    ]
    if greatest is None:
        return df.select(*columns)
    order = _column(df, greatest).alias("order")
    best = sf.max(sf.struct("order", "value")).alias("best")
    return df.select(*columns, order).groupBy("key").agg(best).select("key", "best.value")


def _column(df: DataFrame, name: str) -> Column:
    if name not in df.columns:
        raise TontineError(
            f'the data frame has no column "{name}"; its columns are {", ".join(df.columns)}'
        )
    return df[f"`{name.replace('`', '``')}`"]


def _bytes_of(df: DataFrame, name: str, role: str) -> Column:
    column = _column(df, name)
    kind = df.schema[name].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise TontineError(
            f'column "{name}" holds {kind.simpleString()}, and a {role} must be bytes or text. '
            f'Cast it, such as with df.withColumn("{name}", df["{name}"].cast("string"))'
        )
    return column.cast("binary")


def _measured(frame: DataFrame, key: str, value: str) -> list[tuple[int, int, int]]:
    """Records and bytes of each partition; refuses records that cannot be built."""
    lengths = frame.select("key", sf.octet_length("value").alias("value_bytes"))
    counted = lengths.mapInArrow(_measure, "partition int, records bigint, bytes bigint")
    summed = counted.groupBy("partition").agg(sf.sum("records"), sf.sum("bytes"))
    loads = [(row[0], row[1], row[2]) for row in summed.collect()]
    unfit = {partition: records for partition, records, _ in loads if partition < 0}
    reasons = [
        f'a null key: filter them out, such as with df.dropna(subset=["{key}"])',
        f'a null value: filter them out, such as with df.dropna(subset=["{value}"])',
        f'an empty key: filter them out, such as with df.filter(df["{key}"] != "")',
        f'a key of more than 4096 bytes in column "{key}": use a shorter key, such as a hash',
        f'a value of more than 16 MiB in column "{value}": split it over several keys',
    ]
    for index, reason in enumerate(reasons):
        if count := unfit.get(-1 - index):
            raise TontineError(f"{count} record{'s' * (count > 1)} with {reason}")
    if not loads:
        raise TontineError(
            "the data frame has no records, so nothing was built; check what it was read from"
        )
    return loads


def _measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: counts what each partition holds.

    What cannot be built has negative numbers instead of a partition.
    """
    measure = _core.Measure()
    for batch in batches:
        measure.add(batch.column(0), batch.column(1))
    unfit = [(-1 - index, count, 0) for index, count in enumerate(measure.unfit()) if count]
    rows = [*measure.loads(), *unfit]
    columns = [[row[index] for row in rows] for index in range(3)]
    types = [pa.int32(), pa.int64(), pa.int64()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=["partition", "records", "bytes"])


def _build(
    context: SparkContext, frame: DataFrame, plan: _Plan
) -> tuple[dict[str, str], list[_core.Entry]]:
    """Lets tasks make the chunks, after the first range has settled what holds for all."""
    firsts = [first for first, _, _, _ in plan.ranges]
    numbered = frame.withColumn("range", sf.arrow_udf(_range_of(firsts), "int")("key"))
    shared = numbered.repartitionById(len(plan.ranges), "range").select("key", "value")
    # Both jobs run on one RDD, so its rows are moved once.
    rdd = shared.mapInArrow(_task(plan), "range int, error string, made string").rdd
    try:
        settled = json.dumps({"layout": plan.layout, "dictionary": ""})
        if plan.layout is None or plan.compression == "zstd":
            context.setLocalProperty(_SETTLED, None)
            settled = _outcomes(list(context.runJob(rdd, list, [0])))[0]
        context.setLocalProperty(_SETTLED, settled)
        made = _outcomes(rdd.collect())
    finally:
        context.setLocalProperty(_SETTLED, None)
    if len(made) != len(plan.ranges):
        raise TontineError(f"{len(made)} of {len(plan.ranges)} tasks answered; run the job again")
    entries = [tuple(entry) for number in range(len(made)) for entry in json.loads(made[number])]
    return json.loads(settled), entries


def _outcomes(rows: list[Any]) -> dict[int, str]:
    errors = [row["error"] for row in rows if row["error"]]
    if errors:
        raise TontineError(errors[0])
    return {row["range"]: row["made"] for row in rows}


def _range_of(firsts: list[int]) -> Callable[[pa.Array], pa.Array]:
    def range_of(keys: pa.Array) -> pa.Array:
        numbers = pa.py_buffer(_core.ranges_of(keys, firsts))
        return pa.Array.from_buffers(pa.int32(), len(keys), [None, numbers])

    return range_of


def _task(plan: _Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        error, made = None, None
        try:
            made = _made(plan, batches, number, context)
        except TontineError as refused:
            # Another attempt would be refused, too; what cannot be written is another matter.
            error = str(refused)
            for _ in batches:
                pass
        columns = [pa.array([number], pa.int32()), pa.array([error]), pa.array([made])]
        columns[1:] = [column.cast(pa.string()) for column in columns[1:]]
        yield pa.RecordBatch.from_arrays(columns, names=["range", "error", "made"])

    return task


def _made(plan: _Plan, batches: Iterator[pa.RecordBatch], number: int, context: TaskContext) -> str:
    """Makes the chunks of a range, or settles what holds for all."""
    with _scratch() as scratch:
        build = plan.range_build(number, scratch)
        for batch in batches:
            build.add(batch.column(0), batch.column(1))
        settled = context.getLocalProperty(_SETTLED)
        if settled is None:
            layout, dictionary = build.settle()
            encoded = base64.b64encode(dictionary).decode()
            return json.dumps({"layout": layout, "dictionary": encoded})
        known = json.loads(settled)
        # The process is named so that whoever looks for it finds it.
        attempt = f"building/{plan.build}-{context.taskAttemptId()}-{os.getpid()}-"
        dictionary = base64.b64decode(known["dictionary"])
        return json.dumps(build.build(plan.root, attempt, known["layout"], dictionary))


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A directory on the disk of this machine, where Spark keeps its own files, too."""
    disks = [disk for disk in re.split(",", os.environ.get("SPARK_LOCAL_DIRS", "")) if disk]
    parent = disks[os.getpid() % len(disks)] if disks else None
    with tempfile.TemporaryDirectory(prefix="tontine-", dir=parent) as scratch:
        yield scratch
