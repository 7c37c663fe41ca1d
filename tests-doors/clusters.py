"""Three nodes on this machine, as `tontine dev` starts them: open, or closed by TLS and users.

Each process listens on the loopback interface only, keeps its files in a temporary
folder, and is ended by its own process id, also when the tests fail.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
COMMAND_SECONDS_MAX = 120.0
# Where `tontine dev` puts a cluster if it is told nothing, and where the guides look for it.
DATA = "tontine-data"


class Child:
    """One process with a log file."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            # In our process group, so that whoever ends the group, as ./check does at a time limit, ends it too.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log()[-4000:]}")

    def stop(self, number: int = signal.SIGINT) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{self.name} did not stop within {STOP_SECONDS_MAX:.0f} s") from None


class Node(NamedTuple):
    """The three addresses of a node, `host:port` each."""

    native: str
    redis: str
    http: str


class Cluster:
    """Three nodes, each its own process."""

    def __init__(self, binary: Path, closed: bool) -> None:
        assert binary.is_file(), f"{binary} is not there: cargo build --profile proof -p cli"
        self.binary = str(binary.resolve())
        self.closed = closed
        self.folder = Path(tempfile.mkdtemp(prefix="tontine-tests-doors-"))
        self.authority = self.folder / DATA / "tls" / "authority.pem"
        self.root_secret = self.folder / DATA / "tls" / "root.secret"
        self.again: dict[int, Child] = {}
        command = [self.binary, "dev", *(["--tls"] if closed else [])]
        self.dev = Child("dev", command, self.folder, self.environment(named=False))
        try:
            self.nodes = self._await_addresses()
            for number in (1, 2, 3):
                self.await_ready(number)
        except BaseException:
            self.stop()
            raise

    def _await_addresses(self) -> dict[int, Node]:
        """The addresses that `dev` prints, once it has printed each node's process, too."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            self.dev.check_alive()
            printed = self.dev.log()
            if len(re.findall(r"^node \d is process \d+$", printed, re.MULTILINE)) == 3:
                break
            assert time.monotonic() < deadline, f"tontine dev started no three nodes:\n{printed[-4000:]}"
            time.sleep(0.05)
        found = re.findall(r"^node (\d) .* native (\S+)  redis \(resp\) (\S+)  http (\S+)$", printed, re.MULTILINE)
        assert len(found) == 3, printed
        return {int(number): Node(*addresses) for number, *addresses in found}

    def url(self, number: int) -> str:
        return f"http{'s' if self.closed else ''}://{self.nodes[number].http}"

    def urls(self) -> list[str]:
        return [self.url(number) for number in self.nodes]

    def await_ready(self, number: int) -> None:
        context = ssl.create_default_context(cafile=str(self.authority)) if self.closed else None
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with urllib.request.urlopen(f"{self.url(number)}/ready", timeout=10, context=context):
                    return
            except OSError as error:
                assert time.monotonic() < deadline, f"node {number} is not ready: {error}\n{self.dev.log()[-4000:]}"
            time.sleep(0.1)

    def environment(self, named: bool = True) -> dict[str, str]:
        """That of a command: this cluster's addresses, authority and secret, and none of whoever runs the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TONTINE_")}
        if named:
            kept["TONTINE_CONNECT"] = ",".join(node.native for node in self.nodes.values())
            if self.closed:
                kept["TONTINE_TLS_AUTHORITY"] = str(self.authority)
                kept["TONTINE_SECRET_FILE"] = str(self.root_secret)
        return kept

    def command(self, *words: str) -> str:
        """Runs `tontine` as the user `root` and returns what it prints."""
        done = subprocess.run(
            [self.binary, *words],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def user(self, name: str, *rights: str) -> Path:
        """Creates a user, and returns the file of its secret."""
        secret = self.folder / f"{name}.secret"
        self.command("user", "create", name, *rights, "--secret-to", str(secret))
        return secret

    def kill(self, number: int) -> None:
        """Ends a node as a crash would."""
        if number in self.again:
            self.again[number].stop(signal.SIGKILL)
            return
        process = re.findall(rf"^node {number} is process (\d+)$", self.dev.log(), re.MULTILINE)
        os.kill(int(process[-1]), signal.SIGKILL)

    def restart(self, number: int) -> None:
        """Starts a killed node by the command that `dev` prints for it, and waits until it serves."""
        pattern = rf"^node {number} has exited .*; restart it with\n +(.*)$"
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (printed := re.findall(pattern, self.dev.log(), re.MULTILINE)):
            assert time.monotonic() < deadline, f"dev does not say how node {number} is restarted"
            time.sleep(0.05)
        command = shlex.split(printed[-1])
        self.again[number] = Child(f"again-{number}", command, self.folder, self.environment(named=False))
        self.await_ready(number)

    def check_alive(self) -> None:
        for child in (self.dev, *self.again.values()):
            child.check_alive()

    def stop(self) -> None:
        try:
            for child in (*self.again.values(), self.dev):
                child.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
