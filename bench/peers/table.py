"""What a comparison found, and the one table of it: medians, and ratios to Penstock.

No broker and no clock: everything here is made from the rows, which are also in the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from penstock.bench.machine import Machine
from penstock.bench.sweeps import Sweeps

OURS = "Penstock"
COLUMNS = (
    "acknowledged",
    "body",
    "broker",
    "messages/s",
    "lowest to highest",
    "MB/s",
    f"to {OURS}",
    "p50 ms",
    "p99 ms",
    "CPU s: broker",
    "client",
)


class Known(msgspec.Struct, frozen=True):
    """A broker: what of it is there, or why it is not."""

    name: str
    version: str
    missing: str
    client: str
    settings: dict[str, str]


class Row(msgspec.Struct, frozen=True):
    """One load on one broker; with `why` there was none, or it failed.

    `repeated` messages are stored more often than they were acknowledged.
    """

    name: str
    ack: str
    size: int
    run: int = 0
    messages: int = 0
    repeated: int = 0
    seconds: float = 0.0
    messages_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_s_per_million: dict[str, float] = {}
    why: str = ""


class Comparison(msgspec.Struct):
    """All that was measured, and what it was measured with."""

    peers: list[Known]
    rows: list[Row]
    machines: list[Machine]
    runs: int
    seconds: float
    in_flight: int
    queues: int
    command: str = ""
    finished: str = ""
    sweeps: Sweeps = msgspec.field(default_factory=Sweeps)


def table(found: Comparison) -> str:
    """The table in Markdown: every broker at every size, and those that could not be measured."""
    rows = list(found.rows)
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        if not row.why:
            groups.setdefault((row.ack, row.size, row.name), []).append(row)
    ours = {(a, s): _median(g, "messages_per_s") for (a, s, n), g in groups.items() if n == OURS}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|--:|---" + "|--:" * (len(COLUMNS) - 3) + "|"]
    for (ack, size, name), group in sorted(groups.items(), key=_by_class):
        lines.append("| " + " | ".join(_cells(ack, size, name, group, ours[ack, size])) + " |")
    for row in {(row.name, row.ack, row.size, row.why): row for row in rows if row.why}.values():
        why = row.why.replace("|", "/").replace("\n", " ")
        dashes = " | ".join(["–"] * (len(COLUMNS) - 4))
        lines.append(
            f"| {row.ack} | {row.size or '–'} | {row.name} | not measured: {why} | {dashes} |"
        )
    return "\n".join(lines)


def _by_class(item: tuple[tuple[str, int, str], list[Row]]) -> tuple[str, int, bool, float]:
    (ack, size, name), group = item
    return ack, size, not name.startswith(OURS), -_median(group, "messages_per_s")


def _cells(ack: str, size: int, name: str, group: list[Row], ours: float) -> list[str]:
    rates = [row.messages_per_s for row in group]
    rate = median(rates)
    cpu = {key: median(row.cpu_s_per_million[key] for row in group) for key in ("broker", "client")}
    return [
        ack,
        str(size),
        name,
        f"{rate:,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{rate * size / 1e6:.1f}",
        f"{rate / ours:.2f}",
        f"{_median(group, 'p50_ms'):.1f}",
        f"{_median(group, 'p99_ms'):.1f}",
        f"{cpu['broker']:.1f}",
        f"{cpu['client']:.1f}",
    ]


def _median(group: Sequence[Row], name: str) -> float:
    return float(median(getattr(row, name) or 0.0 for row in group))
