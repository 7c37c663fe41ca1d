#!/usr/bin/env python3
"""Draws the table of lookups that the example `artifacts` of `storage` prints.

    cargo run --release -p storage --features peers --example artifacts > lookups.md
    python3 crates/bench/plots/lookups.py lookups.md '10 million records of 100 bytes' > lookups.svg

One bar for each way to find a key, in nanoseconds of processor time: shorter is better.
"""

import html
import re
import sys

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 720, 250, 70, 16, 30, 50
KINDS = ["get", "32 keys at once, each", "absent"]
COLOURS = {"pages": "#1f5fa8", "slots": "#1f5fa8", "array": "#999"}


def rows(text):
    """Name and nanoseconds of each row."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        times = [re.match(r"(\d+) ns", cell) for cell in cells[1:4]]
        if len(cells) >= 4 and all(times):
            yield cells[0], [int(found[1]) for found in times]


def draw(found, title):
    height = TOP + len(KINDS) * (len(found) * BAR + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{html.escape(title)}: nanoseconds for each lookup</text>',
    ]
    top = TOP
    across = (WIDTH - LEFT - RIGHT) / max(time for _, times in found for time in times)
    for kind, label in enumerate(KINDS):
        lines.append(f'<text x="10" y="{top - 5}" font-weight="bold">{label}</text>')
        for name, times in found:
            colour = next((colour for word, colour in COLOURS.items() if name.startswith(word)), "#c98b3c")
            bar = times[kind] * across
            middle = top + BAR * 0.75
            lines.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{html.escape(name)}</text>')
            lines.append(
                f'<rect x="{LEFT}" y="{top + 2}" width="{bar:.1f}" height="{BAR - 4}" fill="{colour}"/>'
            )
            lines.append(f'<text x="{LEFT + bar + 6:.1f}" y="{middle:.1f}">{times[kind]}</text>')
            top += BAR
        top += GAP
    return "\n".join([*lines, "</svg>"])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        found = list(rows(file.read()))
    if not found:
        raise SystemExit(f"{sys.argv[1]} has no table of lookups; the example `artifacts` prints one")
    print(draw(found, sys.argv[2]))


if __name__ == "__main__":
    main()
