#!/usr/bin/env python3
"""The paper's figure 4: a burst of twenty times the load hits a cluster that a controller sizes. All times are a fifth.

    python3 crates/bench/peers/paper/burst.py --policy rules --out DIR
    python3 crates/bench/peers/paper/burst.py --policy forecast-seen --like DIR-OF-TARGET --out DIR
    python3 crates/bench/peers/paper/burst.py --engine hbase --policy rules --out DIR

A cluster of Tontine or HBase under `tontine elastic run`: machines are those of `tontine adapter local`, each capped by a
control group, and wait for `--boots` seconds before their member starts, as a cloud's would boot.
`tontine bench elastic` asks, and `java/load` asks HBase; each read is compared.
The paper: 9,000 operations a second on 8 servers, after 7 minutes 180,000 for a while; means of 5 minutes, 40 % and 15 %.

Policies: rules (the paper's), target, forecast (which has not seen such a burst), standby (target, and machines that stand
by). `forecast-seen` is simulated: a history of loads cannot be given to a fleet, and no run lasts for two days.
Of HBase there is `rules` alone. Its adapter tells percents of whole processors, so bounds are those of the cap.
Exits with 1 if a read was absent, wrong or stale, if a request failed, or if the box limited the run.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from engine_hbase_machines import HBaseMachines
from engine_tontine import Tontine
from experiment import Experiment, Watch, keep, say, settled
from figures import LOST, limits, number
from fleet import Fleet
from load import ROOT, course
from plot import draw

LIVE = {"rules": "rules", "target": "target", "forecast": "forecast", "standby": "target"}
SEEN = "forecast-seen"
ENGINES = {engine.name: engine for engine in (Tontine, HBaseMachines)}
# The burst is more than the first members carry, and leaves the box something: three members of HBase with such caps keep
# up with 6,900 reads a second. Their data is in memory, so that no disk is measured.
DEFAULTS = {
    "tontine": {"base": 1600, "most": 8, "cap": 0.1},
    "hbase": {"base": 360, "most": 6, "cap": 0.15, "scratch": Path("/dev/shm")},
}
# A second is within the objective if so much of what was offered was done, and its p99 holds.
DONE_LEAST = 0.97
# Seconds for which enough must be done before members count as enough.
LASTS = 5
DAY = 86_400
HEAD = (
    "| engine, policy | members before, most, at the end | enough served after, s | out of objective, s | failed | "
    "unstarted | absent, wrong, stale | machine-minutes | run |\n|---|---|---|---|---|---|---|---|---|"
)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engine", default="tontine", choices=ENGINES)
    add("--policy", required=True, choices=(*LIVE, SEEN))
    add("--out", type=Path, required=True, help="folder for report.json, seconds.json and run.svg")
    add("--base", type=float, help="operations a second before and after the burst: 1600; of HBase 360")
    add("--factor", type=float, default=20, help="the burst is so many times the base")
    add("--before", type=float, default=75, help="seconds before the burst; the paper: 7 minutes, so 84")
    add("--burst", type=float, default=120, help="seconds of the burst")
    add("--after", type=float, default=45, help="seconds after it")
    add("--members", type=int, default=3, help="members before the burst, and the fewest")
    add("--most", type=int, help="the most members: 8; of HBase 6")
    add("--standby", type=int, default=3, help="machines that stand by, of the policy `standby`")
    add("--boots", type=int, default=18, help="seconds for which a machine boots; 90 s, and a fifth of that")
    add("--cap", type=float, help="processors of each member: 0.1, the least of `adapter local`; of HBase 0.15")
    add("--warm-seconds", type=float, help="load before all that: 60 s for HBase")
    add("--objective-ms", type=float, default=50, help="the p99 of a second within the objective")
    add("--records", type=int, default=50_000)
    add("--value-bytes", type=int, default=1024)
    add("--writes", type=float, default=0.05, help="share of updates; the paper's load was read-heavy")
    add("--like", type=Path, help="forecast-seen: the folder of a run whose machines are played")
    add("--tontine", default=str(ROOT / "target/shipped/tontine"), help="the program")
    add("--engines", default=str(ROOT / "java/elastic/target/engines"), help="where java/elastic/engine puts jars")
    add("--scratch", type=Path, help="where members keep data: a temporary folder; of HBase one in /dev/shm")
    return parser


def filled(arguments):
    """Fills in what depends on the engine."""
    one = arguments
    for name, value in DEFAULTS[one.engine].items():
        if getattr(one, name) is None:
            setattr(one, name, value)
    if one.engine == HBaseMachines.name and one.policy != "rules":
        raise SystemExit(f"HBase is not measured with --policy {one.policy}; give --policy rules")
    one.keys, one.copies, one.rebalance = "uniform", None, "none"
    # HBase gets five times as much while it warms up.
    one.capacity_from = one.base
    one.add = one.most - one.members
    return one


def policy(arguments, sizing, standby=0, full=100):
    """The fleet's policy: the paper's bounds, and a fifth of each span.

    `full` is what a member at its cap is said to use, in percent.
    """
    one = arguments
    rules = (
        f'add = [{{ of = "any", is = "above", bound = {40 * full / 100:g}, over = 60 }}]\n'
        f'remove = [{{ of = "all", is = "at-most", bound = {15 * full / 100:g}, over = 60 }}]\n'
    )
    return (
        f'engine = "{one.engine}"\nprovider = "local"\nmachine-type = "local"\nmin = {one.members}\nmax = {one.most}\n'
        f'mode = "auto"\nsizing = "{sizing}"\nstandby = {standby}\n{rules if sizing == "rules" else ""}'
        "objective = { at-most = 60, strained = 90, over = 12 }\ncooldowns = { grow = 12, shrink = 12 }\n"
    )


def steps(arguments):
    """The load: rates, each with its seconds."""
    one = arguments
    return [(one.base, one.before), (one.base * one.factor, one.burst), (one.base, one.after)]


def offered(arguments, second):
    """What is asked in a second, counted from the run's begin."""
    one = arguments
    return one.base * (one.factor if one.before <= second < one.before + one.burst else 1)


def is_within(second, objective_ms):
    """Whether a second is within the objective."""
    p99 = second["p99_ms"]
    return second["done"] >= DONE_LEAST * second["offered"] and p99 is not None and p99 <= objective_ms


def enough_after(seconds, begin, end):
    """Seconds from the burst's begin until what was done kept up with what was offered; None if it never did.

    What waits is worked off afterwards, so more than what is offered is done then, and latencies are high for longer.
    """
    within = [one for one in seconds if begin <= one["second"] - 1 < end]
    for place in range(len(within) - LASTS + 1):
        some = within[place:place + LASTS]
        if sum(one["done"] for one in some) >= DONE_LEAST * sum(one["offered"] for one in some):
            return some[0]["second"] - 1 - begin
    return None


def machine_minutes(counts, begin, end):
    """Of `(time, machines)`, each from its time until the next."""
    total = 0
    for (at, count), (until, _) in zip(counts, [*counts[1:], (end, 0)], strict=True):
        total += count * max(0, min(until, end) - max(at, begin))
    return total / 60


def at(counts, moment):
    """What was counted last before a moment."""
    return next((count for when, count in reversed(counts) if when <= moment), counts[0][1])


def row(report):
    members = " → ".join(str(report["members_seen"][name]) for name in ("before", "most", "end"))
    swept, totals = report.get("sweep") or {}, report["totals"]
    lost = [str(totals[name] + swept.get(name, 0)) for name in ("absent", "wrong", "stale")]
    how = "invalid: " + "; ".join(report["limits"]) if report["limits"] else "valid"
    cells = [f"{report['engine']}, {report['policy']}", members, number(report["enough_after_s"]), number(report["out_s"])]
    cells += [number(totals["failed"]), number(totals["unstarted"]), ", ".join(lost)]
    cells += [number(report["machine_minutes"], 1), how]
    return "| " + " | ".join(cells) + " |"


def run(experiment):
    """A live run; returns its report and seconds."""
    one = experiment.arguments
    engine = experiment.engine
    engine.start()
    engine.leave_to_controller()
    engine.generator.load()
    engine.settle()
    say(f"{one.records} records are loaded")
    if one.warm_seconds:
        engine.generator.warm()
    standby = one.standby if one.policy == "standby" else 0
    wanted = policy(one, LIVE[one.policy], standby, engine.processor_full)
    fleet = Fleet(one, engine, experiment.scratch, wanted)
    try:
        fleet.start(one.members, standby)
        say("the controller looks after the fleet; load begins")
        seconds, totals, told = burst(experiment, fleet)
        sweep = engine.generator.sweep()
    finally:
        fleet.stop()
        for log in (fleet.log, fleet.bench_log):
            if log.exists():
                shutil.copy(log, one.out / log.name)
    return summed(one, seconds, totals, told) | {"sweep": sweep}, seconds


def burst(experiment, fleet):
    """The load, and what the fleet was meanwhile."""
    one, engine = experiment.arguments, experiment.engine
    load, asked = engine.generator, steps(one)
    watch, began = Watch(engine), time.time()
    watch.start()
    fleet.watch(began)
    code = fleet.run_beside(load.course(asked))
    ended = time.time()
    watch.is_over.set()
    fleet.stop_watching()
    try:
        seconds, totals = load.told(asked, ended)
    except FileNotFoundError as missing:
        raise SystemExit(f"the load ended with {code} and gave no report; see bench.log in {one.out}") from missing
    for second in seconds:
        second["offered"] = offered(one, second["second"] - 0.5)
    watch.into(seconds)
    return seconds, totals, fleet.told


def summed(arguments, seconds, totals, told):
    """The report of a live run. `told` are what `Fleet` saw: `(time, document)`."""
    one = arguments
    began = seconds[0]["time"] - seconds[0]["second"]
    end = began + one.before + one.burst + one.after
    paid = [(when, len(seen["machines"])) for when, seen in told]
    serving = [(when, sum(machine["state"] == "serving" for machine in seen["machines"])) for when, seen in told]
    begin = began + one.before
    within = [count for when, count in serving if began <= when <= end]
    peak = [second for second in seconds if one.before <= second["second"] - 1 < one.before + one.burst]
    last = told[-1][1]
    enough = enough_after(seconds, one.before, one.before + one.burst)
    return {
        "engine": one.engine, "policy": one.policy, "schedule": course(steps(one)), "boots_s": one.boots,
        "cap": one.cap, "most": one.most, "records": one.records, "writes": one.writes, "objective_ms": one.objective_ms, "totals": totals,
        "members_seen": {"before": at(serving, begin), "most": max(within), "end": at(serving, end)},
        "enough_after_s": enough,
        "enough_members": None if enough is None else at(serving, begin + enough),
        "out_s": sum(not is_within(second, one.objective_ms) for second in seconds),
        "machine_minutes": machine_minutes(paid, began, end), "limits": limits(seconds),
        "sizes": sizes(serving, began), "joins_s": joins(told), "lead_ms": last.get("lead_ms"),
        "learned_before_burst": at([(when, bool(seen.get("capacity"))) for when, seen in told], begin),
        "each_carried": max((second["done"] / max(1, at(serving, second["time"])) for second in peak), default=None),
        "decisions": last["decisions"], "generator_processors": one.generator_processors,
        "generator_idle": sum(second["idle"] for second in seconds) / len(seconds),
    }


def sizes(serving, began):
    """When so many served first: `(seconds since the run began, members)`."""
    told = []
    for when, count in serving:
        if not told or told[-1][1] != count:
            told.append((round(when - began, 1), count))
    return told


def joins(told):
    """Seconds that each machine took from its join until it served."""
    began, took = {}, {}
    for when, seen in told:
        for machine in seen["machines"]:
            token = machine["token"]
            if machine["state"] == "joining":
                began.setdefault(token, when)
            elif machine["state"] == "serving" and token in began:
                took.setdefault(token, round(when - began[token], 1))
    return list(took.values())


def seen_before(arguments):
    """`forecast-seen`, simulated: the same burst a day before, on machines like those of a live run."""
    from members import run as ended

    one = arguments
    like = json.loads((one.like / "report.json").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    burst_at, half = 3600, int(one.before + one.burst + one.after)
    first = [(0, one.base), (burst_at, one.base * one.factor), (burst_at + int(one.burst), one.base)]
    begin = DAY + burst_at - int(one.before)
    second = [(begin + int(one.before), one.base * one.factor), (begin + int(one.before + one.burst), one.base)]
    file = one.out / "policy.toml"
    file.write_text(policy(one, "forecast"))
    joins_s = round(sum(like["joins_s"]) / len(like["joins_s"])) if like["joins_s"] else 10

    def played(rows, name):
        trace = one.out / name
        trace.write_text("".join(f"{when},{rate:g}\n" for when, rate in rows))
        words = [one.tontine, "elastic", "simulate", "--trace", trace, "--policy", "target,forecast", file]
        words += ["--operations", round(like["each_carried"]), "--boots", one.boots]
        words += ["--joins", joins_s, "--drains", joins_s]
        return {told["policy"]: told for told in json.loads(ended([*words, "-o", "json"]))["policies"]}

    until, both = played([*first, (begin, one.base)], "day.csv"), [*first, (begin, one.base), *second]
    whole = played([*both, (begin + half, one.base)], "two-days.csv")
    told = {}
    for name in ("target", "forecast"):
        out = 60 * (whole[name]["minutes_out_of_objective"] - until[name]["minutes_out_of_objective"])
        minutes = whole[name]["machine_minutes"] - until[name]["machine_minutes"]
        told[name] = {"out_s": round(out), "machine_minutes": round(minutes, 1), "members_most": whole[name]["members_most"]}
    like_it = {"operations": round(like["each_carried"]), "boots_s": one.boots, "joins_s": joins_s}
    return {"policy": SEEN, "simulated": told} | like_it


def main():
    arguments = filled(options().parse_args())
    if arguments.policy == SEEN:
        if arguments.like is None:
            raise SystemExit("forecast-seen is simulated on the machines of a live run; give its folder with --like")
        report = seen_before(arguments)
        (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        say("simulated; a history of loads cannot be given to a fleet, so no live run has seen a burst a day before")
        for name, told in report["simulated"].items():
            seen = "has seen the burst of the day before" if name == "forecast" else "sizes by what is measured"
            print(f"{name}, which {seen}: {told['out_s']} s out, {told['machine_minutes']} machine-minutes")
        return 0
    with Experiment(settled(arguments), ENGINES[arguments.engine]) as experiment:
        report, seconds = run(experiment)
        began = seconds[0]["time"] - seconds[0]["second"]
        burst_at = began + arguments.before
        marks = [(burst_at, "burst"), (burst_at + arguments.burst, "over")]
        if report["enough_after_s"] is not None:
            marks.append((burst_at + report["enough_after_s"], "enough"))
        sizes_at = [(began + when, count) for when, count in report["sizes"]]
        rates = f"{arguments.base:g} → {arguments.base * arguments.factor:g}/s for {arguments.burst:g} s"
        title = f"{arguments.engine}, {arguments.policy}: {rates}"
        keep(arguments, report, seconds, draw(title, seconds, marks, sizes_at))
    say(f"reading all once: {report['sweep']}; sizes {report['sizes']}; joins took {report['joins_s']} s")
    print(HEAD)
    print(row(report))
    lost = sum(report["totals"][name] + report["sweep"].get(name, 0) for name in LOST)
    return 1 if lost or report["limits"] else 0


if __name__ == "__main__":
    sys.exit(main())
