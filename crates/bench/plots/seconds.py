#!/usr/bin/env python3
"""Draws what each second of a run was: operations, and the 99th percentile of latency.

    tontine bench moves --share 25 --json-file moves.json
    python3 crates/bench/plots/seconds.py moves.json 'A quarter of the keys moves' > moves.svg

Reads the report of `tontine bench moves` or `tontine bench fetch`; the grey part is when it happened.
"""

import html
import json
import sys

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 720, 150, 70, 20, 44, 40


def round_up(value):
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below a value."""
    power = 1
    while power * 10 <= value:
        power *= 10
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def panel(top, title, points, last, unit):
    """One curve over the seconds, with its axis."""
    most = round_up(max(value for _, value in points))
    across = (WIDTH - LEFT - RIGHT) / last
    lines = [f'<text x="{LEFT}" y="{top - 8}">{html.escape(title)}</text>']
    for part in range(5):
        y, value = top + PANEL - PANEL * part / 4, most * part / 4
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}{unit}</text>')
    path = " ".join(
        f"{LEFT + (second + 0.5) * across:.1f},{top + PANEL - PANEL * value / most:.1f}" for second, value in points
    )
    lines.append(f'<polyline points="{path}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>')
    return lines


def draw(report, title):
    # The last second is cut off by the end of the run.
    series = report["runs"][0]["series"][:-1]
    last = len(series)
    across = (WIDTH - LEFT - RIGHT) / last
    height = TOP + 2 * PANEL + 2 * GAP + 14
    began, ended = (min(report["figures"][name], last) for name in ("began_s", "ended_s"))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<rect x="{LEFT + began * across:.1f}" y="{TOP}" width="{(ended - began) * across:.1f}" '
        f'height="{2 * PANEL + GAP}" fill="#eee"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{html.escape(title)}</text>',
    ]
    rates = [(second["second"], second["operations"] / 1000) for second in series]
    lines += panel(TOP, "thousand operations per second", rates, last, "")
    latencies = [(second["second"], second["p99_us"] / 1000) for second in series]
    lines += panel(TOP + PANEL + GAP, "99th percentile of latency", latencies, last, " ms")
    for second in range(0, last + 1, max(1, round(last / 80) * 10)):
        x = LEFT + second * across
        lines.append(f'<text x="{x:.1f}" y="{height - GAP + 6}" text-anchor="middle">{second} s</text>')
    return "\n".join([*lines, "</svg>"])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        print(draw(json.load(file)["scenario"], sys.argv[2]))


if __name__ == "__main__":
    main()
