"""What a run comes to: windows of its seconds, whether the box limited it, and rows of tables. Pure; no process, no file.

A second is a dict with the columns of the generator's CSV. What was not measured is None, and is never taken for 0.
"""

import csv
import re

# A second in which the generator, or the whole box, had less than this share of its processors left is limited by it.
IDLE_LEAST = 0.05
BOX_IDLE_LEAST = 0.03
# The share of limited seconds above which a run says nothing of the engine.
LIMITED_MOST = 0.05
# Operations for which there was room began later than this: the generator did not get the processor in time.
LAG_MS_MOST = 20

LOST = ("failed", "absent", "wrong", "stale")
UNITS = {"bytes": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def read_seconds(path):
    """The seconds of a CSV of the generator."""
    with open(path, encoding="ascii", newline="") as file:
        return [{name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file)]


def whole(seconds, length):
    """The seconds of a run of so many, without the rest of one that was cut off, and without what came in afterwards."""
    before = [0, *(one["second"] for one in seconds)]
    return [one for one, last in zip(seconds, before) if one["second"] - last >= 0.5 and one["second"] < length + 0.5]


def quantile(values, share):
    """The least of the values that has this share of them at or below it; None of no values."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return known[max(0, -(-len(known) * share // 1).__int__() - 1)]


def size(text):
    """Bytes of a size such as `5.123MiB` or `12 B`."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", text)
    if not found or found[2].lower() not in UNITS:
        raise ValueError(f"{text!r} is no size")
    return round(float(found[1]) * UNITS[found[2].lower()])


def streamed(lines):
    """Bytes that a member of Cassandra was to receive, by the lines of its log."""
    found = (re.search(r"Prepare completed\. Receiving \d+ files\(([\d.]+ ?\w+)\)", line) for line in lines)
    return sum(size(one[1]) for one in found if one)


def window(seconds, begin, end):
    """The part of a run between two moments (seconds since 1970): throughput, and latencies of its seconds.

    `p50_ms` and `p99_ms` are medians of those of each second, and `p99_ms_worst` is the worst second's.
    A second counts if all of it lies within.
    """
    within = [one for one in seconds if one["time"] - 1 >= begin - 0.05 and one["time"] <= end + 0.05]
    told = {"seconds": len(within)}
    for name in ("offered", "done", "cpu", "idle", "box_idle", "members_cpu"):
        known = [one[name] for one in within if one.get(name) is not None]
        told[name] = sum(known) / len(known) if known else None
    for name in (*LOST, "unstarted"):
        told[name] = int(sum(one.get(name) or 0 for one in within))
    for name in ("p50_ms", "p99_ms", "served_p50_ms", "served_p99_ms", "lag_p99_ms"):
        told[name] = quantile([one.get(name) for one in within], 0.5)
    told["p99_ms_worst"] = quantile([one.get("p99_ms") for one in within], 1)
    return told


def limits(seconds):
    """Why a run is invalid because of the box; empty if it is valid."""
    why = []
    for name, least, whose in (("idle", IDLE_LEAST, "the generator"), ("box_idle", BOX_IDLE_LEAST, "the box")):
        known = [one[name] for one in seconds if one.get(name) is not None]
        short = sum(value < least for value in known)
        if short > LIMITED_MOST * len(known):
            why.append(f"{whose} had less than {100 * least:.0f} % of its processors left in {short} of {len(known)} s")
    lag = quantile([one.get("lag_p99_ms") for one in seconds], 0.5)
    if lag is not None and lag > LAG_MS_MOST:
        why.append(f"the generator began operations {lag:.0f} ms late (p99, median of all seconds)")
    return why


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def table_row(report):
    """A row of table 1 in Markdown."""
    growth, parts = report["growth"], report["windows"]
    cells = [report["engine"], f"{report['members']}+{report['added']}", f"{report['load']:g}", growth["what"]]
    cells += [number(growth["seconds"], 1), number(growth["bytes_moved"] and growth["bytes_moved"] / 1e6, 1)]
    cells += [" → ".join(number(parts[part]["done"]) for part in ("before", "during", "after"))]
    for name in ("p50_ms", "p99_ms"):
        cells.append(" → ".join(number(parts[part][name], 1) for part in ("before", "during", "after")))
    cells += [number(report["totals"].get("failed")), number(report["totals"].get("unstarted")), verdict(report)]
    return "| " + " | ".join(cells) + " |"


def lost(report):
    """Whether a read found nothing, or what it may not find."""
    swept = report.get("sweep") or {}
    return any((report["totals"].get(name) or 0) + (swept.get(name) or 0) for name in ("absent", "wrong", "stale"))


def verdict(report):
    if lost(report):
        return "**void**: a read was absent, wrong or stale"
    return "invalid: " + "; ".join(report["limits"]) if report["limits"] else "valid"


TABLE_HEAD = (
    "| engine | members | of capacity | what | s | MB moved | done/s | p50 ms | p99 ms | failed | unstarted | run |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)
