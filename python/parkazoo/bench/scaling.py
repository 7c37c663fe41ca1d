"""Write throughput over one to four log-bound ensembles, against the arithmetic.

What: the same number of callers, each in a directory of its own, create and delete
nodes through one ParKazooClient over 1, 2, 3 and 4 ensembles whose ceiling is
known (`log_bound`). Twice: with directories chosen so that each ensemble has
equally many, and with directories taken as they come.

Why: partitioning can only multiply what one ensemble can commit, and only as far
as the work spreads. The first run shows the mechanism, the second what hashing a
few dozen directories really gives.

Must never: claim anything about servers bound by their CPU; that this machine
cannot show.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from log_bound import LogDevice, start_log_bound
from parkazoo import ParKazooClient
from parkazoo.layout import CONFIG
from parkazoo.mapping import Table, shard_of
from servers import Ensemble, cpu_seconds

DIRECTORIES = 48  # divisible by 1, 2, 3 and 4
VALUE = b"v" * 100
PAPER = {1: 1.0, 3: 1.98}  # writes, three servers and three ensembles of three


@dataclass(frozen=True)
class Point:
    """One run. `expected` is what the ceilings allow with this spread of work."""

    ensembles: int
    spread: str
    per_second: float
    cap: float
    latency_ms_p50: float
    latency_ms_p99: float
    failed: int
    client_cores: float
    server_cores: float
    directories: list[int]
    load_average: float = 0.0


def read_table(hosts: str) -> Table:
    """The namespace's table, read as any plain client could."""
    client = KazooClient(hosts)
    client.start(20)
    try:
        return Table.deserialize(client.get(CONFIG)[0])
    finally:
        client.stop()
        client.close()


def choose(table: Table, even: bool) -> list[str]:
    """Directories to work in: the first ones by name, or equally many per ensemble."""
    names = (f"/load/d{number}" for number in range(100_000))
    if not even:
        return [next(names) for _ in range(DIRECTORIES)]
    quota = Counter(
        {name: DIRECTORIES // len(table.ensembles) for name in table.ensembles}
    )
    chosen = []
    for name in names:
        owner = table.owners[shard_of(name)]
        if quota[owner] > 0:
            quota[owner] -= 1
            chosen.append(name)
        if len(chosen) == DIRECTORIES:
            break
    return chosen


class Load:
    """One caller per directory, each waiting for every answer."""

    def __init__(self, client: Any, directories: list[str]) -> None:
        self.client = client
        self.directories = directories
        self.latencies: list[float] = []
        self.failed = 0
        self.measuring = threading.Event()
        self.stopping = threading.Event()

    def call(self, directory: str) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            path = f"{directory}/n{number}"
            for write in (lambda p: self.client.create(p, VALUE), self.client.delete):
                asked = time.monotonic()
                try:
                    write(path)
                except Exception as error:
                    self.failed += 1
                    print(f"{path}: {error!r}", file=sys.stderr)
                if self.measuring.is_set():
                    self.latencies.append(time.monotonic() - asked)

    def run(self, warm_up: float, seconds: float) -> float:
        callers = [
            threading.Thread(target=self.call, args=(directory,), daemon=True)
            for directory in self.directories
        ]
        for caller in callers:
            caller.start()
        time.sleep(warm_up)
        self.measuring.set()
        started = time.monotonic()
        time.sleep(seconds)
        self.measuring.clear()
        elapsed = time.monotonic() - started
        self.stopping.set()
        for caller in callers:
            caller.join()
        return elapsed


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(
    ensembles: list[Ensemble], device: LogDevice, even: bool, seconds: float
) -> Point:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles)
    client = ParKazooClient(hosts)
    client.start(60)
    table = read_table(ensembles[0].hosts)
    directories = choose(table, even)
    # A child that stays: what is measured is directories in use.
    made = [client.ensure_path_async(f"{name}/stays") for name in directories]
    for result in made:
        result.get(120)
    pids = [pid for ensemble in ensembles for pid in ensemble.pids]
    load = Load(client, directories)
    servers, own = cpu_seconds(pids), own_cpu()
    whole = time.monotonic()
    elapsed = load.run(warm_up=2, seconds=seconds)
    whole = time.monotonic() - whole
    servers, own = cpu_seconds(pids) - servers, own_cpu() - own
    client.stop()
    client.close()
    owners = Counter(table.owners[shard_of(name)] for name in directories)
    return Point(
        ensembles=len(ensembles),
        spread="even" if even else "as it comes",
        per_second=len(load.latencies) / elapsed,
        cap=len(ensembles) * device.cap_per_second,
        latency_ms_p50=1000 * statistics.median(load.latencies),
        latency_ms_p99=1000 * percentile(load.latencies, 0.99),
        failed=load.failed,
        client_cores=own / whole,
        server_cores=servers / whole,
        directories=[owners[name] for name in table.ensembles],
        load_average=os.getloadavg()[0],
    )


def report(points: list[Point], device: LogDevice) -> str:
    lines = [
        "| ensembles | directories on each | cap, writes/s | measured | of the cap |"
        " times one ensemble | p50 ms | p99 ms | failed | client cores |"
        " server cores | machine load |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    base = {p.spread: p.per_second for p in points if p.ensembles == 1}
    for p in points:
        times = p.per_second / base[p.spread]
        spread = ", ".join(str(n) for n in p.directories)
        lines.append(
            f"| {p.ensembles} | {p.spread}: {spread} | {p.cap:.0f} |"
            f" {p.per_second:.0f} | {p.per_second / p.cap:.2f} | {times:.2f} |"
            f" {p.latency_ms_p50:.0f} | {p.latency_ms_p99:.0f} | {p.failed} |"
            f" {p.client_cores:.2f} | {p.server_cores:.2f} | {p.load_average:.0f} |"
        )
    return "\n".join([device.arithmetic() + ".", "", *lines])


def plot(points: list[Point], file: Path) -> None:
    """Throughput and latency against ensembles, beside the paper's factor."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "parkazoo"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    counts = sorted({p.ensembles for p in points})
    left.plot(counts, counts, ":", color="grey", label="N (the ceiling)")
    for spread, marker in (("even", "o-"), ("as it comes", "s--")):
        mine = [p for p in points if p.spread == spread]
        base = mine[0].per_second
        numbers = [p.ensembles for p in mine]
        left.plot(numbers, [p.per_second / base for p in mine], marker, label=spread)
        right.plot(numbers, [p.latency_ms_p50 for p in mine], marker, label=spread)
    left.plot(list(PAPER), list(PAPER.values()), "x-", label="the paper (3: 1.98)")
    left.set(xlabel="ensembles", ylabel="write throughput, times one ensemble")
    right.set(xlabel="ensembles", ylabel="median write latency, ms", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(counts)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("Log-bound ensembles, one client, 48 callers in 48 directories")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ensembles", default="1,2,3,4")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--fsync-ms", type=int, default=50)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="keep the raw points")
    arguments = parser.parse_args()
    device = LogDevice(arguments.fsync_ms, arguments.batch)
    points = []
    for even in (True, False):
        for count in (int(n) for n in arguments.ensembles.split(",")):
            ensembles = start_log_bound(count, device)
            try:
                points.append(measure(ensembles, device, even, arguments.seconds))
            finally:
                for ensemble in ensembles:
                    ensemble.close()
            print(points[-1], file=sys.stderr, flush=True)
    print(report(points, device))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(p) for p in points], indent=1))
    if arguments.plot:
        plot(points, arguments.plot)
    return 0 if not any(p.failed for p in points) else 1


if __name__ == "__main__":
    sys.exit(main())
