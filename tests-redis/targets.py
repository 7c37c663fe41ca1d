"""What the tests talk to: a redis-server, or a three-node Tontine cluster, started for one test run.

Each target listens on the loopback interface only, keeps its files in a temporary
folder, and is ended by its own process id, also when the tests fail.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0

Address = tuple[str, int]


class Target:
    """A running store and the addresses of its Redis doors."""

    name: str
    addresses: list[Address]

    def stop(self) -> None:
        """Ends it."""

    def check_alive(self) -> None:
        """Raises when a process of the target is gone."""


class Running(Target):
    """A target that somebody else started and will stop."""

    def __init__(self, name: str, addresses: list[Address]) -> None:
        self.name = name
        self.addresses = addresses


class Process(Target):
    """One child process with its own log file and folder."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            # In our process group, so that whoever ends the group, as ./check does at a time limit, ends it too.
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def check_alive(self) -> None:
        if self.child.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.child.returncode}:\n{self.log()[-4000:]}")

    def await_addresses(self) -> None:
        """Waits until every address answers PING."""
        deadline = time.monotonic() + START_SECONDS_MAX
        waiting = list(self.addresses)
        while waiting:
            self.check_alive()
            waiting = [address for address in waiting if not answers_ping(address)]
            if waiting and time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"{self.name}: no answer at {waiting}:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
                raise AssertionError(
                    f"{self.name} did not stop within {STOP_SECONDS_MAX:.0f} s of SIGINT"
                ) from None
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(Process):
    """A redis-server without persistence."""

    def __init__(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed: ./check setup"
        port = free_port()
        self.addresses = [("127.0.0.1", port)]
        options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        super().__init__("redis", [binary, *arguments], scratch_folder())
        self.await_addresses()


class TontineCluster(Process):
    """Three nodes, each its own process, as `tontine dev` starts them."""

    def __init__(self, binary: Path) -> None:
        assert binary.is_file(), f"{binary} is not there: cargo build --profile proof -p cli"
        folder = scratch_folder()
        command = [str(binary.resolve()), "dev", "--nodes", "3"]
        super().__init__("tontine", [*command, "--data-dir", str(folder / "cluster")], folder)
        self.addresses = []
        self.native: list[str] = []
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(self.addresses) < 3:
            self.check_alive()
            if time.monotonic() > deadline:
                log = self.log()
                self.stop()
                raise AssertionError(f"tontine dev printed no three addresses:\n{log[-4000:]}")
            time.sleep(0.05)
            self.addresses = redis_addresses(self.log())
        self.native = re.findall(r"native (\d+\.\d+\.\d+\.\d+:\d+)", self.log())
        self.await_addresses()


def redis_addresses(printed: str) -> list[Address]:
    """The Redis doors among what `tontine dev` prints."""
    found = re.findall(r"redis[^\n]*?(\d+\.\d+\.\d+\.\d+):(\d+)", printed, re.IGNORECASE)
    return list(dict.fromkeys((host, int(port)) for host, port in found))


def answers_ping(address: Address) -> bool:
    try:
        with socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64) == b"+PONG\r\n"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scratch_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tontine-tests-redis-"))
