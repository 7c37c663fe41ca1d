"""What the paper's experiments share: options, an engine that is started, loaded and grown under load, and its report."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from engine_cassandra import Cassandra
from engine_hbase import HBase
from engine_redis import Redis
from engine_tontine import Tontine
from figures import limits
from load import ROOT, processors

ENGINES = {engine.name: engine for engine in (Tontine, Redis, Cassandra, HBase)}


def options(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engine", required=True, choices=ENGINES)
    add("--members", type=int, default=4, help="members before the growth")
    add("--out", type=Path, required=True, help="folder for report.json, seconds.json and run.svg")
    add("--records", type=int, default=100_000)
    add("--value-bytes", type=int, default=1024)
    add("--writes", type=float, default=0.0, help="share of updates, 0 to 1")
    add("--keys", choices=("uniform", "zipf"), default="uniform")
    add("--copies", type=int, help="copies of each record: 3 of Tontine, 2 of HBase's blocks, 1 of the others by default")
    add("--cap", type=float, default=0.1, help="processors of each member; 0: none")
    add("--rebalance", choices=("none", "regions", "all"), default="all", help="HBase only: what moves after the growth")
    add("--before", type=float, default=30, help="seconds of load before the growth")
    add("--after", type=float, default=30, help="seconds of load after it")
    add("--capacity", type=float, help="operations a second; found by --objective-ms if not given")
    add("--objective-ms", type=float, default=50, help="the p99 within which capacity is found")
    add("--step-seconds", type=float, default=10, help="seconds of each try to find capacity")
    add("--capacity-from", type=float, default=200, help="the rate with which the search begins")
    add("--warm-seconds", type=float, help="load before all that: 60 s for Cassandra and HBase, none for others")
    add("--ring-delay-ms", type=int, default=30_000, help="Cassandra only: how long one that joins watches the ring")
    add("--tontine", default=str(ROOT / "target/shipped/tontine"), help="the program")
    add("--engines", default=str(ROOT / "java/elastic/target/engines"), help="where java/elastic/engine puts jars")
    add("--scratch", type=Path, help="where members keep data; a temporary folder by default")
    return parser


def settled(arguments):
    """Fills in what depends on other options."""
    if arguments.copies is None:
        arguments.copies = {"tontine": min(3, arguments.members), "hbase": min(2, arguments.members)}.get(arguments.engine, 1)
    if arguments.warm_seconds is None:
        arguments.warm_seconds = 60 if arguments.engine in ("cassandra", "hbase") else 0
    most = arguments.members + arguments.add
    arguments.generator_processors = round(processors() - arguments.cap * most, 3)
    if arguments.generator_processors <= 0.1:
        raise SystemExit(
            f"{most} members of {arguments.cap} processors leave none for the generator on {processors()}; lower --cap"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Members end with this program, also where it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    return arguments


def box_ticks():
    """Ticks that processors had left, and all ticks. What has a low priority counts as well: it uses the disk, too."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle, iowait = ticks[3:5]
    # The last two, of guests, are among the others.
    return idle + iowait, sum(ticks[:8])


class Watch(threading.Thread):
    """Each second: processor time of members as a share of their caps, and the share that the whole box had left."""

    def __init__(self, engine):
        super().__init__(daemon=True)
        self.engine, self.told, self.is_over = engine, [], threading.Event()

    def run(self):
        before, at, box = self.used(), time.time(), box_ticks()
        while not self.is_over.wait(1):
            used, now, box_now = self.used(), time.time(), box_ticks()
            spent = sum(used[name] - before.get(name, 0) for name in used)
            allowed = sum(member.cap or 1 for member in list(self.engine.members)) * (now - at)
            left = (box_now[0] - box[0]) / max(1, box_now[1] - box[1])
            self.told.append((now, spent / allowed if allowed else None, left))
            before, at, box = used, now, box_now

    def used(self):
        return {member.name: member.cpu_seconds() for member in list(self.engine.members)}

    def into(self, seconds):
        """Adds to each second of the load what members used then, and what the box had left."""
        for one in seconds:
            near = min(self.told, key=lambda told: abs(told[0] - one["time"]), default=None)
            is_near = near is not None and abs(near[0] - one["time"]) < 1.5
            one["members_cpu"], one["box_idle"] = near[1:] if is_near else (None, None)


class Experiment:
    """One engine, from its start to its end. Use it in `with`: it leaves nothing behind but what is in `--out`."""

    def __init__(self, arguments, kind=None, **more):
        self.arguments = arguments
        self.scratch = Path(tempfile.mkdtemp(prefix=f"paper-{arguments.engine}-", dir=arguments.scratch))
        self.engine = (kind or ENGINES[arguments.engine])(arguments, self.scratch, **more)
        self.marks, self.sizes = [], []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.engine.stop()
        if kind is not None:
            self.keep_logs()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def keep_logs(self):
        """After a failure, the logs are what is left to look at."""
        for log in [*self.scratch.rglob("log"), *self.scratch.glob("*.log")]:
            name = "-".join(log.relative_to(self.scratch).parts)
            shutil.copy(log, self.arguments.out / f"failed-{name}")
        say(f"logs are in {self.arguments.out}")

    def prepare(self):
        """Starts the members, writes the records, and finds the capacity."""
        one = self.arguments
        say(f"{one.members} members of {self.engine.name}, capped to {one.cap or 'no'} processors each")
        began = time.monotonic()
        self.engine.start()
        say(f"they serve after {time.monotonic() - began:.0f} s; {one.records} records are loaded")
        began = time.monotonic()
        self.engine.generator.load()
        say(f"loaded in {time.monotonic() - began:.0f} s")
        self.engine.settle()
        if one.warm_seconds:
            self.engine.generator.warm()
        if one.capacity is None:
            one.capacity = self.engine.generator.capacity()
            if not one.capacity:
                raise SystemExit("no rate was served within the objective; raise --cap or --objective-ms")
        say(f"capacity {one.capacity:.0f} operations a second with p99 within {one.objective_ms:g} ms")

    def mark(self, word):
        self.marks.append((time.time(), word))

    def under(self, rate, growths):
        """Load at a rate, and growths under it; returns its seconds, its totals, and a report of each growth.

        A growth is a number of members. Before the first, after each, the load goes on alone.
        """
        one, reports = self.arguments, []
        running, watch = self.engine.generator.start(rate), Watch(self.engine)
        try:
            running.await_begin()
            watch.start()
            self.sizes.append((time.time(), len(self.engine.members)))
            self.mark("load")
            time.sleep(one.before)
            for count in growths:
                reports.append(self.grow(count))
                time.sleep(one.after)
            self.mark("end")
        finally:
            watch.is_over.set()
            seconds, totals = running.stop()
        watch.into(seconds)
        return seconds, totals, reports

    def grow(self, count):
        self.mark(f"+{count}")
        say(f"{count} members are added")
        begin = time.time()
        growth = self.engine.grow(count)
        # What was asked after it is no part of it.
        growth |= {"begin": begin, "end": begin + growth["seconds"], "what": self.engine.what}
        self.sizes.append((growth["end"], len(self.engine.members)))
        self.marks.append((growth["end"], "grown"))
        say(f"grown in {growth['seconds']:.1f} s, {growth['bytes_moved'] / 1e6:.1f} MB moved")
        return growth

    def report(self, seconds, totals, rate):
        """What each experiment's report has."""
        one = self.arguments
        known = [second["idle"] for second in seconds if second["idle"] is not None]
        idle = sum(known) / len(known) if known else None
        report = {
            "engine": one.engine, "members": one.members, "added": one.add, "copies": one.copies, "cap": one.cap,
            "records": one.records, "value_bytes": one.value_bytes, "writes": one.writes, "keys": one.keys,
            "capacity": one.capacity, "rate": rate, "totals": totals, "limits": limits(seconds),
            "generator_processors": one.generator_processors, "generator_idle": idle,
            "members_rss_bytes": [member.rss_bytes() for member in self.engine.members],
        }
        unused = f"{100 * (idle or 0):.0f} % of its {one.generator_processors} processors"
        say(f"cap {one.cap} processors a member; the generator was idle for {unused}")
        for why in report["limits"]:
            say(f"INVALID: {why}")
        return report


def keep(arguments, report, seconds, svg):
    (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (arguments.out / "seconds.json").write_text(json.dumps(seconds) + "\n")
    (arguments.out / "run.svg").write_text(svg)


def say(words):
    print(f"[{time.strftime('%H:%M:%S')}] {words}", flush=True)
