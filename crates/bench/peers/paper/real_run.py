#!/usr/bin/env python3
"""A real run of `tontine dev --elastic` under a wave of load, and the same load simulated: do machine-minutes agree?

    python3 crates/bench/peers/paper/real_run.py --schedule sinusoid:min=100,max=1800,period=360 --seconds 420 --out DIR

`tontine elastic simulate` is told what was measured: how long machines booted, joined and drained, and how many operations
members carried out for a request. Its load divides evenly, and rules look at the busiest member, so that one's work counts.
Exits with 1 if a read was absent or wrong, a request failed, the box limited the run, or they differ by more than a tenth.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from burst import machine_minutes
from experiment import box_ticks, say
from figures import quantile
from load import ROOT
from members import end, run

NAME = "dev"
# As in `docs/benchmarks/elasticity.md`.
OBJECTIVE = 0.1
# Share of the box that the run must have left, on the mean.
IDLE_LEAST = 0.05
SIZES = (3, 6)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--schedule", default="sinusoid:min=100,max=1800,period=360")
    add("--seconds", type=int, default=420)
    add("--add", type=int, default=600, help="a member above so many operations a second over 30 s adds one")
    add("--remove", type=int, default=240, help="all at or below so many remove one")
    add("--records", type=int, default=5000)
    add("--out", type=Path, required=True, help="folder for report.json, trace.csv, run.svg and policy.toml")
    add("--tontine", default=str(ROOT / "target/shipped/tontine"), help="the program")
    return parser


def policy(arguments):
    one = arguments
    rule = 'measure = "operations", over = 30'
    return (
        f'engine = "tontine"\nprovider = "local"\nmachine-type = "local"\nmin = {SIZES[0]}\nmax = {SIZES[1]}\nmode = "auto"\n'
        f'add = [{{ {rule}, of = "any", is = "above", bound = {one.add} }}]\n'
        f'remove = [{{ {rule}, of = "all", is = "at-most", bound = {one.remove} }}]\n'
        "cooldowns = { grow = 5, shrink = 30 }\n"
    )


class Dev(threading.Thread):
    """`tontine dev --elastic`, and its fleet as it is each second."""

    def __init__(self, arguments, folder):
        super().__init__(daemon=True)
        self.arguments, self.data = arguments, folder / "data"
        self.service = ["--coordination", f"dir:{self.data}/coordination"]
        self.told, self.is_over = [], threading.Event()
        words = [arguments.tontine, "dev", "--elastic", f"{SIZES[0]}..{SIZES[1]}", "--data-dir", self.data]
        with open(folder / "dev.log", "wb") as log:
            words = [str(word) for word in words]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tell(self, verb, *words, check=True):
        return run([self.arguments.tontine, "elastic", verb, *words, *self.service], check=check)

    def status(self):
        return json.loads(self.tell("status", NAME, "-o", "json"))

    def await_members(self, patience=120):
        until = time.monotonic() + patience
        while True:
            time.sleep(1)
            try:
                machines = self.status()["fleet"]["machines"]
            except (SystemExit, ValueError):
                machines = []
            if sum(machine["state"] == "serving" for machine in machines) == SIZES[0]:
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{SIZES[0]} members of dev do not serve after {patience} s")

    def run(self):
        while not self.is_over.wait(1):
            self.told.append((time.time(), self.status()))

    def stop(self):
        self.is_over.set()
        end(self.process, 60)


def spans(told, is_begin, is_end):
    """Seconds between two moments in the life of each machine."""
    began, took = {}, []
    for when, seen in told:
        states = {machine["token"]: machine["state"] for machine in seen["fleet"]["machines"]}
        for token, state in states.items():
            if is_begin(state):
                began.setdefault(token, when)
        for token in [token for token in began if is_end(states.get(token))]:
            took.append(when - began.pop(token))
    return took


def works(told, trace):
    """Operations of members for each request: of all, and of the busiest times how many they are. Medians of all looks."""
    means, highest = [], []
    for when, seen in told:
        members = (seen["look"] or {}).get("members", {}).get("Ok", [])
        # A member that has just joined measures nothing yet.
        measures = [member.get("measures", {}) for member in members]
        each = [one["operations"]["value"] for one in measures if "operations" in one]
        rate = next((rate for begin, rate in reversed(trace) if begin <= when), 0)
        if len(each) >= SIZES[0] and rate > 0:
            means.append(sum(each) / rate)
            highest.append(max(each) * len(each) / rate)
    return quantile(means, 0.5), quantile(highest, 0.5)


def mean(values, otherwise):
    return round(sum(values) / len(values)) if values else otherwise


def live(arguments, folder):
    """The real run; returns its report, and what was seen of the fleet."""
    one, dev = arguments, Dev(arguments, folder)
    try:
        dev.await_members()
        dev.tell("apply", one.out / "policy.toml", "--name", NAME)
        dev.start()
        words = [one.tontine, "bench", "elastic", "--schedule", one.schedule, "-d", one.seconds]
        words += ["--records", one.records, "-q", "--json-file", folder / "run.json"]
        words += ["--trace", one.out / "trace.csv", "--svg", one.out / "run.svg"]
        before = box_ticks()
        run(words, patience=one.seconds + 300, check=False)
        ended, after = time.time(), box_ticks()
        report = json.loads((folder / "run.json").read_text())["scenario"]
        report["began"] = ended - report["runs"][0]["elapsed_s"]
        report["box_idle"] = (after[0] - before[0]) / max(1, after[1] - before[1])
        time.sleep(1)
        return report, list(dev.told)
    finally:
        dev.stop()


def main():
    arguments = options().parse_args()
    one = arguments
    one.out = one.out.absolute()
    one.out.mkdir(parents=True, exist_ok=True)
    (one.out / "policy.toml").write_text(policy(one))
    folder = Path(tempfile.mkdtemp(prefix="real-run-"))
    try:
        report, told = live(one, folder)
    finally:
        shutil.copy(folder / "dev.log", one.out / "dev.log")
        shutil.rmtree(folder, ignore_errors=True)
    began, measured = report["began"], report["runs"][0]
    rows = [line.split(",") for line in (one.out / "trace.csv").read_text().split()]
    work, busiest = works(told, [(began + float(at), float(rate)) for at, rate in rows])
    facts = {
        "boots": mean(spans(told, "requested".__eq__, lambda state: state not in ("requested", "booting")), 10),
        "joins": mean(spans(told, "joining".__eq__, "serving".__eq__), 54),
        "drains": mean(spans(told, "draining".__eq__, lambda state: state is None), 20),
    }
    paid = [(when, len(seen["fleet"]["machines"])) for when, seen in told]
    real = {
        "machine_minutes": machine_minutes(paid, began, began + one.seconds),
        "seen_by_bench": report["figures"]["machine_minutes"], "members_most": report["figures"]["members_most"],
        "failed": report["figures"]["requests_failed"], "operations": measured["operations"],
        "client_cores": measured["client"]["cores"], "box_idle": report["box_idle"],
    }
    told_of = {}
    for name, factor in (("busiest", busiest), ("mean", work)):
        words = [one.tontine, "elastic", "simulate", "--trace", one.out / "trace.csv", "--policy", "rules"]
        words += ["--operations", 1_000_000, "--work", f"{factor:.2f}", one.out / "policy.toml", "-o", "json"]
        for fact, seconds in facts.items():
            words += [f"--{fact}", max(1, seconds)]
        played = next(told for told in json.loads(run(words))["policies"] if told["policy"] == "rules")
        off = played["machine_minutes"] / real["machine_minutes"] - 1
        told_of[name] = {"work": round(factor, 2), "off": round(off, 3)} | played
    (one.out / "report.json").write_text(json.dumps({"real": real, "simulated": told_of} | facts, indent=2) + "\n")
    say(f"real: {real}; machines: {facts}")
    for name, told in told_of.items():
        say(f"simulated with the work of the {name} member, {told['work']}: {told['machine_minutes']:.1f} machine-minutes, "
            f"{100 * told['off']:+.0f} %; most members {told['members_most']}, changes {told['changes']}")
    is_good = real["failed"] == 0 and real["box_idle"] >= IDLE_LEAST and abs(told_of["busiest"]["off"]) <= OBJECTIVE
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
