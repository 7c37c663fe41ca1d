#!/usr/bin/env python3
"""What `tontine artifact build` costs, beside `LC_ALL=C sort` of the same file in the same memory.

    python3 crates/bench/peers/sort_build.py --tontine target/shipped/tontine --records 10000000 --memory-mib 512

The file has a key of 16 bytes, a tab and a value of 100 bytes on each line, keys in no order.
Each command runs alone, in turn, as often as --turns says; the figures are processor time and the greatest resident
memory, as the system counts them..
"""

import argparse
import os
import random
import shutil
import string
import subprocess
import tempfile
import time


def write(path, records):
    noise = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=1 << 20))
    dice = random.Random(8)
    # Each number once, in an order that looks like none: records and the factor have no common divisor.
    factor = 1_000_003
    with open(path, "w", encoding="ascii") as out:
        for first in range(0, records, 10_000):
            rows = []
            for number in range(first, min(first + 10_000, records)):
                at = dice.randrange(len(noise) - 100)
                rows.append(f"user{number * factor % records:012d}\t{noise[at:at + 100]}\n")
            out.writelines(rows)


def measured(command, environment=None):
    """Processor seconds, seconds, and the greatest resident memory in MiB."""
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tontine", default="target/shipped/tontine")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--memory-mib", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--directory", help="where the files are written: the disk to measure")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="tontine-sort-", dir=arguments.directory)
    try:
        table, output, spill = (os.path.join(directory, name) for name in ("table.tsv", "sorted.tsv", "spill"))
        os.mkdir(spill)
        write(table, arguments.records)
        print(f"{arguments.records} records, {os.path.getsize(table) / 1e6:.0f} MB, {arguments.memory_mib} MiB, "
              f"{arguments.jobs} threads\n")
        print("| | processor time | time | greatest resident memory |\n|---|---:|---:|---:|")
        for _ in range(arguments.turns):
            # At least once for the file to be in memory, or on the disk, for both alike.
            subprocess.run(["cat", table], stdout=subprocess.DEVNULL, check=True)
            row("`LC_ALL=C sort`", measured(
                ["sort", f"--buffer-size={arguments.memory_mib}M", f"--parallel={arguments.jobs}",
                 f"--temporary-directory={spill}", "-o", output, table], {"LC_ALL": "C"}))
            os.remove(output)
            for layout in ("pages", "slots"):
                artifact = os.path.join(directory, "artifact")
                row(f"artifact, {layout}", measured(
                    [arguments.tontine, "artifact", "build", table, "--key", "1", "--value", "2", "-s", "bench",
                     "--to", artifact, "--memory", f"{arguments.memory_mib}MiB", "--jobs", str(arguments.jobs),
                     "--layout", layout]))
                shutil.rmtree(artifact)
    finally:
        shutil.rmtree(directory)


def row(name, figures):
    processor, seconds, memory = figures
    print(f"| {name} | {processor:.1f} s | {seconds:.1f} s | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
