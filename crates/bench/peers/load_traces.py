#!/usr/bin/env python3
"""Writes traces of load for `tontine elastic simulate`: rows of seconds and operations in a second.

    load_traces.py DIRECTORY

Each is the same at each call. `wave-8` and `wave-9` are the sinusoids 8,000 ± 6,000 and 9,000 ± 7,000 over two days,
`bursts` has twenty times its load for an hour each day, and `week` is a week of days and nights with noise of a tenth.
"""

import math
import pathlib
import random
import sys

MINUTE, DAY = 60, 24 * 3600


def wave(mean, around):
    return lambda at: mean - around * math.cos(math.tau * at / DAY)


def bursts(at):
    return 10_000 if 36_000 <= at % DAY < 39_600 else 500


def week(at):
    is_weekend = at // DAY % 7 >= 5
    return (6_000 - 4_000 * math.cos(math.tau * at / DAY)) * (0.6 if is_weekend else 1)


def write(folder, name, days, noise, load):
    dice = random.Random(name)
    with open(folder / f"{name}.csv", "w") as file:
        for at in range(0, days * DAY, MINUTE):
            print(f"{at},{load(at) * (1 + noise * dice.gauss(0, 1)):.0f}", file=file)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, "wave-8", 2, 0.03, wave(8_000, 6_000))
    write(folder, "wave-9", 2, 0.03, wave(9_000, 7_000))
    write(folder, "bursts", 3, 0.03, bursts)
    write(folder, "week", 7, 0.1, week)


if __name__ == "__main__":
    main()
