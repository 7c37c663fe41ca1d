"""What many connections cost a node that announce large arguments and send none of them.

    python tests-redis/announcing.py --binary target/proof/tontine --connections 1000 3000

Each connection sends 40 bytes and falls silent. Meanwhile another client goes on, and new clients come. Prints what the
node's memory grew by, how long the other client waited at most, and what became of large values and new clients.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from raw import Raw, encode
from targets import Address, Process, redis_addresses, scratch_folder

ANNOUNCED = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777216\r\n"
LARGE = b"x" * (1 << 20)
NEW_CLIENTS = 50
SILENT_SECONDS = 3.0


class OneNode(Process):
    """A cluster of one node, one process."""

    def __init__(self, binary: Path) -> None:
        folder = scratch_folder()
        command = [str(binary.resolve()), "dev", "--nodes", "1", "--data-dir", str(folder / "cluster")]
        super().__init__("tontine", command, folder)
        self.addresses = []
        while not self.addresses:
            self.check_alive()
            time.sleep(0.05)
            self.addresses = redis_addresses(self.log())
        self.await_addresses()

    def resident_bytes(self) -> int:
        return resident_bytes(self.child.pid)


def resident_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@dataclass
class Seen:
    """What was seen while the silent connections stood."""

    grown_bytes: int = 0
    seconds_max: float = 0.0
    seconds_median: float = 0.0
    commands: int = 0
    large: Counter[str] = field(default_factory=Counter)
    new_clients: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"memory +{self.grown_bytes / 1e6:.0f} MB; another client: {self.commands} commands, median "
            f"{self.seconds_median * 1e3:.2f} ms, longest {self.seconds_max * 1e3:.0f} ms; values of 1 MiB: "
            f"{dict(self.large)}; new clients: {dict(self.new_clients)}; silent ones: {dict(self.silent)}"
        )


def answer(raw: Raw) -> str:
    """The first words of an answer, or that there was none."""
    try:
        return raw.reply().split(b" requests")[0].decode(errors="replace").strip()[:60]
    except (OSError, AssertionError):
        return "no answer"


def ask(address: Address, *command: bytes) -> str:
    try:
        with Raw(address) as raw:
            raw.send(encode(*command))
            return answer(raw)
    except OSError as error:
        return f"no answer: {type(error).__name__}"


def keep_asking(address: Address, stop: threading.Event, seconds: list[float]) -> None:
    with Raw(address) as raw:
        while not stop.is_set():
            before = time.monotonic()
            assert raw.ask("SET", "other", b"v" * 1000) == b"+OK\r\n"
            seconds.append(time.monotonic() - before)


def observe(node: OneNode, connections: int) -> Seen:
    address, seen = node.addresses[0], Seen()
    seconds: list[float] = []
    stop = threading.Event()
    other = threading.Thread(target=keep_asking, args=(address, stop, seconds))
    ask(address, b"SET", b"large", LARGE)
    before = node.resident_bytes()
    other.start()
    silent: list[socket.socket] = []
    try:
        for _ in range(connections):
            connection = socket.create_connection(address, timeout=30)
            connection.sendall(ANNOUNCED)
            silent.append(connection)
        until = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < until:
            seen.grown_bytes = max(seen.grown_bytes, node.resident_bytes() - before)
            seen.large[ask(address, b"SET", b"large", LARGE)] += 1
        for _ in range(NEW_CLIENTS):
            seen.new_clients[ask(address, b"PING")] += 1
        for connection in silent:
            connection.setblocking(False)
            try:
                said = connection.recv(100)
                seen.silent[said.split(b" requests")[0].decode().strip() or "closed without a word"] += 1
            except BlockingIOError:
                seen.silent["waits"] += 1
            except OSError as error:
                seen.silent[type(error).__name__] += 1
    finally:
        for connection in silent:
            connection.close()
        stop.set()
        other.join()
    seen.commands, seen.seconds_max = len(seconds), max(seconds)
    seen.seconds_median = statistics.median(seconds)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--connections", type=int, nargs="+", default=[1000, 3000])
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for connections in options.connections:
        node = OneNode(options.binary)
        try:
            print(f"{connections} silent connections: {observe(node, connections)}", flush=True)
        finally:
            node.stop()


if __name__ == "__main__":
    main()
