"""Real ZooKeeper servers on the loopback interface, for tests and benchmarks.

What: installs ZooKeeper 3.9.5 through Maven once, then starts, pauses, kills and
stops single servers and whole ensembles, each a JVM of its own.

Why: ParKazoo's promises are about what servers do when they stall, die and come
back; a stand-in would only repeat what we believe about them.

Must never: leave a JVM behind (every process started here is ended by its own
pid, also when the interpreter exits), listen outside 127.0.0.1, or write into
the source tree.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "zookeeper.pom.xml"
JAVA_FLAGS = (
    "-Xms32m -Xmx160m -XX:+UseSerialGC -Xss512k -XX:TieredStopAtLevel=1 -Xshare:auto"
).split()
# Below the range the kernel hands out for outgoing connections, so that a client
# of somebody else never sits on a port between our choice and the server's bind.
PORT_FIRST, PORT_LAST = 12_000, 31_000
# Test runners work side by side (pytest-xdist), each with ports of its own: between
# the choice of a port and the server's bind another one must not choose it, too.
RUNNERS_MAX = 8
START_SECONDS_MAX = 90.0
# How long a test waits for what must happen. It passes in a fraction of this; a slow
# and loaded machine may need most of it.
PATIENCE_SECONDS = 90.0
# Where a server's data is when nobody says: in memory where that is possible. It
# outlives the server's process, which is all that the tests take away, and spares
# a shared disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# Whoever says so may do anything on these servers, whatever an ACL forbids.
SUPERUSER = ("digest", "super:test")


def generate_digest(credential: str) -> str:
    """A user and password as ZooKeeper keeps them."""
    user, _, _ = credential.partition(":")
    digest = hashlib.sha1(credential.encode(), usedforsecurity=False).digest()
    return f"{user}:{base64.b64encode(digest).decode()}"


def cache_directory() -> Path:
    """Where downloads are kept: `$PARKAZOO_CACHE`, else `target/` of the checkout."""
    named = os.environ.get("PARKAZOO_CACHE")
    if named:
        path = Path(named)
    else:
        checkout = HERE.parent.parent.parent
        path = checkout / "target" / "parkazoo"
    path.mkdir(parents=True, exist_ok=True)
    (path / ".gitignore").write_text("*\n")
    return path


def jar_directory() -> Path:
    """Where the jars are, or will be: another place for each list of them."""
    version = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    return cache_directory() / f"zookeeper-{version}"


def jars() -> list[Path]:
    """The server's class path, installed by Maven the first time it is asked for."""
    directory = jar_directory()
    if not directory.is_dir():
        fresh = Path(tempfile.mkdtemp(prefix="zookeeper-", dir=cache_directory()))
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run(
            [*command, f"-DoutputDirectory={fresh}"],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        try:
            fresh.rename(directory)
        except OSError:  # another test run was faster
            shutil.rmtree(fresh)
    return sorted(directory.glob("*.jar"))


def class_path() -> str:
    return os.pathsep.join(str(jar) for jar in jars())


_ports_taken: set[int] = set()


def _ports() -> tuple[int, int]:
    """The first and the last port of this runner."""
    runner = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = (PORT_LAST - PORT_FIRST) // RUNNERS_MAX
    first = PORT_FIRST + runner % RUNNERS_MAX * each
    return first, first + each - 1


def free_port() -> int:
    """A loopback port nobody listens on and this process has not handed out yet."""
    for _ in range(1000):
        port = random.SystemRandom().randint(*_ports())
        if port in _ports_taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _ports_taken.add(port)
        return port
    raise RuntimeError("no free loopback port found")


def four_letter_word(port: int, word: str, seconds: float = 10.0) -> str:
    """A server's answer to `srvr`, `mntr`, ...; empty while it cannot answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(word.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


def wait_until(
    condition: Callable[[], object],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    pause: float = 0.05,
) -> None:
    """Poll `condition` until it holds; `TimeoutError` naming `what` if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


@dataclass
class Options:
    """How a server is started; the defaults suit functional tests.

    `tick_ms` bounds how short a session may be (2 ticks) and how long a leader
    waits for its followers. `environment` and `properties` are how the benchmarks
    slow a server's log device down.
    """

    tick_ms: int = 500
    init_limit: int = 20
    sync_limit: int = 10
    properties: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    java_flags: list[str] = field(default_factory=lambda: list(JAVA_FLAGS))
    configuration: dict[str, str] = field(default_factory=dict)


class Server:
    """One ZooKeeper JVM with a directory of its own; data survives stop and kill."""

    def __init__(self, directory: Path, number: int, options: Options) -> None:
        self.directory = directory
        self.number = number
        self.options = options
        self.client_port = free_port()
        self.quorum_port = free_port()
        self.election_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def quorum_line(self) -> str:
        ports = f"{self.quorum_port}:{self.election_port}"
        return f"server.{self.number}=127.0.0.1:{ports}"

    def configure(self, members: Iterable[Server]) -> None:
        """Write the configuration; alone when `members` is just this server."""
        members = list(members)
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        options = self.options
        lines = {
            "tickTime": str(options.tick_ms),
            "maxSessionTimeout": "60000",
            "initLimit": str(options.init_limit),
            "syncLimit": str(options.sync_limit),
            "dataDir": str(data),
            "clientPort": str(self.client_port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            "reconfigEnabled": "true",
            "extendedTypesEnabled": "true",
            **options.configuration,
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        if len(members) > 1:
            text += "".join(member.quorum_line + "\n" for member in members)
            (data / "myid").write_text(f"{self.number}\n")
        (self.directory / "zoo.cfg").write_text(text)

    def start(self) -> None:
        """Start the JVM; does not wait for it to serve."""
        assert self.process is None, f"{self.address} is already running"
        properties = {
            "zookeeper.admin.enableServer": "false",
            "zookeeper.DigestAuthenticationProvider.superDigest": (
                generate_digest(SUPERUSER[1])
            ),
            **self.options.properties,
        }
        command = [
            "java",
            *self.options.java_flags,
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp",
            class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]
        log = open(self.directory / "output.log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.directory,
            env={**os.environ, **self.options.environment},
        )
        log.close()
        self.paused = False
        _running.add(self)

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.address} is not running"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def mode(self) -> str:
        """`standalone`, `leader`, `follower`, or empty while it does not serve."""
        if not self.running or self.paused:
            return ""
        for line in four_letter_word(self.client_port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return ""

    def pause(self) -> None:
        """SIGSTOP: alive, connections open, answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads go on for a while; its parent is told when the
        # last of them has stopped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        """SIGKILL: the data stays, `start` brings the server back."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        _running.discard(self)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            if self.paused and number != signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        self.paused = False


_running: set[Server] = set()


@atexit.register
def _end_all() -> None:
    for server in list(_running):
        server.kill()


class Ensemble:
    """One ZooKeeper ensemble of `size` servers; one server runs standalone."""

    def __init__(
        self,
        directory: Path | None = None,
        size: int = 1,
        options: Options | None = None,
    ) -> None:
        self.owns_directory = directory is None
        self.directory = directory or Path(
            tempfile.mkdtemp(prefix="parkazoo-zk-", dir=MEMORY)
        )
        self.options = options or Options()
        self.servers = [
            Server(self.directory / f"server{number}", number, self.options)
            for number in range(1, size + 1)
        ]
        for server in self.servers:
            server.configure(self.servers)

    @property
    def hosts(self) -> str:
        """The connection string a plain Kazoo client takes."""
        return ",".join(server.address for server in self.servers)

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self.servers if server.running]

    def start(self, wait: bool = True) -> Ensemble:
        """Start whichever servers are down, resume whichever are paused."""
        for server in self.servers:
            if not server.running:
                server.stop()
                server.start()
            elif server.paused:
                server.resume()
        if wait:
            self.wait_serving()
        return self

    def serving(self) -> bool:
        modes = [server.mode() for server in self.servers]
        if len(modes) == 1:
            return modes == ["standalone"]
        return modes.count("leader") == 1 and all(modes)

    def wait_serving(self, seconds: float = START_SECONDS_MAX) -> None:
        try:
            wait_until(self.serving, f"ensemble {self.hosts} serving", seconds)
        except TimeoutError as error:
            logs = [self.directory / s.directory / "output.log" for s in self.servers]
            tails = "\n".join(log.read_text()[-2000:] for log in logs)
            raise TimeoutError(f"{error}\n{tails}") from None

    def leader(self) -> Server:
        """The server that orders the writes (the only one when standalone)."""
        for server in self.servers:
            if server.mode() in ("leader", "standalone"):
                return server
        raise LookupError(f"ensemble {self.hosts} has no leader")

    def followers(self) -> list[Server]:
        return [server for server in self.servers if server.mode() == "follower"]

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """Stop for good and drop the data."""
        self.kill()
        if self.owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Ensemble:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def start_ensembles(
    count: int, size: int = 1, options: Options | None = None
) -> list[Ensemble]:
    """`count` ensembles of `size` servers each, started side by side."""
    started = [Ensemble(size=size, options=options) for _ in range(count)]
    try:
        for ensemble in started:
            ensemble.start(wait=False)
        for ensemble in started:
            ensemble.wait_serving()
    except BaseException:
        for ensemble in started:
            ensemble.close()
        raise
    return started


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system CPU seconds the processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    # Installs what is missing, once, before runners that work side by side need it;
    # with `--installed` only says where it is. The tests of crates/coordination ask so.
    if sys.argv[1:] == ["--installed"] and not jar_directory().is_dir():
        sys.exit(f"there are no ZooKeeper jars in {jar_directory()}")
    print(class_path())
