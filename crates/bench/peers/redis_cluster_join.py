#!/usr/bin/env python3
"""What `tontine bench moves --joins` measures, of Redis Cluster: a fourth server joins three that hold records.

    python3 crates/bench/peers/redis_cluster_join.py --records 5000000 --value-length 200

Needs redis-server and redis-cli. Each server logs and syncs every second, and has no replica; so a quarter of the records
moves once, where a store of Tontine with N=3 moves three quarters of one copy.
`redis-cli --cluster rebalance` moves the slots, first without load and then, after all has been moved back, under it.
The load is four processes of this program, which follow MOVED and ASK: of twenty requests nineteen get and one sets, keys
are drawn evenly. They cost more processor time than Tontine's client, so only shares of one run mean anything.
Servers listen on loopback and end with this program.
"""

import argparse
import binascii
import json
import multiprocessing
import random
import socket
import subprocess
import tempfile
import threading
import time

SLOTS = 16384
BATCH = 500
WORKERS = 4


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        # The bus listens at the port plus 10,000.
        while True:
            one.bind(("127.0.0.1", 0))
            if one.getsockname()[1] < 55000:
                break
            one.close()
            one.__init__()
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def cli(port, *words):
    done = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"redis-cli {' '.join(words)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def cluster(*words):
    done = subprocess.run(["redis-cli", "--cluster", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"redis-cli --cluster {' '.join(words)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def info(port):
    lines = cli(port, "cluster", "info").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def cpu_seconds(processes):
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / 100


def packed(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def slot_of(key):
    return binascii.crc_hqx(key, 0) % SLOTS


def slot_owners(port):
    """The port of the server that has each slot."""
    owners = [None] * SLOTS
    for line in cli(port, "cluster", "nodes").splitlines():
        words = line.split()
        owner = int(words[1].split("@")[0].rsplit(":", 1)[1])
        for bounds in (word.split("-") for word in words[8:] if not word.startswith("[")):
            for slot in range(int(bounds[0]), int(bounds[-1]) + 1):
                owners[slot] = owner
    return owners


def fill(ports, records, length):
    """Writes all records, each where its slot is."""
    owners = slot_owners(ports[0])
    value = b"v" * length
    links = {port: socket.create_connection(("127.0.0.1", port)) for port in ports}
    waiting = {port: [] for port in links}

    def send(port):
        links[port].sendall(b"".join(waiting[port]))
        left = len(waiting[port]) * len(b"+OK\r\n")
        while left:
            left -= len(links[port].recv(left))
        waiting[port].clear()

    for number in range(records):
        key = b"key:%012d" % number
        port = owners[slot_of(key)]
        waiting[port].append(packed(b"SET", key, value))
        if len(waiting[port]) == BATCH:
            send(port)
    for port in links:
        send(port)


def await_calm(ports):
    """Waits until every server knows all others, and that every slot is served."""
    for port in ports:
        while True:
            state = info(port)
            if state["cluster_state"] == "ok" and state["cluster_known_nodes"] == str(len(ports)):
                break
            time.sleep(0.1)


def moved(ports, joins):
    """Gives the fourth server its share, or takes it away again; returns the seconds that it took."""
    weight = [] if joins else ["--cluster-weight", f"{cli(ports[3], 'cluster', 'myid').strip()}=0"]
    began = time.monotonic()
    cluster("rebalance", f"127.0.0.1:{ports[0]}", "--cluster-use-empty-masters", *weight)
    return time.monotonic() - began


class Link:
    """One connection, on which one request is under way at a time."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.stream.makefile("rb")

    def call(self, request, replies=1):
        """Sends what is packed, and returns the last reply's first line."""
        self.stream.sendall(request)
        for _ in range(replies):
            head = self.replies.readline()
            if head.startswith(b"$") and head != b"$-1\r\n":
                self.replies.read(int(head[1:]) + 2)
        return head


def work(seed, ports, arguments, counts, failures):
    """Requests, one after the other, until it is ended; counts those that were answered, and those that failed."""
    dice, links, owners = random.Random(seed), {port: Link(port) for port in ports}, slot_owners(ports[0])
    value = b"v" * arguments.value_length
    asking = packed(b"ASKING")
    while True:
        key = b"key:%012d" % dice.randrange(arguments.records)
        request = packed(b"GET", key) if dice.randrange(20) else packed(b"SET", key, value)
        slot = slot_of(key)
        reply = links[owners[slot]].call(request)
        while reply.startswith((b"-MOVED", b"-ASK", b"-TRYAGAIN")):
            where = int(reply.rsplit(b":", 1)[1]) if b":" in reply else owners[slot]
            if reply.startswith(b"-ASK"):
                reply = links[where].call(asking + request, replies=2)
            else:
                owners[slot] = where
                reply = links[where].call(request)
        if reply.startswith(b"-") or reply == b"$-1\r\n":
            failures[seed] += 1
        counts[seed] += 1


class Sampler(threading.Thread):
    """Requests of each second, with the second's end."""

    def __init__(self, counts):
        super().__init__(daemon=True)
        self.counts, self.seconds, self.over = counts, [], False

    def run(self):
        before, at = sum(self.counts), time.monotonic()
        while not self.over:
            time.sleep(1)
            count, now = sum(self.counts), time.monotonic()
            self.seconds.append((now, (count - before) / (now - at)))
            before, at = count, now

    def between(self, begin, end):
        return [rate for at, rate in self.seconds if at - 1 >= begin and at <= end]


def median(values):
    return sorted(values)[len(values) // 2] if values else float("nan")


def measured(arguments, ports, servers):
    cluster("create", *[f"127.0.0.1:{port}" for port in ports[:3]], "--cluster-yes")
    await_calm(ports[:3])
    began = time.monotonic()
    fill(ports[:3], arguments.records, arguments.value_length)
    print(f"{arguments.records} records in {time.monotonic() - began:.0f} s", flush=True)
    cluster("add-node", f"127.0.0.1:{ports[3]}", f"127.0.0.1:{ports[0]}")
    await_calm(ports)
    used = cpu_seconds(servers)
    alone = moved(ports, True)
    used = cpu_seconds(servers) - used
    keys = int(cli(ports[3], "dbsize"))
    print(f"without load {keys} records came in {alone:.1f} s", flush=True)
    moved(ports, False)
    await_calm(ports)
    counts = multiprocessing.Array("Q", WORKERS, lock=False)
    failures = multiprocessing.Array("Q", WORKERS, lock=False)
    load = [
        multiprocessing.Process(target=work, args=(seed, ports, arguments, counts, failures), daemon=True)
        for seed in range(WORKERS)
    ]
    for one in load:
        one.start()
    try:
        time.sleep(3)
        sampler = Sampler(counts)
        sampler.start()
        first, cpu = time.monotonic(), [cpu_seconds(servers)]
        time.sleep(arguments.before)
        begin = time.monotonic()
        cpu.append(cpu_seconds(servers))
        took = moved(ports, True)
        end = time.monotonic()
        cpu.append(cpu_seconds(servers))
        sampler.over = True
        sampler.join()
        ended = [one.exitcode for one in load]
    finally:
        for one in load:
            one.kill()
            one.join()
    undisturbed, moving = sampler.between(first, begin), sampler.between(begin, end)
    return {
        "records": arguments.records,
        "records_moved": keys,
        "moved_without_load_s": round(alone, 1),
        "moved_without_load_server_cpu_s": round(used, 1),
        "moved_under_load_s": round(took, 1),
        "undisturbed_throughput": round(median(undisturbed)),
        "moving_throughput": round(median(moving)),
        "throughput_kept_percent": round(100 * median(moving) / median(undisturbed), 1),
        "worst_second_percent": round(100 * min(moving, default=float("nan")) / median(undisturbed), 1),
        "server_cores_undisturbed": round((cpu[1] - cpu[0]) / (begin - first), 2),
        "server_cores_moving": round((cpu[2] - cpu[1]) / (end - begin), 2),
        "requests": sum(counts),
        "requests_failed": sum(failures),
        "load_ended_early": any(code is not None for code in ended),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--value-length", type=int, default=200)
    parser.add_argument("--before", type=int, default=20, help="seconds of load before the fourth server joins")
    arguments = parser.parse_args()
    ports = free_ports(4)
    with tempfile.TemporaryDirectory(prefix="redis-join-") as scratch:
        servers = []
        try:
            for port in ports:
                options = {
                    "port": port, "bind": "127.0.0.1", "cluster-enabled": "yes", "dir": scratch,
                    "cluster-config-file": f"nodes-{port}.conf", "appendonly": "yes", "appendfsync": "everysec",
                    "appenddirname": f"log-{port}", "save": "", "loglevel": "warning",
                    # Else a server that gives its last slot away becomes a replica.
                    "cluster-allow-replica-migration": "no",
                    "logfile": f"{port}.log",
                }
                words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
                servers.append(subprocess.Popen(["redis-server", *words]))
            time.sleep(2)
            print(json.dumps(measured(arguments, ports, servers), indent=2))
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.wait()


if __name__ == "__main__":
    main()
