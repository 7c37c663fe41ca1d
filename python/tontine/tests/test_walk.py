"""The tutorial of docs/guides/spark.md: counted by Spark, pushed, changed, rolled back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "spark.md"
LICENCES = Path("/usr/share/common-licenses")
WORDS = ["the", "package", "license", "of", "library"]


def counted(*files: Path) -> Counter[str]:
    """The same counts without Spark."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(re.findall("[a-z]+", file.read_text(errors="replace").lower()))
    return counts


class Cluster:
    """`tontine dev` with three processes."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.base = binary, free_ports()
        command = [binary, "dev", "--data-dir", str(folder / "data")]
        command += ["--port-base", str(self.base)]
        self.dev = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.dev.stdout is not None
        for line in self.dev.stdout:
            if line.startswith("Ctrl-C stops the cluster"):
                break
        else:
            raise AssertionError("the cluster did not start")
        # Whatever else it says must not fill the pipe.
        threading.Thread(target=self.dev.stdout.read, daemon=True).start()

    def run(self, *words: str) -> str:
        addresses = ",".join(f"127.0.0.1:{self.base + node}" for node in [1, 2, 3])
        done = subprocess.run(
            [self.binary, "--connect", addresses, *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, node: int) -> list[str]:
        """The counts of WORDS, by redis-cli."""
        commands = f"TONTINE.STORE words\nMGET {' '.join(WORDS)}\n"
        port = str(self.base + 100 + node)
        done = subprocess.run(
            ["redis-cli", "-p", port], input=commands, capture_output=True, text=True, check=True
        )
        return done.stdout.split()[1:]

    def stop(self) -> None:
        self.dev.terminate()
        self.dev.wait()


def free_ports() -> int:
    """A port base below the ports that the system hands out, of which all ports are free."""
    for group in range(100):
        base = 10_000 + (os.getpid() + group) % 110 * 200
        try:
            for port in [base + offset + node for offset in [0, 100] for node in range(1, 10)]:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise AssertionError("no ports are free")


class Reader(threading.Thread):
    """Reads all words at once, again and again; keeps each different answer."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.stopped = port, threading.Event()
        self.answers: list[list[str]] = []
        self.count = 0
        self.more = threading.Condition()

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            lines = connection.makefile("rwb")
            lines.write(b"TONTINE.STORE words\r\n")
            lines.flush()
            assert lines.readline() == b"+OK\r\n"
            while not self.stopped.is_set():
                lines.write(f"MGET {' '.join(WORDS)}\r\n".encode())
                lines.flush()
                answer = [lines.readline().decode().strip()]
                for _ in WORDS:
                    answer.append(lines.readline().decode().strip())
                    if answer[-1] != "$-1":
                        answer[-1] = lines.readline().decode().strip()
                with self.more:
                    self.count += 1
                    if not self.answers or self.answers[-1] != answer:
                        self.answers.append(answer)
                    self.more.notify_all()

    def reads_on(self) -> None:
        """Waits for further answers."""
        with self.more:
            until = self.count + 20
            assert self.more.wait_for(lambda: self.count >= until, timeout=60)

    def stop(self) -> list[list[str]]:
        self.stopped.set()
        self.join()
        return self.answers


@pytest.fixture
def cluster(binary: str, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(binary, tmp_path)
    yield cluster
    cluster.stop()


# Two Spark sessions, and a cluster under reads: four minutes at a load of 17.
@pytest.mark.timeout(900)
def test_the_tutorial(cluster: Cluster, tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "count_words.py").write_text(program[1])
    packages = tmp_path / "packages.txt"
    with open(packages, "wb") as output:
        subprocess.run(["apt-cache", "dumpavail"], check=True, stdout=output)
    licences = [file for file in LICENCES.iterdir() if file.is_file()]
    expected = [counted(packages), counted(packages, *licences)]
    assert len(expected[0]) > 20_000, "the package index is too short; run apt-get update"

    for number, texts in [(1, [packages]), (2, [packages, LICENCES])]:
        words = [str(tmp_path / f"words-{number}"), str(number), *map(str, texts)]
        done = subprocess.run(
            [sys.executable, str(tmp_path / "count_words.py"), *words],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert f"{len(expected[number - 1])} words in artifact {number}" in done.stdout

    source = tmp_path / "changes.tsv"
    source.write_text("the\t1\ntontine\t1\n")
    command = [cluster.binary, "artifact", "build", str(source), "--changes", "--key", "1"]
    command += ["--value", "2", "-s", "words", "--number", "3", "--to", str(tmp_path / "words-3")]
    command += ["--parent", str(tmp_path / "words-2")]
    subprocess.run(command, check=True, capture_output=True)

    values = [[str(counts[word]) for word in WORDS] for counts in expected]
    assert all(first != second for first, second in zip(*values, strict=True))
    values.append(["1", *values[1][1:]])
    cluster.run("store", "create", "words", "--read-only")
    readers = [Reader(cluster.base + 100 + node) for node in [1, 2, 3]]
    for reader in readers:
        reader.start()
    steps = [
        ("push", str(tmp_path / "words-1")),
        ("push", str(tmp_path / "words-2")),
        ("push", str(tmp_path / "words-3")),
        ("rollback", "words"),
    ]
    for turn, (step, counts) in enumerate(zip(steps, [0, 1, 2, 1], strict=True)):
        cluster.run("artifact", *step)
        assert cluster.read(1 + turn % 3) == values[counts]
        for reader in readers:
            reader.reads_on()
    head, absent = f"*{len(WORDS)}", ["$-1"] * len(WORDS)
    told = [absent, values[0], values[1], values[2], values[1]]
    sequence = [[head, *each] for each in told]
    for reader in readers:
        assert reader.stop() == sequence, "an answer failed, mixed two artifacts or came late"

    # All counts, not just those that were read: the command builds the same artifact of them.
    source, built = tmp_path / "expected.tsv", tmp_path / "expected"
    source.write_text("".join(f"{word}\t{count}\n" for word, count in expected[1].items()))
    command = [cluster.binary, "artifact", "build", str(source), "--key", "1", "--value", "2"]
    command += ["-s", "words", "--number", "2", "--to", str(built)]
    subprocess.run(command, check=True, capture_output=True)
    assert (built / "manifest").read_bytes() == (tmp_path / "words-2" / "manifest").read_bytes()
