"""Adding a third ensemble while the namespace is in use.

What: two ensembles full of nodes, callers that write and read all the time, and
`parkazoo add-ensemble` in the middle. Reported: how many nodes moved against the
1/N that must move, how many requests failed, the longest any request waited, and
the rate and latency before, while and after.

Why: growing is the reason for all this, and it is worth little if it hurts.

Must never: count a request that was repeated by the caller as one that succeeded.
There is no repeating here; a failed request is counted and shown.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from kazoo.client import KazooClient

from parkazoo import ParKazooClient
from parkazoo.layout import BASE
from servers import Ensemble, start_ensembles

VALUE = b"v" * 100


@dataclass
class Caller:
    """One thread that writes and reads its own directories, and what it saw:
    (when asked, how long, kind)."""

    client: Any
    directories: list[str]
    seed: int
    seen: list[tuple[float, float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, stopping: threading.Event) -> None:
        rng = random.Random(self.seed)
        made = 0
        while not stopping.is_set():
            directory = rng.choice(self.directories)
            node = f"{directory}/n{rng.randrange(10)}"
            made += 1
            extra = f"{directory}/extra{self.seed}-{made}"
            self.call("set", lambda p=node: self.client.set(p, VALUE))
            self.call("get", lambda p=node: self.client.get(p))
            self.call("list", lambda p=directory: self.client.get_children(p))
            self.call("create", lambda p=extra: self.client.create(p, VALUE))
            self.call("delete", lambda p=extra: self.client.delete(p))

    def call(self, kind: str, operation: Any) -> None:
        asked = time.monotonic()
        try:
            operation()
        except Exception as error:
            self.failures.append(f"{kind}: {error!r}")
        self.seen.append((asked, time.monotonic() - asked, kind))


def count_nodes(ensemble: Ensemble) -> int:
    """Nodes of the namespace on one ensemble, without ParKazoo's own scaffolding:
    everything inside a bucket except links."""
    client = KazooClient(ensemble.hosts)
    client.start(20)
    found = 0
    try:
        for shard in client.get_children(BASE):
            for anchor in client.get_children(f"{BASE}/{shard}"):
                bucket = f"{BASE}/{shard}/{anchor}/b"
                if client.exists(bucket):
                    found += len(client.get_children(bucket))
    finally:
        client.stop()
        client.close()
    return found


def fill(client: Any, directories: list[str], nodes: int) -> None:
    flying = []
    for directory in directories:
        client.ensure_path(directory)
        for number in range(nodes):
            flying.append(client.create_async(f"{directory}/n{number}", VALUE))
        while len(flying) > 400:
            flying.pop(0).get(30)
    for result in flying:
        result.get(30)


def add(hosts: str, new: str) -> float:
    """Run the command an operator would run; returns how long it took."""
    command = [sys.executable, "-m", "parkazoo.cli", "--hosts", hosts]
    started = time.monotonic()
    subprocess.run([*command, "add-ensemble", new], check=True, timeout=600)
    return time.monotonic() - started


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def phase(
    name: str, seen: list[tuple[float, float, str]], start: float, end: float
) -> str:
    """One row of the report: the requests asked between start and end."""
    length = end - start
    took = [duration for asked, duration, _ in seen if start <= asked < end]
    kinds = Counter(kind for asked, _, kind in seen if start <= asked < end)
    return (
        f"| {name} | {length:.1f} | {len(took)} | {len(took) / length:.0f} |"
        f" {1000 * percentile(took, 0.5):.1f} | {1000 * percentile(took, 0.99):.1f} |"
        f" {1000 * max(took, default=0.0):.0f} |"
        f" {', '.join(f'{k} {n}' for k, n in sorted(kinds.items()))} |"
    )


def plot(
    seen: list[tuple[float, float, str]], marks: tuple[float, float], file: Path
) -> None:
    """Every request by when it was asked and how long it took."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "parkazoo"
    from matplotlib import pyplot

    origin = min(asked for asked, _, _ in seen)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True)
    step = 0.5
    rate = Counter(int((asked - origin) / step) for asked, _, _ in seen)
    slowest: dict[int, float] = {}
    for asked, duration, _ in seen:
        slot = int((asked - origin) / step)
        slowest[slot] = max(slowest.get(slot, 0), duration)
    slots = sorted(rate)
    top.plot([s * step for s in slots], [rate[s] / step for s in slots])
    top.set(ylabel="requests/s", ylim=(0, None))
    bottom.plot([s * step for s in slots], [1000 * slowest[s] for s in slots])
    bottom.set(ylabel="slowest request, ms", xlabel="seconds", ylim=(0, None))
    for axes in (top, bottom):
        axes.axvspan(marks[0] - origin, marks[1] - origin, alpha=0.15, color="orange")
        axes.grid(alpha=0.3)
    figure.suptitle("A third ensemble joins (shaded), half-second intervals")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def run(arguments: argparse.Namespace) -> int:
    ensembles = start_ensembles(3)
    first, new = ensembles[:2], ensembles[2]
    hosts = ";".join(ensemble.hosts for ensemble in first)
    stopping = threading.Event()
    clients = [ParKazooClient(hosts) for _ in range(arguments.clients)]
    try:
        for client in clients:
            client.start(30)
        directories = [f"/app/d{number}" for number in range(arguments.directories)]
        fill(clients[0], directories, arguments.nodes)
        before = [count_nodes(ensemble) for ensemble in first]
        callers = [
            Caller(clients[n % len(clients)], directories[n :: arguments.callers], n)
            for n in range(arguments.callers)
        ]
        threads = [
            threading.Thread(target=caller.run, args=(stopping,)) for caller in callers
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(arguments.seconds)
        joined = time.monotonic()
        took = add(hosts, new.hosts)
        done = joined + took
        time.sleep(arguments.seconds)
        ended = time.monotonic()
        stopping.set()
        for thread in threads:
            thread.join(60)
        after = [count_nodes(ensemble) for ensemble in ensembles]
    finally:
        stopping.set()
        for client in clients:
            client.stop()
            client.close()
        for ensemble in ensembles:
            ensemble.close()
    failures = [failure for caller in callers for failure in caller.failures]
    seen = sorted(entry for caller in callers for entry in caller.seen)
    total = sum(before)
    print(f"Nodes before: {before}, after: {after}.")
    print(
        f"Moved {after[2]} of {total} nodes, {after[2] / total:.3f} of them;"
        f" 1/N is {1 / 3:.3f}. Requests: {len(seen)}, failed: {len(failures)}."
        f" Load average of the machine {os.getloadavg()[0]:.0f}.\n"
    )
    print("| phase | s | requests | per s | p50 ms | p99 ms | longest ms | kinds |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    print(phase("two ensembles", seen, began, joined))
    print(phase("a third joins", seen, joined, done))
    print(phase("three ensembles", seen, done, ended))
    for failure, times in Counter(failures).most_common(10):
        print(f"- failed {times} times: {failure}")
    if arguments.plot:
        plot(seen, (joined, done), arguments.plot)
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directories", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=20, help="in each directory")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10, help="before and after")
    parser.add_argument("--plot", type=Path)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
