"""The statistics of a store as one HTML page with inline SVG plots, which loads nothing else.

Pure: from Stats to text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

from penstock.spark.jobs.stats import COLUMNS, Row, Stats

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 220, 90, 30
# The most rows of a table on the page; the Parquet files have all.
MOST_ROWS = 200
_TITLES = {
    "topics": "Topics",
    "queues": "Queues",
    "tags": "Tags",
    "hours": "Hours, by the time of storing (UTC)",
    "keys": "Commonest keys",
    "gaps": "Gaps: offsets without a message",
}
_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#1f2328}
table{border-collapse:collapse;margin:.5em 0 2em}
th,td{padding:.2em .7em;border-bottom:1px solid #d0d7de;text-align:right}
th:first-child,td:first-child{text-align:left}
.wide{overflow-x:auto}svg{max-width:100%}
"""


def stats_page(stats: Stats) -> str:
    """The whole page."""
    hours = _by_hour(stats.tables["hours"])
    plots = [
        _bars("Messages an hour", [(hour, row["messages"]) for hour, row in hours]),
        _bars("Bytes of bodies an hour", [(hour, row["bytes"]) for hour, row in hours]),
        _bars(
            "Latency from born to stored, ms: the highest p99 of the topics, by hour",
            [(hour, max(row["p99_latency_ms"], 0)) for hour, row in hours],
        ),
        _bars(
            "Median size of a body, bytes, by topic",
            [(row["topic"], row["p50_bytes"]) for row in stats.tables["topics"]],
        ),
    ]
    tables = [
        f"<h2>{title}</h2>{_table(COLUMNS[name], stats.tables[name])}"
        for name, title in _TITLES.items()
    ]
    head = (
        f"<p>{stats.messages:,} messages, {stats.bytes:,} bytes of bodies, in "
        f"{len(stats.tables['topics'])} topics; looked at {escape(stats.at)}</p>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(stats.store)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(stats.store)}</h1>{head}{''.join(plots)}{''.join(tables)}</body></html>\n"
    )


def _by_hour(rows: Sequence[Row]) -> list[tuple[str, dict[str, int]]]:
    """All topics together; hours without messages are left out."""
    found: dict[datetime, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if row["hour"] is not None:
            hour = found[row["hour"]]
            hour["messages"] += row["messages"]
            hour["bytes"] += row["bytes"]
            hour["p99_latency_ms"] = max(hour["p99_latency_ms"], row["p99_latency_ms"] or 0)
    return [(f"{hour:%m-%d %H:00}", found[hour]) for hour in sorted(found)]


def _bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """A bar for each value; its tooltip has its name and value."""
    if not values:
        return ""
    top = max(value for _, value in values) or 1
    step = (WIDTH - LEFT) / len(values)
    parts = [
        f'<h2>{escape(title)}</h2><svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
    ]
    for part in range(5):
        y = (HEIGHT - BOTTOM) * (1 - part / 4) + 6
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#d0d7de"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * part / 4:,.0f}</text>'
        )
    for number, (name, value) in enumerate(values):
        tall = value / top * (HEIGHT - BOTTOM)
        x, y = LEFT + number * step, HEIGHT - BOTTOM - tall + 6
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{tall:.1f}" fill="#1f6feb"><title>{escape(name)}: {value:,}</title></rect>'
        )
        if number % -(-len(values) // 10) == 0:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    lines = [
        f"<tr>{''.join(f'<td>{_cell(row[column])}</td>' for column in columns)}</tr>"
        for row in rows[:MOST_ROWS]
    ]
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>{more}'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:00}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
