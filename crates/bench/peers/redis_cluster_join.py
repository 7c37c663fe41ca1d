#!/usr/bin/env python3
"""What `tontine bench moves --joins` measures, of Redis Cluster: a fourth server joins three that hold records.

    python3 crates/bench/peers/redis_cluster_join.py --records 5000000 --value-length 200

Needs redis-server, redis-cli and redis-benchmark. Each server logs and syncs every second, and has no replica; so a
quarter of the records moves once, where a store of Tontine with N=3 moves three quarters of one copy.
`redis-cli --cluster rebalance` moves the slots, first without load and then, after all has been moved back, under it.
The load is redis-benchmark: fifteen connections get, one sets. Servers listen on loopback and end with this program.
"""

import argparse
import binascii
import json
import socket
import subprocess
import tempfile
import threading
import time

SLOTS = 16384
BATCH = 500


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


def info(port, section):
    lines = cli(port, "info", section).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def answered(ports):
    """Gets and sets that the servers have carried out so far, those that they sent elsewhere left out."""
    count = 0
    for port in ports:
        stats = info(port, "commandstats")
        for command in ("cmdstat_get", "cmdstat_set"):
            fields = dict(pair.split("=") for pair in stats.get(command, "").split(",") if pair)
            count += int(fields.get("calls", 0)) - int(fields.get("rejected_calls", 0))
    return count


def cpu_seconds(processes):
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / 100


def fill(ports, records, length):
    """Writes all records, each where its slot is: an equal share of the slots at each of the servers."""
    shares = sorted(
        (int(bounds[0]), int(bounds[-1]), int(line.split()[1].split("@")[0].rsplit(":", 1)[1]))
        for line in cli(ports[0], "cluster", "nodes").splitlines()
        for bounds in [words.split("-") for words in line.split()[8:]]
    )
    value = b"v" * length
    links = {port: socket.create_connection(("127.0.0.1", port)) for _, _, port in shares}
    waiting = {port: [] for port in links}

    def send(port):
        links[port].sendall(b"".join(waiting[port]))
        left = len(waiting[port]) * len(b"+OK\r\n")
        while left:
            left -= len(links[port].recv(left))
        waiting[port].clear()

    for number in range(records):
        key = b"key:%012d" % number
        slot = binascii.crc_hqx(key, 0) % SLOTS
        port = next(port for first, last, port in shares if first <= slot <= last)
        command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, length, value)
        waiting[port].append(command)
        if len(waiting[port]) == BATCH:
            send(port)
    for port in links:
        send(port)


def moved(ports, joins):
    """Gives the fourth server its share, or takes it away again; returns the seconds that it took."""
    weight = [] if joins else ["--cluster-weight", f"{cli(ports[3], 'cluster', 'myid').strip()}=0"]
    began = time.monotonic()
    cluster("rebalance", f"127.0.0.1:{ports[0]}", "--cluster-use-empty-masters", *weight)
    return time.monotonic() - began


class Sampler(threading.Thread):
    """Operations of each second, with the second's end."""

    def __init__(self, ports):
        super().__init__(daemon=True)
        self.ports, self.seconds, self.over = ports, [], False

    def run(self):
        before, at = answered(self.ports), time.monotonic()
        while not self.over:
            time.sleep(1)
            count, now = answered(self.ports), time.monotonic()
            self.seconds.append((now, (count - before) / (now - at)))
            before, at = count, now

    def between(self, begin, end):
        return [rate for at, rate in self.seconds if at - 1 >= begin and at <= end]


def median(values):
    return sorted(values)[len(values) // 2] if values else float("nan")


def measured(arguments, ports, servers):
    cluster("create", *[f"127.0.0.1:{port}" for port in ports[:3]], "--cluster-yes")
    time.sleep(3)
    began = time.monotonic()
    fill(ports[:3], arguments.records, arguments.value_length)
    print(f"{arguments.records} records in {time.monotonic() - began:.0f} s", flush=True)
    cluster("add-node", f"127.0.0.1:{ports[3]}", f"127.0.0.1:{ports[0]}")
    time.sleep(3)
    alone = moved(ports, True)
    keys = int(cli(ports[3], "dbsize"))
    print(f"without load {keys} records came in {alone:.1f} s", flush=True)
    moved(ports, False)
    time.sleep(2)
    common = ["redis-benchmark", "--cluster", "-p", str(ports[0]), "-q", "-r", str(arguments.records), "-n", "2000000000"]
    value = "v" * arguments.value_length
    load = [
        subprocess.Popen([*common, "-c", "15", "get", "key:__rand_int__"], stdout=subprocess.DEVNULL),
        subprocess.Popen([*common, "-c", "1", "set", "key:__rand_int__", value], stdout=subprocess.DEVNULL),
    ]
    try:
        time.sleep(3)
        sampler = Sampler(ports)
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
        ended = [one.poll() for one in load]
    finally:
        for one in load:
            one.kill()
            one.wait()
    undisturbed, moving = sampler.between(first, begin), sampler.between(begin, end)
    return {
        "records": arguments.records,
        "records_moved": keys,
        "moved_without_load_s": round(alone, 1),
        "moved_under_load_s": round(took, 1),
        "undisturbed_throughput": round(median(undisturbed)),
        "moving_throughput": round(median(moving)),
        "throughput_kept_percent": round(100 * median(moving) / median(undisturbed), 1),
        "worst_second_percent": round(100 * min(moving, default=float("nan")) / median(undisturbed), 1),
        "server_cores_undisturbed": round((cpu[1] - cpu[0]) / (begin - first), 2),
        "server_cores_moving": round((cpu[2] - cpu[1]) / (end - begin), 2),
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
