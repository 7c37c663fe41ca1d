#!/usr/bin/env python3
"""The paper's figures 2 and 3: an engine under more load than it can carry grows in steps. What does each one bring?

    python3 crates/bench/peers/paper/growth.py --engine cassandra --members 3 --steps 3,3 --writes 0 --out DIR
    python3 crates/bench/peers/paper/growth.py --engine cassandra --members 3 --steps 3,3 --writes 1 --out DIR

The rate stays what `--load` says, 4 times the capacity of the first members by default.
Exits with 1 if a read was absent, wrong or stale, or if the box limited the run.
"""

import sys

from experiment import Experiment, keep, options, say, settled
from figures import lost, number, verdict, window
from plot import draw


def rows(sizes):
    """A table in Markdown: what each size of the cluster served."""
    told = ["| members | done/s | of the first | p50 ms | p99 ms | members' processor |", "|---|---|---|---|---|---|"]
    first = sizes[0]["done"]
    for one in sizes:
        gain = f"{one['done'] / first:.2f}" if first and one["done"] is not None else "-"
        used = "-" if one["members_cpu"] is None else f"{100 * one['members_cpu']:.0f} %"
        cells = [str(one["members"]), number(one["done"]), gain, number(one["p50_ms"], 1), number(one["p99_ms"], 1), used]
        told.append("| " + " | ".join(cells) + " |")
    return "\n".join(told)


def main():
    parser = options(__doc__)
    parser.add_argument("--steps", default="4,4", help="members that are added, one growth after the other")
    parser.add_argument("--load", type=float, default=4.0, help="share of the first members' capacity")
    arguments = parser.parse_args()
    steps = [int(step) for step in arguments.steps.split(",")]
    arguments.add = sum(steps)
    with Experiment(settled(arguments)) as experiment:
        experiment.prepare()
        rate = arguments.load * arguments.capacity
        seconds, totals, growths = experiment.under(rate, steps)
        report = experiment.report(seconds, totals, rate)
        begins = [experiment.marks[0][0], *[growth["end"] for growth in growths]]
        ends = [*[growth["begin"] for growth in growths], experiment.marks[-1][0]]
        counts = [count for _, count in experiment.sizes]
        sizes = [
            {"members": count} | window(seconds, begin, end) for count, begin, end in zip(counts, begins, ends, strict=True)
        ]
        report |= {"load": arguments.load, "growths": growths, "sizes": sizes, "sweep": experiment.engine.generator.sweep()}
        sums = "+".join(map(str, [arguments.members, *steps]))
        title = f"{arguments.engine} {sums}, {rate:.0f}/s, share of updates {arguments.writes:g}"
        keep(arguments, report, seconds, draw(title, seconds, experiment.marks, experiment.sizes))
    say(f"reading all once: {report['sweep']}; {verdict(report)}")
    print(rows(report["sizes"]))
    return 1 if lost(report) or report["limits"] else 0


if __name__ == "__main__":
    sys.exit(main())
