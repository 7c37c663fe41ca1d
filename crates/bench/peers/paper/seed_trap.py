#!/usr/bin/env python3
"""The seed trap: Cassandra grown as the paper's released code did it, each new member among its own seeds.

    python3 crates/bench/peers/paper/seed_trap.py --records 20000 --out DIR

A seed streams nothing when it starts. So the new member owns a share of the keys at once, and has none of the records.
Each record is read once before and once after; the same growth without the mistake is run for comparison.
Exits with 0 if the trap was seen: reads that find nothing with it, and none without.
"""

import json
import sys
import time

from experiment import Experiment, options, say, settled


def swept(arguments, seeds_itself):
    """Starts, loads, grows by one, and reads each record once."""
    with Experiment(arguments, seeds_itself=seeds_itself) as experiment:
        engine = experiment.engine
        engine.start()
        engine.generator.load()
        engine.settle()
        before = engine.generator.sweep()
        began = time.monotonic()
        growth = engine.grow(1)
        took = time.monotonic() - began
        after = engine.generator.sweep()
        say(f"{'its own seed' if seeds_itself else 'as it should be'}: joined in {took:.1f} s, then {after}")
        return {
            "seeds_itself": seeds_itself, "join_s": took, "bytes_moved": growth["bytes_moved"],
            "before": before, "after": after,
        }


def main():
    parser = options(__doc__)
    parser.set_defaults(engine="cassandra", members=3, records=20_000, copies=1, add=1)
    for action in parser._actions:
        if action.dest == "engine":
            action.required = False
    arguments = settled(parser.parse_args())
    if arguments.engine != "cassandra":
        parser.error("the trap is Cassandra's")
    told = [swept(arguments, seeds_itself) for seeds_itself in (True, False)]
    (arguments.out / "seed_trap.json").write_text(json.dumps(told, indent=2) + "\n")
    for one in told:
        how = "its own seed" if one["seeds_itself"] else "as it should be"
        print(f"{how}: joined in {one['join_s']:.1f} s; {one['after']['absent']} of {arguments.records} reads found nothing")
    trapped, right = told
    return 0 if trapped["after"]["absent"] > 0 and right["after"]["absent"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
