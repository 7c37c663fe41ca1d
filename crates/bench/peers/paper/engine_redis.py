"""Servers of Redis Cluster, without replicas, grown by `redis-cli --cluster`."""

import time

from load import JavaLoad
from members import Member, run

PORT = 6390
SLOTS = 16384
KEY_BYTES = 16


class Redis:
    name = "redis"
    what = "add-node, rebalance"

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.members = arguments, folder, []
        self.generator = JavaLoad(arguments, "redis", f"{self.address(1)}:{PORT}", folder)

    @staticmethod
    def address(number):
        return f"127.0.41.{number}"

    def cli(self, number, *words):
        return run(["redis-cli", "-h", self.address(number), "-p", PORT, *words])

    def cluster(self, *words, patience=7200):
        return run(["redis-cli", "--cluster", *words], patience=patience)

    def begin(self):
        number = len(self.members) + 1
        member = Member(f"server {number}", self.folder / f"server{number}", self.arguments.cap)
        self.members.append(member)
        options = {
            "port": PORT, "bind": self.address(number), "cluster-enabled": "yes", "dir": member.folder,
            # Otherwise the others see it at the address from which it calls.
            "cluster-announce-ip": self.address(number), "bind-source-addr": self.address(number),
            "appendonly": "yes", "appendfsync": "everysec", "save": "", "loglevel": "notice",
            "cluster-allow-replica-migration": "no",
        }
        member.start(["redis-server", *[word for name, value in options.items() for word in (f"--{name}", value)]])
        member.await_port((self.address(number), PORT))

    def place(self, number):
        return f"{self.address(number)}:{PORT}"

    def start(self):
        for _ in range(self.arguments.members):
            self.begin()
        everyone = [self.place(number) for number in range(1, self.arguments.members + 1)]
        self.cluster("create", *everyone, "--cluster-yes", patience=120)
        self.await_calm()

    def await_calm(self):
        """Waits until every server knows all others, and that every slot is served."""
        until = time.monotonic() + 120
        for number in range(1, len(self.members) + 1):
            while True:
                lines = self.cli(number, "cluster", "info").splitlines()
                told = dict(line.split(":", 1) for line in lines if ":" in line)
                if told["cluster_state"] == "ok" and told["cluster_known_nodes"] == str(len(self.members)):
                    break
                if time.monotonic() > until:
                    raise SystemExit(f"server {number} does not see a whole cluster: {told}")
                time.sleep(0.1)

    def settle(self):
        """Nothing goes on by itself between loading and growing."""

    def grow(self, count):
        began, first = time.monotonic(), len(self.members) + 1
        for number in range(first, first + count):
            self.begin()
            self.cluster("add-node", self.place(number), self.place(1), patience=120)
            self.await_calm()
        members = time.monotonic() - began
        self.cluster("rebalance", self.place(1), "--cluster-use-empty-masters")
        took = time.monotonic() - began
        self.check()
        # The records are all of one size, and each that the new ones have came once.
        keys = sum(int(self.cli(number, "dbsize")) for number in range(first, first + count))
        moved = keys * (KEY_BYTES + self.arguments.value_bytes)
        return {"seconds": took, "members_after_s": members, "bytes_moved": moved}

    def check(self):
        """No slot is left open, which `rebalance` may do."""
        nodes = self.cli(1, "cluster", "nodes")
        if "[" in nodes:
            raise SystemExit(f"slots are left open:\n{nodes}")

    def stop(self):
        for member in self.members:
            member.stop()
