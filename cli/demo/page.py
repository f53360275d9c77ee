"""The page that `penstock demo` writes: a year of delays as the stream has found them. Pure."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence

from penstock.spark.flights import DayRow

# the colours below these mean delays in minutes; the last is for all above
_STEPS = ((0, "#d5e8f7"), (15, "#f3efc4"), (30, "#fbd38a"), (60, "#f08a4b"), (10**9, "#b3202a"))
_LEFT, _TOP, _WIDE, _HIGH = 40, 24, 3, 16
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Penstock demo: flights and their delays</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; color: #1f2328 }}
table {{ border-collapse: collapse }} td, th {{ padding: .1em 1em .1em 0; text-align: right }}
svg {{ font-size: 12px; max-width: 100% }} i {{ display: inline-block; width: 1em; height: 1em }}
</style>
<h1>Departure delays out of New York, 2013</h1>
<p>Mean of each carrier's day in UTC, by event time, as the streaming query has written it to
Parquet. {legend}</p>
{chart}
<h2>{count} alerts in topic <code>delays</code></h2>
<p>Days of a carrier whose departures were an hour late or more in the mean, the latest first.</p>
<table><tr><th>day<th>carrier<th>departures<th>mean minutes</tr>
{alerts}
</table>
<h2>How it ran</h2>
<ul>
{facts}
</ul>
</html>
"""


def page(days: Sequence[DayRow], alerts: Sequence[DayRow], facts: Sequence[str]) -> str:
    """A self-contained HTML page."""
    low = 0
    legend = []
    for high, colour in _STEPS:
        text = f"{low} minutes and more" if high == _STEPS[-1][0] else f"below {high}"
        legend.append(f'<i style="background:{colour}"></i> {text}')
        low = high
    latest = sorted(alerts, key=_mean, reverse=True)
    rows = [
        f"<tr><td>{each.day}<td>{html.escape(each.carrier)}<td>{each.departures}"
        f"<td>{_mean(each):.0f}</tr>"
        for each in latest
    ]
    return _PAGE.format(
        legend=" &nbsp; ".join(legend),
        chart=_chart(days),
        count=len(alerts),
        alerts="\n".join(rows),
        facts="\n".join(f"<li>{html.escape(each)}" for each in facts),
    )


def _chart(days: Sequence[DayRow]) -> str:
    carriers = sorted({each.carrier for each in days})
    first = min(dt.date.fromisoformat(each.day) for each in days)
    columns = max((dt.date.fromisoformat(each.day) - first).days for each in days) + 1
    # one path for each colour, because a rectangle for each day would make half a megabyte
    paths: dict[str, list[str]] = {colour: [] for _, colour in _STEPS}
    months: dict[str, int] = {}
    for each in days:
        if not each.departures:
            continue
        date = dt.date.fromisoformat(each.day)
        x = _LEFT + (date - first).days * _WIDE
        months.setdefault(f"{date:%b %Y}", x)
        y = _TOP + carriers.index(each.carrier) * _HIGH
        colour = next(colour for high, colour in _STEPS if _mean(each) < high)
        paths[colour].append(f"M{x} {y}h{_WIDE}v{_HIGH - 1}h-{_WIDE}z")
    names = [
        f'<text x="0" y="{_TOP + number * _HIGH + 12}">{html.escape(name)}</text>'
        for number, name in enumerate(carriers)
    ]
    names += [f'<text x="{x}" y="14">{name[:3]}</text>' for name, x in months.items()]
    drawn = [f'<path fill="{colour}" d="{"".join(parts)}"/>' for colour, parts in paths.items()]
    width, height = _LEFT + columns * _WIDE, _TOP + len(carriers) * _HIGH
    return f'<svg viewBox="0 0 {width} {height}" width="{width}">{"".join(names + drawn)}</svg>'


def _mean(row: DayRow) -> float:
    return row.delay_minutes / row.departures
