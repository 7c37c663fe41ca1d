"""Nodes of Tontine, grown by `tontine node add` and one plan `spread`."""

import json
import re
import subprocess
import time

from load import TontineLoad
from members import Member, end, run

PORT = 7401
PARTITIONS = 1024


class Tontine:
    name = "tontine"
    what = "node add, plan spread"
    # What the adapter says of a member that uses all of its cap, in percent.
    processor_full = 100

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.members = arguments, folder, []
        self.moved = 0
        self.coordination = f"dir:{folder}/coordination"
        self.generator = TontineLoad(arguments, f"{self.address(1)}:{PORT}", folder)

    @staticmethod
    def address(number):
        return f"127.0.42.{number}"

    @property
    def connect(self):
        return ",".join(f"{self.address(number)}:{PORT}" for number in range(1, len(self.members) + 1))

    def tell(self, *words, patience=60, check=True):
        return run([self.arguments.tontine, *words, "--connect", self.connect], patience=patience, check=check)

    def ask(self, *words):
        # `node list` also exits with 1 while a node starts.
        return json.loads(self.tell(*words, "-o", "json", check=words[:2] != ("node", "list")))

    def begin(self):
        number = len(self.members) + 1
        member = Member(f"node {number}", self.folder / f"node{number}", self.arguments.cap)
        self.members.append(member)
        words = ["serve", "--coordination", self.coordination, "--data-dir", member.folder / "data"]
        member.start([self.arguments.tontine, *words, "--listen", f"{self.address(number)}:{PORT}", "--workers", 1])

    def start(self):
        one = self.arguments
        words = ["cluster", "create", "--name", "paper", "--nodes", one.members, "--replicas", one.copies]
        words += ["--coordination", self.coordination, "--partitions", PARTITIONS]
        with open(self.folder / "create.log", "wb") as log:
            creating = subprocess.Popen([one.tontine, *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            time.sleep(0.5)
            for _ in range(one.members):
                self.begin()
            if creating.wait(120):
                raise SystemExit(f"the cluster was not created:\n{(self.folder / 'create.log').read_text()}")
            # They were waiting for their names, and listen when they have them.
            for number, member in enumerate(self.members, 1):
                member.await_port((self.address(number), PORT))
        finally:
            end(creating)

    def leave_to_controller(self):
        """From now on nothing but a controller's plans moves partitions."""
        self.tell("balance", "off")

    def adapter(self):
        """The command line of its adapter."""
        words = [self.arguments.tontine, "adapter", "tontine", "--connect", self.connect, "--port", PORT]
        return [*words, "--coordination", self.coordination, "--", "--workers", 1]

    def settle(self):
        self.moved = self.received()

    def received(self):
        """Bytes that nodes received because partitions moved to them."""
        total = 0
        for node in self.ask("node", "list")["nodes"]:
            connect = ["--connect", node["native"], "--from", node["node"]]
            page = run([self.arguments.tontine, "metrics", *connect])
            found = re.search(r"^tontine_refill_bytes_total ([\d.e+]+)", page, re.MULTILINE)
            total += float(found[1]) if found else 0
        return int(total)

    def grow(self, count):
        began = time.monotonic()
        size = len(self.ask("node", "list")["nodes"])
        for _ in range(count):
            self.begin()
        waiting, until = [], time.monotonic() + 120
        while len(waiting) < count:
            if time.monotonic() > until:
                raise SystemExit(f"{count - len(waiting)} of {count} nodes do not register; see {self.members[-1].log}")
            time.sleep(0.1)
            waiting = self.ask("node", "list")["waiting"]
        for node in waiting:
            self.ask("node", "add", node["node"])
        while len(self.ask("node", "list")["nodes"]) < size + count:
            time.sleep(0.1)
        members = time.monotonic() - began
        plan = self.ask("plan", "create", "spread")["plan"]
        self.tell("plan", "apply", plan, patience=7200)
        took, before = time.monotonic() - began, self.moved
        self.moved = self.received()
        return {"seconds": took, "members_after_s": members, "bytes_moved": self.moved - before}

    def stop(self):
        for member in self.members:
            member.stop()
