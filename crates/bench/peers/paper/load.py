"""Load on an engine: `java/load` for Cassandra, HBase and Redis Cluster, `tontine bench run` for Tontine.

Both are open loops that compare each read. `java/load` gives an operation up that could not begin within its patience.
`tontine bench run` keeps it in its queue, so it is run in slices, each of which begins with an empty queue.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from figures import LOST, quantile, read_seconds, whole
from members import end, run

ROOT = Path(__file__).resolve().parents[4]
JAR = ROOT / "java/load/target/load.jar"
JAVA = ["java", "-XX:+UseSerialGC", "-Xms256m", "-Xmx512m", "-jar", str(JAR)]
SLICE_S = 10
DONE_LEAST = 0.97


def course(steps):
    """Steps, each a rate and its seconds, in the words of both generators."""
    return ",".join(f"{rate:g}x{seconds:g}" for rate, seconds in steps)


class JavaLoad:
    """The generator in Java."""

    def __init__(self, arguments, engine, at, folder, options=()):
        if not JAR.exists():
            raise SystemExit(f"{JAR} is missing; build it with java/load/check")
        self.arguments, self.folder = arguments, folder
        self.common = ["--engine", engine, "--at", at, "--records", arguments.records]
        self.common += ["--value-bytes", arguments.value_bytes, *options]

    def command(self, word, *options):
        return [*JAVA, word, *map(str, (*self.common, *options))]

    def traffic(self):
        one = self.arguments
        return ["--writes", one.writes, "--keys", one.keys, "--processors", one.generator_processors]

    def load(self):
        run(self.command("load"), patience=7200)

    def sweep(self):
        """Reads each record once, and returns how many were right, failed, absent and wrong."""
        return json.loads(run(self.command("sweep"), patience=7200, check=False))

    def ask(self, word):
        """A command of one engine."""
        return json.loads(run(self.command(word), patience=1800))

    def warm(self):
        """More than the engine carries for a while. A virtual machine that has just started takes ten times as long for
        an operation, and the search would stop there."""
        one = self.arguments
        load = self.start(5 * one.capacity_from)
        load.await_begin()
        time.sleep(one.warm_seconds)
        load.stop()

    def capacity(self):
        one = self.arguments
        told = self.folder / "capacity.json"
        options = ["--objective-ms", one.objective_ms, "--step-seconds", one.step_seconds, "--from", one.capacity_from]
        command = self.command("capacity", *options, *self.traffic(), "--json", told)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, timeout=7200)
        if done.returncode == 2:
            raise SystemExit("the capacity could not be found; see above")
        return json.loads(told.read_text())["capacity"]

    def course(self, steps):
        """The command of a run of steps. Arrivals are even, so that a second's rate is what was offered."""
        csv, told = self.folder / "course.csv", self.folder / "course.json"
        options = ["--rate", course(steps), "--arrivals", "even"]
        return self.command("run", *options, *self.traffic(), "--csv", csv, "--json", told)

    def told(self, steps, _):
        """The seconds and the sums of such a run."""
        totals = json.loads((self.folder / "course.json").read_text())
        return whole(read_seconds(self.folder / "course.csv"), sum(seconds for _, seconds in steps)), totals

    def start(self, rate):
        return JavaRun(self.command("run", "--rate", rate, *self.traffic()), self.folder)


class JavaRun:
    """A run that goes on until it is stopped."""

    def __init__(self, command, folder):
        self.csv, self.json = folder / "seconds.csv", folder / "summary.json"
        self.log = folder / "generator.log"
        words = [*command, "--csv", str(self.csv), "--json", str(self.json)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def await_begin(self, patience=120):
        """Waits for the first second."""
        until = time.monotonic() + patience
        while not self.csv.exists() or self.csv.read_text().count("\n") < 2:
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the generator does not begin; see {self.log}")
            time.sleep(0.1)

    def stop(self):
        """Its seconds, and the sums of the whole run."""
        end(self.process, 100)
        if not self.json.exists():
            raise SystemExit(f"the generator gave no summary; see {self.log}")
        return read_seconds(self.csv), json.loads(self.json.read_text())


def tontine_seconds(report, idle_of):
    """The seconds of a report of `tontine bench run`, in the generator's columns.

    A report has processor times of the whole run only, so each second has the same. Its lateness also has the waiting for
    room, so it says nothing of the generator, and is left out.
    """
    cores, began = report["client"]["cores"], report["context"]["started_at"]
    outcomes = report["outcomes"]
    told = []
    for one in report["series"]:
        told.append({
            "time": began + one["second"] + 1.0, "second": one["second"] + 1.0, "done": one["operations"],
            "failed": 0, "absent": 0, "wrong": 0, "stale": 0, "unstarted": 0,
            "p50_ms": one["p50_us"] / 1e3 if one["operations"] else None,
            "p99_ms": one["p99_us"] / 1e3 if one["operations"] else None,
            "cpu": cores, "idle": max(0, 1 - cores / idle_of),
        })
    if told:
        # Reports count these for the whole run.
        told[-1] |= {
            "failed": sum(outcomes["failed"].values()) + sum(outcomes["indeterminate"].values()),
            "absent": outcomes["missing"], "wrong": outcomes["corrupt"], "unstarted": outcomes["unstarted"],
        }
    return told


def summed(seconds):
    """The sums of a run."""
    return {name: sum(second[name] for second in seconds) for name in ("done", *LOST, "unstarted")}


class TontineLoad:
    """`tontine bench`, with the native client."""

    def __init__(self, arguments, connect, folder):
        self.arguments, self.connect, self.folder = arguments, connect, folder
        self.last = None

    def command(self, word, *options):
        one = self.arguments
        distribution = {"uniform": "uniform", "zipf": "zipfian"}[one.keys]
        common = ["--records", one.records, "--field-length", one.value_bytes, "--distribution", distribution, "-q"]
        words = [one.tontine, "bench", word, "--connect", self.connect, *common, *options]
        return [str(word) for word in words]

    def load(self):
        run(self.command("load", "-c", 8, "-P", 8), patience=7200)

    def slice(self, rate, seconds, warm_up=0):
        """One run; returns its report, with the moment at which its measured part began."""
        told, one = self.folder / "slice.json", self.arguments
        mix = ["--read", 1 - one.writes, "--update", one.writes]
        options = ["--rate", rate, "-d", seconds, "--warm-up", warm_up, "-c", 128, "--json-file", told, *mix]
        told.unlink(missing_ok=True)
        run(self.command("run", *options), patience=seconds + 120, check=False)
        ended = time.time()
        if not told.exists():
            raise SystemExit("tontine bench run gave no report; run it by hand: " + " ".join(self.command("run", *options)))
        report = json.loads(told.read_text())["run"]
        report["context"]["started_at"] = ended - report["elapsed_s"]
        return report

    def sweep(self):
        """Reads as many records as there are, one after the other."""
        told, one = self.folder / "sweep.json", self.arguments
        words = [one.tontine, "bench", "run", "--connect", self.connect, "--records", one.records, "-q", "--warm-up", 0]
        words += ["--field-length", one.value_bytes, "--distribution", "sequential", "--read", 1]
        words += ["-n", one.records, "-c", 8, "-P", 4, "--json-file", told]
        run(words, patience=7200, check=False)
        outcomes = json.loads(told.read_text())["run"]["outcomes"]
        failed = sum(outcomes["failed"].values()) + sum(outcomes["indeterminate"].values())
        return {"right": outcomes["done"], "failed": failed, "absent": outcomes["missing"], "wrong": outcomes["corrupt"]}

    def warm(self):
        one = self.arguments
        self.slice(5 * one.capacity_from, one.warm_seconds)

    def capacity(self):
        """As `java/load` finds it: doubles the rate, then halves the gap to within a twentieth."""
        one = self.arguments

        def is_served(rate):
            seconds = tontine_seconds(self.slice(rate, one.step_seconds, warm_up=2), one.generator_processors)
            done = sum(second["done"] for second in seconds)
            came = done + sum(second[name] for second in seconds for name in (*LOST, "unstarted"))
            p99 = quantile([second["p99_ms"] for second in seconds], 0.5) or 0
            served = done >= DONE_LEAST * came and p99 <= one.objective_ms
            how = "served" if served else "not served"
            print(f"{rate:.0f}/s: {done} of {came} done, p99 {p99:.1f} ms: {how}", file=sys.stderr)
            return served

        return search(one.capacity_from, 200_000, is_served)

    def course(self, steps):
        """The command of a run of steps."""
        one = self.arguments
        options = ["--schedule", f"steps:{course(steps)}", "--no-load", "-c", 128, "--read", 1 - one.writes]
        return self.command("elastic", *options, "--update", one.writes, "--json-file", self.folder / "course.json")

    def told(self, _, ended):
        """The seconds and the sums of such a run, which ended at a moment."""
        report = json.loads((self.folder / "course.json").read_text())["scenario"]["runs"][0]
        report["context"]["started_at"] = ended - report["elapsed_s"]
        seconds = tontine_seconds(report, self.arguments.generator_processors)
        return seconds, summed(seconds)

    def start(self, rate):
        return TontineRun(self, rate)


def search(first, most, is_served):
    """The greatest rate that is served, from below, within a twentieth; 0 if even a fiftieth of the first is not."""
    served, refused, rate = 0.0, float("inf"), first
    for _ in range(40):
        if is_served(rate):
            served = rate
        else:
            refused = rate
        if served >= most or refused < first / 50 or refused <= served * 1.05:
            break
        rate = min(2 * served, most) if refused == float("inf") else (served + refused) / 2
    return served


class TontineRun:
    """Slice after slice until it is stopped."""

    def __init__(self, load, rate):
        self.load, self.rate = load, rate
        self.seconds, self.is_over = [], threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            while not self.is_over.is_set():
                report = self.load.slice(self.rate, SLICE_S)
                for second in tontine_seconds(report, self.load.arguments.generator_processors):
                    self.seconds.append(second | {"offered": self.rate})
        except (SystemExit, Exception) as failure:
            self.failure = failure

    def await_begin(self):
        """Waits for the first slice, which has the connecting in it."""
        while not self.seconds and self.failure is None:
            time.sleep(0.1)

    def stop(self):
        self.is_over.set()
        self.thread.join()
        if self.failure:
            raise SystemExit(f"the load ended early: {self.failure}")
        return self.seconds, summed(self.seconds)


def processors():
    return os.cpu_count() or 1
