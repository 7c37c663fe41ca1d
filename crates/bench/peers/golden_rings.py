#!/usr/bin/env python3
"""Rings that grow by one process at a time: golden cuts, halving the largest partition, and 1,024 equal slices.

    python3 crates/bench/peers/golden_rings.py --program target/release/tontine --records 200000 --nodes 12

For each number of nodes it prints the node with most records over the mean, what the join brought in (bytes, and over the
newcomer's fair share of the records), from how many donors, and how long its plan took.
N is 1, so that a record lies at one node. The autopilot is off. Nobody else sends requests.
Halving has no command of its own: the largest partition is split in the middle, and the node that joins gets the part.
All processes run on loopback, and end with this program.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

RINGS = ("golden", "halving", "equal")
PATIENCE_SECONDS = 120


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


class Ring:
    """A cluster of one ring, that grows."""

    def __init__(self, program, kind, folder, value_length):
        self.program, self.kind, self.folder = program, kind, folder
        self.processes, self.value_length = [], value_length
        shape = [] if kind == "equal" else ["--ring=golden"]
        data = os.path.join(folder, "data")
        out = open(os.path.join(folder, "dev.out"), "w", encoding="utf-8")
        words = [program, "dev", "--nodes=1", "--data-dir", data, *shape]
        self.processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        self.service = f"dir:{os.path.join(data, 'coordination')}"
        self.connect = self.await_dev(out.name)
        self.run("balance", "off")

    def await_dev(self, path):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with open(path, encoding="utf-8") as said:
                text = said.read()
            if "Ctrl-C stops" in text:
                line = next(line for line in text.splitlines() if line.startswith("node 1  "))
                words = line.split()
                return words[words.index("native") + 1]
            time.sleep(0.1)
        raise SystemExit(f"dev did not start: {text}")

    def run(self, *words, check=True):
        environment = {**os.environ, "TONTINE_CONNECT": self.connect, "TONTINE_DEADLINE": "1m"}
        done = subprocess.run(
            [self.program, *words], env=environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"tontine {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *words):
        return json.loads(self.run(*words, "--json"))

    def load(self, records):
        path = os.path.join(self.folder, "records.tsv")
        value = "v" * self.value_length
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"key-{number}\t{value}\n" for number in range(records))
        self.run("load", path, "--key", "1", "--value", "2", "--no-header")

    def held(self):
        nodes = self.json("status")["nodes"]
        records = lambda report: sum(store["records"] for store in report["status"]["stores"])
        return {node["node"]: records(node["report"]) for node in nodes if node["report"]}

    def serve(self, number):
        words = ["serve", "--coordination", self.service, "--listen", free_address(), "--resp", free_address()]
        words += ["--data-dir", os.path.join(self.folder, f"node-{number}")]
        said = os.path.join(self.folder, f"node-{number}.err")
        with open(said, "w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [self.program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out
            )
        self.processes.append(process)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with open(said, encoding="utf-8") as text:
                if "waits until cluster" in text.read():
                    return
            time.sleep(0.1)
        raise SystemExit(f"node {number} did not register")

    def split_largest(self):
        ring = json.loads(self.run("coordination", "show", "/config/cluster", "--coordination", self.service, "--json"))
        ring = json.loads(ring["documents"][0]["data"])["ring"] if "documents" in ring else ring["ring"]
        partitions, last = [], (-1, 0)
        for place, entry in enumerate(ring):
            identity = entry.get("id", last[0] + 1)
            step = partitions[-1][1] - partitions[-2][1] if place > 1 else 0
            start = entry.get("start", last[1] + step)
            partitions.append((identity, start))
            last = (identity, start)
        ends = [start for _, start in partitions[1:]] + [1 << 64]
        widths = [end - start for (_, start), end in zip(partitions, ends)]
        largest = partitions[widths.index(max(widths))][0]
        plan = self.json("plan", "create", "split", str(largest))["plan"]
        self.apply(plan)

    def apply(self, plan):
        """Carries a plan out. A node that has just become a member serves a moment later."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.json("plan", "show", str(plan))["phase"] != "done":
            if time.monotonic() > deadline:
                raise SystemExit(f"plan {plan} is not done")
            self.run("plan", "apply", str(plan), check=False)

    def grow(self, number):
        """The plan by which a node gets its part."""
        self.serve(number)
        if self.kind == "halving":
            self.split_largest()
        if self.kind == "equal":
            self.run("node", "add", str(number))
            plan = self.json("plan", "create", "spread")["plan"]
            self.apply(plan)
        else:
            self.run("node", "add", str(number))
        return self.json("plan", "show")

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGINT)
        for process in self.processes:
            process.wait()


def donors(before, after):
    return sum(1 for node, records in before.items() if after.get(node, 0) < records)


def measure(arguments, kind):
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(arguments.program, kind, folder, arguments.value_length)
        try:
            ring.load(arguments.records)
            for number in range(2, arguments.nodes + 1):
                before = ring.held()
                plan = ring.grow(number)
                state = plan["state"]
                # A donor drops what it has given a moment later.
                deadline = time.monotonic() + PATIENCE_SECONDS
                while sum((after := ring.held()).values()) != arguments.records:
                    if time.monotonic() > deadline:
                        raise SystemExit(f"{sum(after.values())} records, not {arguments.records}: {after}")
                    time.sleep(0.2)
                copied = state["progress"]["copied"]
                took = (state["ended_ms"] - state["begun_ms"]) / 1000
                mean = arguments.records / number
                print(
                    f"{kind:8}{number:>6}{max(after.values()) / mean:>11.2f}{copied['bytes'] / 1e6:>12.1f}"
                    f"{copied['records'] / mean:>12.2f}{donors(before, after):>8}{took:>9.1f}",
                    flush=True,
                )
        finally:
            ring.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/tontine")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--value-length", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rings", nargs="+", choices=RINGS, default=list(RINGS))
    arguments = parser.parse_args()
    arguments.program = os.path.abspath(arguments.program)
    print(f"{'ring':8}{'nodes':>6}{'over mean':>11}{'moved, MB':>12}{'over share':>12}{'donors':>8}{'seconds':>9}")
    for kind in arguments.rings:
        measure(arguments, kind)


if __name__ == "__main__":
    main()
