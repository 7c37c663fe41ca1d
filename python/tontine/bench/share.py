"""How much of a Spark job's processor time is ours, and how fast the writer is from Arrow batches.

    python/tontine/setup-env
    target/spark-venv/bin/python python/tontine/bench/share.py --records 2000000

The same records twice: by the native core alone, in one thread, on Arrow batches in memory; and by
a Spark job on a Parquet file. The share is the processor time of the first over that of the second,
which is of Spark's Java process and all Python processes below it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tontine import _core
from tontine.spark import write_store

BATCH = 10_000


def table(records: int, value_bytes: int) -> pa.Table:
    """Keys of 16 bytes, values that nothing compresses."""
    keys, values = os.urandom(16 * records), os.urandom(value_bytes * records)

    def column(data: bytes, width: int) -> pa.Array:
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), records, [None, pa.py_buffer(data)]
        )
        return fixed.cast(pa.binary())

    return pa.table({"k": column(keys, 16), "v": column(values, value_bytes)})


def alone(rows: pa.Table, scratch: Path) -> dict[str, float]:
    """Processor seconds of each thing that the core does in a job; all ranges in one thread."""
    batches = rows.to_batches(max_chunksize=BATCH)
    spent = {}
    measure, began = _core.Measure(), time.thread_time()
    for batch in batches:
        measure.add(batch.column(0), pc.binary_length(batch.column(1)))
    ranges = _core.ranges(measure.loads(), 256 << 20)
    spent["measure"] = time.thread_time() - began
    firsts, began = [first for first, _, _, _ in ranges], time.thread_time()
    numbers = [_core.ranges_of(batch.column(0), firsts) for batch in batches]
    spent["number rows"] = time.thread_time() - began
    output = scratch / "alone"
    artifact = ("bench", 1, "none", "pages")
    spent["sort and write"] = 0.0
    for index, found in enumerate(ranges):
        mine = []
        for batch, number in zip(batches, numbers, strict=True):
            wanted = pa.Array.from_buffers(pa.int32(), len(batch), [None, pa.py_buffer(number)])
            mine.append(batch.filter(pc.equal(wanted, index)))
        # The file is synced by its own thread, so this is of the process.
        began = time.process_time()
        build = _core.RangeBuild(artifact, found, str(scratch), 1 << 30)
        for batch in mine:
            build.add(batch.column(0), batch.column(1))
        build.build(str(output), f"building/{index}-", "pages", b"")
        spent["sort and write"] += time.process_time() - began
    return spent


def below(root: int) -> float:
    """Processor seconds of a process and all that it started."""
    ticks, children = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            # Of itself, and of what it started and saw ending.
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        found += ticks.get(process, 0)
        waiting += children.get(process, [])
    return found / os.sysconf("SC_CLK_TCK")


def by_spark(rows: pa.Table, scratch: Path) -> tuple[float, float]:
    """Processor and other seconds of a job, in a session that has done one already."""
    pq.write_table(rows, scratch / "rows.parquet", compression="none", row_group_size=200_000)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    java = SparkSession.getActiveSession().sparkContext._gateway.proc.pid
    frame = spark.read.parquet(str(scratch / "rows.parquet"))

    def write(name: str) -> None:
        path = str(scratch / name)
        write_store(frame, key="k", value="v", store="bench", path=path, number=1, layout="pages")

    write("warm")
    began, before = time.monotonic(), below(java)
    write("measured")
    spent = below(java) - before, time.monotonic() - began
    spark.stop()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value", type=int, default=96)
    arguments = parser.parse_args()
    rows = table(arguments.records, arguments.value)
    size = arguments.records * (16 + arguments.value) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        spent = alone(rows, Path(folder))
        total, seconds = by_spark(rows, Path(folder))
    ours = sum(spent.values())
    for name, each in spent.items():
        print(f"{name:16} {each:7.2f} s  {size / each:6.0f} MB/s a core")
    print(f"{'ours':16} {ours:7.2f} s  {size / ours:6.0f} MB/s a core")
    print(f"{'the Spark job':16} {total:7.2f} s  {size / total:6.0f} MB/s a core")
    print(f"share of {size:.0f} MB: {100 * ours / total:.1f} %")
    print(f"the job took {seconds:.1f} s at a load of {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
