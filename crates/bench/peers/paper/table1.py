#!/usr/bin/env python3
"""The paper's table 1: an engine's members are doubled under load. How long, how many bytes, and what clients notice.

    python3 crates/bench/peers/paper/table1.py --engine redis --members 4 --load 0.9 --out DIR

Members are capped by control groups. The capacity is found first, and `--load` is the share of it that is asked for:
0.9 or 2.25. Each read is compared while it runs, and each record is read once more at the end.
Exits with 1 if a read was absent, wrong or stale, or if the box limited the run.
"""

import sys

from experiment import Experiment, keep, options, say, settled
from figures import TABLE_HEAD, lost, table_row, window
from plot import draw


def main():
    parser = options(__doc__)
    parser.add_argument("--add", type=int, help="members that are added; as many as there are by default")
    parser.add_argument("--load", type=float, default=0.9, help="share of the capacity")
    arguments = parser.parse_args()
    arguments.add = arguments.members if arguments.add is None else arguments.add
    with Experiment(settled(arguments)) as experiment:
        experiment.prepare()
        rate = arguments.load * arguments.capacity
        seconds, totals, (growth,) = experiment.under(rate, [arguments.add])
        report = experiment.report(seconds, totals, rate)
        first, last = experiment.marks[0][0], experiment.marks[-1][0]
        parts = {"before": (first, growth["begin"]), "during": (growth["begin"], growth["end"]), "after": (growth["end"], last)}
        report |= {
            "load": arguments.load, "growth": growth,
            "windows": {name: window(seconds, *part) for name, part in parts.items()},
            "sweep": experiment.engine.generator.sweep(),
        }
        title = f"{arguments.engine} {arguments.members}+{arguments.add} at {arguments.load:g} of {arguments.capacity:.0f}/s"
        keep(arguments, report, seconds, draw(title, seconds, experiment.marks, experiment.sizes))
    say(f"reading all once: {report['sweep']}")
    print(TABLE_HEAD)
    print(table_row(report))
    return 1 if lost(report) or report["limits"] else 0


if __name__ == "__main__":
    sys.exit(main())
