"""Ensembles whose write rate has a known ceiling, for the scaling benchmarks.

What: builds the preload shim that makes a server's fsync take a fixed time and
starts servers with a small maximum batch, so that each ensemble can commit
`batch / fsync` transactions per second and no more.

Why: two cores cannot show scaling of servers that are bound by their CPU; they
can show it of servers that are bound by their logs, which is what a real ensemble
on a disk of its own mostly is.

Must never: be mistaken for a measurement of how fast a server is.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from servers import Ensemble, Options, cache_directory, start_ensembles


@dataclass(frozen=True)
class LogDevice:
    """A pretended log device: how long it takes to sync, and how many transactions
    the server lets wait for one sync."""

    fsync_ms: int = 50
    batch: int = 5

    @property
    def cap_per_second(self) -> float:
        return self.batch * 1000 / self.fsync_ms

    def arithmetic(self) -> str:
        return (
            f"{self.batch} transactions per sync / {self.fsync_ms} ms per sync "
            f"= {self.cap_per_second:.0f} writes/s per ensemble"
        )


def shim() -> Path:
    """The compiled preload shim; built when its source is newer."""
    source = HERE / "slow_fsync.c"
    library = cache_directory() / "slow_fsync.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        command = ["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return library


def start_log_bound(count: int, device: LogDevice) -> list[Ensemble]:
    """`count` standalone ensembles, each with such a log device of its own."""
    options = Options(
        tick_ms=2000,
        environment={
            "LD_PRELOAD": str(shim()),
            "SLOW_FSYNC_US": str(device.fsync_ms * 1000),
        },
        properties={
            "zookeeper.maxBatchSize": str(device.batch),
            "zookeeper.flushDelay": "0",
            "zookeeper.fsync.warningthresholdms": "60000",
        },
    )
    return start_ensembles(count, options=options)
