"""Client CPU per operation: Kazoo against ours, in pairs, on one ensemble.

What: the same operations through plain Kazoo, through Kazoo's client on our
batching connection, and through ParKazooClient, one after the other in every
round, so that whatever else the machine does falls on all of them alike.

Why CPU and not operations per second: on a small shared machine the server and
the other tenants decide the latter; the CPU a client burns per operation is its
own doing.

Must never: report a figure of one run beside a figure of another run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from kazoo.client import KazooClient

from parkazoo.connection import BatchingClient
from servers import Ensemble, cpu_seconds

VALUE = b"v" * 100
WINDOW = 500  # requests in flight in the asynchronous runs

Client = Any
ClientFactory = Callable[..., Client]
HANDLERS = {
    "threading": "kazoo.handlers.threading:SequentialThreadingHandler",
    "gevent": "kazoo.handlers.gevent:SequentialGeventHandler",
    "eventlet": "kazoo.handlers.eventlet:SequentialEventletHandler",
}


def new_handler(name: str) -> Any:
    """A handler by name; green-thread packages are imported only when asked for."""
    module, _, attribute = HANDLERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def client_kinds() -> dict[str, ClientFactory]:
    """The clients compared, by the name they have in the report."""
    kinds: dict[str, ClientFactory] = {
        "kazoo": KazooClient,
        "connection": BatchingClient,
    }
    try:
        from parkazoo import ParKazooClient
    except ImportError:
        return kinds
    kinds["parkazoo"] = ParKazooClient
    return kinds


@dataclass(frozen=True)
class Workload:
    """`steps(client, path)` yields asynchronous calls; each counts as one operation."""

    name: str
    steps: Callable[[Client, str], Iterator[Any]]


def create_delete(client: Client, path: str) -> Iterator[Any]:
    run = time.monotonic_ns()  # so that a run cut short is in nobody's way
    number = 0
    while True:
        number += 1
        yield client.create_async(f"{path}/{run}-{number}", VALUE)
        yield client.delete_async(f"{path}/{run}-{number}")


def create(client: Client, path: str) -> Iterator[Any]:
    """Creations alone; the directory grows as for whoever loads one."""
    run = time.monotonic_ns()
    number = 0
    while True:
        number += 1
        yield client.create_async(f"{path}/c{run}-{number}", VALUE)


def set_value(client: Client, path: str) -> Iterator[Any]:
    while True:
        yield client.set_async(f"{path}/stays", VALUE)


def get_value(client: Client, path: str) -> Iterator[Any]:
    while True:
        yield client.get_async(f"{path}/stays")


def set_directory(client: Client, path: str) -> Iterator[Any]:
    while True:
        yield client.set_async(path, VALUE)


def get_directory(client: Client, path: str) -> Iterator[Any]:
    while True:
        yield client.get_async(path)


WORKLOADS = [
    Workload("create+delete", create_delete),
    Workload("create only", create),
    Workload("set", set_value),
    Workload("get", get_value),
    # Nodes with children, whose Stat ParKazoo reads in two places.
    Workload("set directory", set_directory),
    Workload("get directory", get_directory),
]


def run_threaded(client: Client, workload: Workload, threads: int, count: int) -> None:
    """`count` operations by `threads` callers that each wait for every answer."""

    def call(number: int) -> None:
        steps = workload.steps(client, f"/bench/{number}")
        for _ in range(count // threads):
            next(steps).get()

    callers = [client.handler.spawn(call, number) for number in range(threads)]
    for caller in callers:
        caller.join()


def run_asynchronous(client: Client, workload: Workload, count: int) -> None:
    """`count` operations by one caller that keeps `WINDOW` of them in flight.

    The create of a node and its delete go out back to back: per-session order
    makes that safe, and it is what pipelining is for.
    """
    flying: deque[Any] = deque()
    steps = workload.steps(client, "/bench/0")
    for _ in range(count):
        if len(flying) >= WINDOW:
            flying.popleft().get()
        flying.append(next(steps))
    while flying:
        flying.popleft().get()


def run_pipelining(
    client: Client, workload: Workload, threads: int, count: int
) -> None:
    """`count` operations by `threads` callers that share the `WINDOW`."""

    def call(number: int) -> None:
        flying: deque[Any] = deque()
        steps = workload.steps(client, f"/bench/{number}")
        for _ in range(count // threads):
            if len(flying) >= WINDOW // threads:
                flying.popleft().get()
            flying.append(next(steps))
        while flying:
            flying.popleft().get()

    callers = [client.handler.spawn(call, number) for number in range(threads)]
    for caller in callers:
        caller.join()


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def started(
    factory: ClientFactory, hosts: str, threads: int, handler: str
) -> Iterator[Client]:
    client = factory(hosts, handler=new_handler(handler))
    client.start(30)
    try:
        for number in range(max(1, threads)):
            # A child that stays: what is measured is a directory in use.
            client.ensure_path(f"/bench/{number}/stays")
            client.set(f"/bench/{number}/stays", VALUE)
        yield client
    finally:
        client.stop()
        client.close()


@dataclass(frozen=True)
class Sample:
    client_us: float
    server_us: float
    per_second: float


def measure(
    factory: ClientFactory,
    ensemble: Ensemble,
    workload: Workload,
    mode: int,
    count: int,
    handler: str = "threading",
) -> Sample:
    """One timed run; `mode` is the number of threads that wait, or 0 for one that does
    not; so many that do not, if it is negative."""
    with started(factory, ensemble.hosts, abs(mode), handler) as client:

        def run(operations: int) -> None:
            if mode < 0:
                run_pipelining(client, workload, -mode, operations)
            elif mode:
                run_threaded(client, workload, mode, operations)
            else:
                run_asynchronous(client, workload, operations)

        run(max(count // 10, 2 * abs(mode)))
        server, cpu, clock = cpu_seconds(ensemble.pids), own_cpu(), time.monotonic()
        run(count)
        clock, cpu = time.monotonic() - clock, own_cpu() - cpu
        server = cpu_seconds(ensemble.pids) - server
    return Sample(cpu / count * 1e6, server / count * 1e6, count / clock)


def compare(
    ensemble: Ensemble,
    workloads: list[Workload],
    modes: list[int],
    rounds: int,
    count: int,
    handler: str,
) -> list[str]:
    """The report's table rows: medians over the rounds, and the paired ratio."""
    kinds = client_kinds()
    rows = []
    # ParKazoo makes its namespace only where it finds nobody's data: let it be first.
    for factory in reversed(kinds.values()):
        with started(factory, ensemble.hosts, 1, handler):
            pass
    for workload in workloads:
        for mode in modes:
            samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, factory in kinds.items():
                    sample = measure(factory, ensemble, workload, mode, count, handler)
                    samples[kind].append(sample)
            rows.append(row(workload.name, mode, samples))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def row(workload: str, mode: int, samples: dict[str, list[Sample]]) -> str:
    label = f"{mode} waiting" if mode > 0 else "pipelined"
    if mode < 0:
        label = f"{-mode} pipelining"
    cells = [workload, label]
    base = samples["kazoo"]
    for kind, measured in samples.items():
        cells.append(f"{statistics.median(s.client_us for s in measured):.0f}")
        if kind != "kazoo":
            ratios = [
                ours.client_us / theirs.client_us
                for ours, theirs in zip(measured, base, strict=True)
            ]
            spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
            cells.append(f"{statistics.median(ratios):.2f} ({spread})")
    rates = [statistics.median(s.per_second for s in m) for m in samples.values()]
    cells.append(" / ".join(f"{rate:.0f}" for rate in rates))
    return "| " + " | ".join(cells) + " |"


def header() -> list[str]:
    cells = ["operation", "callers"]
    for kind in client_kinds():
        cells.append(f"{kind} µs/op")
        if kind != "kazoo":
            cells.append("of Kazoo's (min-max)")
    cells.append("ops/s, same order")
    return [
        "| " + " | ".join(cells) + " |",
        "|" + "---|" * 2 + "---:|" * (len(cells) - 2),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="operations per run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--modes", default="1,10,50,0", help="threads; 0: one pipelines; -10: ten do"
    )
    parser.add_argument("--handler", choices=sorted(HANDLERS), default="threading")
    parser.add_argument("--only", default="", help="workloads whose name has this")
    arguments = parser.parse_args()
    chosen = [w for w in WORKLOADS if arguments.only in w.name]
    modes = [int(mode) for mode in arguments.modes.split(",")]
    with Ensemble() as ensemble:
        rows = compare(
            ensemble,
            chosen,
            modes,
            arguments.rounds,
            arguments.count,
            arguments.handler,
        )
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        f"{machine}, {arguments.handler} handler, {arguments.rounds} rounds of"
        f" {arguments.count} operations, load average {os.getloadavg()[0]:.0f}.\n"
    )
    print("\n".join([*header(), *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
