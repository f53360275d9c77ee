"""A line plot as SVG: a few lines over one range, axes from 0, nothing but text and paths.

python -m penstock.bench.reports.plot docs/performance.json      draws the plots next to it again
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 130, 36, 48
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#9a6700", "#57606a")

Lines = Mapping[str, Sequence[tuple[float, float]]]


def line_plot(title: str, x_name: str, y_name: str, lines: Lines, *, log_x: bool) -> str:
    """The plot; `lines` has each line's points by its name. With `log_x` all x are above 0."""
    xs = [x for points in lines.values() for x, _ in points]
    top = _round_up(max(y for points in lines.values() for _, y in points))
    place = math.log10 if log_x else float
    first, last = (place(min(xs)) if log_x else 0.0), place(max(xs))
    span = (last - first) or 1.0

    def at_x(x: float) -> float:
        return LEFT + (place(x) - first) / span * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle", 'font-weight="bold"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"),
        _text(8, 20, y_name, "start"),
    ]
    for step in range(5):
        value = top * step / 4
        y = at_y(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de" fill="none"/>')
        parts.append(_text(LEFT - 8, y + 4, _short(value), "end"))
    for x in sorted(set(xs)) if log_x else [last * step / 4 for step in range(5)]:
        parts.append(_text(at_x(x), HEIGHT - BOTTOM + 18, _short(x), "middle"))
    for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
        ordered = sorted(points)
        path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in ordered)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        for x, y in ordered:
            parts.append(f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}"/>')
        end_y = at_y(ordered[-1][1]) + 4
        parts.append(_text(WIDTH - RIGHT + 10, end_y, name, "start", f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 6, 8 and 10 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _short(value: float) -> str:
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g}"


def write_plots(json: Path) -> list[str]:
    """Draw each range of the file next to it. Returns the names of the plots."""
    sweeps = msgspec.json.decode(json.read_bytes())["sweeps"]
    made = []
    for key, title, x_name, y_key, y_name, log_x in PLOTS:
        if not sweeps[key]:
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for point in sweeps[key]:
            lines.setdefault(point["line"], []).append((point["x"], point[y_key]))
        name = f"performance-{key.replace('_', '-')}.svg"
        plot = line_plot(title, x_name, y_name, lines, log_x=log_x)
        (json.parent / name).write_text(plot)
        made.append(name)
    return made


RATE, VOLUME = "messages_per_s", "mb_per_s"
# range, title, x axis, what is drawn, y axis, whether x is logarithmic
PLOTS = (
    ("in_flight", "1 KiB bodies", "messages in flight", RATE, "messages/s", True),
    ("size", "4096 in flight", "bytes of a body", VOLUME, "MB/s of bodies", True),
    ("queues", "1 KiB bodies, 4096 in flight", "queues", RATE, "messages/s", True),
    ("store_gb", "1 KiB bodies, a store that grows", "GB in the log", RATE, "messages/s", False),
)


if __name__ == "__main__":
    write_plots(Path(sys.argv[1]))
