"""A run over time as SVG: rates, members, latencies. It looks like the drawings of `tontine bench elastic`."""

import math

WIDTH, LEFT, RIGHT = 720, 70, 700


def round_step(wanted):
    """1, 2 or 5 times a power of ten, not below what is wanted."""
    power = 10 ** math.floor(math.log10(max(wanted, 1)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)


def text(x, y, words, how=""):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" {how}>{words}</text>'


class Part:
    """A part of the drawing, with its own scale upwards."""

    def __init__(self, svg, top, bottom, title, most, length):
        self.svg, self.top, self.bottom, self.length = svg, top, bottom, max(length, 1)
        step = round_step(most / 4)
        self.most = max(1, math.ceil(most / step)) * step
        svg.append(text(LEFT, top - 8, title))
        at = 0
        while at <= self.most:
            y = self.up(at)
            svg.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            svg.append(text(LEFT - 6, y + 4, f"{at:g}", 'text-anchor="end"'))
            at += step

    def up(self, value):
        return self.bottom - (self.bottom - self.top) * min(value, self.most) / self.most

    def across(self, second):
        return LEFT + (RIGHT - LEFT) * min(max(second / self.length, 0), 1)

    def curve(self, points, how):
        places = " ".join(f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in points if y is not None)
        self.svg.append(f'<polyline points="{places}" fill="none" {how}/>')


def draw(title, seconds, marks, sizes):
    """The SVG of a run.

    `marks` are moments with a word each, and `sizes` are moments from which on so many members served.
    """
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="420" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="420" fill="white"/>',
        text(LEFT, 18, title, 'font-size="14"'),
    ]
    began = seconds[0]["time"] - 1 if seconds else 0
    length = seconds[-1]["time"] - began if seconds else 1

    def column(name):
        return [(one["time"] - began - 0.5, one.get(name)) for one in seconds]

    def greatest(*names):
        return max([value for name in names for _, value in column(name) if value is not None] + [1])

    rates = Part(svg, 44, 164, "operations per second; grey: offered", greatest("offered", "done"), length)
    rates.curve(column("offered"), 'stroke="#aaa" stroke-width="2"')
    rates.curve(column("done"), 'stroke="#222"')
    members = Part(svg, 204, 264, "members", max([count for _, count in sizes] + [1]), length)
    ends = [at for at, _ in sizes[1:]] + [began + length]
    steps = [(at - began, count) for (begin, count), end in zip(sizes, ends, strict=True) for at in (begin, end)]
    members.curve(steps, 'stroke="#2471a3" stroke-width="2"')
    late = Part(svg, 304, 384, "milliseconds, 99th percentile of each second", greatest("p99_ms"), length)
    late.curve(column("p99_ms"), 'stroke="#c0392b"')
    for at, word in marks:
        x = rates.across(at - began)
        svg.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="384" stroke="#999" stroke-dasharray="3"/>')
        svg.append(text(x + 3, 176, word, 'font-size="10"'))
    step, at = round_step(length / 6), 0
    while at <= length:
        svg.append(text(rates.across(at), 404, f"{at:g} s", 'text-anchor="middle"'))
        at += step
    return "\n".join([*svg, "</svg>", ""])
