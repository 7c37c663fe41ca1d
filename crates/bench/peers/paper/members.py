"""Processes of members, each within a control group that caps its processor time; groups of version 1 or 2.

Must never: end a process that it did not start, or listen outside of loopback.
"""

import itertools
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "tontine-paper-"
PERIOD_US = 10_000
QUOTA_US_LEAST = 1_000
TICKS = os.sysconf("SC_CLK_TCK")
numbers = itertools.count(1)


def bound(processors):
    """Period and quota of a cap, in microseconds. The kernel takes no quota below 1 ms, so a small cap has a longer period."""
    period = max(PERIOD_US, -(-QUOTA_US_LEAST // processors))
    return int(period), max(QUOTA_US_LEAST, round(processors * period))


class Group:
    """A control group that allows so many processors."""

    def __init__(self, processors):
        period, quota = bound(processors)
        name = f"{PREFIX}{os.getpid()}-{next(numbers)}"
        if (GROUPS / "cpu/cgroup.procs").exists():
            self.folder = GROUPS / "cpu" / name
            files = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
        elif "cpu" in read(GROUPS / "cgroup.controllers").split():
            (GROUPS / "cgroup.subtree_control").write_text("+cpu")
            self.folder = GROUPS / name
            files = {"cpu.max": f"{quota} {period}"}
        else:
            raise SystemExit("nothing caps processors here: mount control groups of version 1 or 2, or give --cap 0")
        try:
            self.folder.mkdir()
            for file, text in files.items():
                (self.folder / file).write_text(str(text))
        except PermissionError as refused:
            raise SystemExit(f"cannot cap members: {refused}; run this as root, or give --cap 0") from refused

    def enter(self):
        """Called by the child itself, so that all that it starts is capped, too."""
        (self.folder / "cgroup.procs").write_text("0")

    def remove(self):
        for _ in range(100):
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.05)


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


class Member:
    """One machine's worth of an engine: processes with one cap, one folder and one log."""

    def __init__(self, name, folder, cap):
        self.name, self.folder = name, Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cap = cap
        self.group = Group(cap) if cap else None
        self.processes = []

    @property
    def log(self):
        return self.folder / "log"

    def start(self, command, environment=None):
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env=os.environ | (environment or {}), preexec_fn=self.group.enter if self.group else None,
            )
        self.processes.append(process)
        return process

    def await_port(self, address, patience=300):
        """Waits until the member listens."""
        until = time.monotonic() + patience
        while True:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(address) == 0:
                    return
            ended = [process.returncode for process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > until:
                how = f"ended with {ended[0]}" if ended else f"does not listen on {address[0]}:{address[1]} after {patience} s"
                raise SystemExit(f"{self.name} {how}; its log ends:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:]) if self.log.exists() else ""

    def cpu_seconds(self):
        """Processor time of its processes."""
        total = 0
        for process in self.processes:
            fields = read(Path(f"/proc/{process.pid}/stat")).rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12]) if fields else 0
        return total / TICKS

    def rss_bytes(self):
        """Memory that they have."""
        pages = (read(Path(f"/proc/{process.pid}/statm")).split() for process in self.processes)
        return sum(int(one[1]) for one in pages if one) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        for process in reversed(self.processes):
            end(process)
        if self.group:
            self.group.remove()


def end(process, patience=10):
    """Ends a process of ours: politely first."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(command, patience=600, environment=None, check=True):
    """Runs a command to its end, and returns what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience, check=False,
        env=os.environ | (environment or {}),
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words[:6])} … ended with {done.returncode}:\n{(done.stdout + done.stderr)[-1500:]}")
    return done.stdout
