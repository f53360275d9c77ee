"""One client's loads on Penstock and on RocketMQ: medians side by side, and their ratios.

There is no broker and no clock here: everything is made from rows, as in table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from penstock.bench.peers.brokers.peer import CONSUME, SINGLE
from penstock.bench.peers.table import OURS, Row, one_line

_HEADS = (
    *("the client", "body", "acknowledged", "Penstock/s", "RocketMQ/s", "ratio"),
    *("p50 ms", "p99 ms", "CPU s", "ratio"),
)


class Pair(NamedTuple):
    """Medians of both brokers."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


class Both(NamedTuple):
    """The rows of one load on both brokers."""

    way: str
    size: int
    ack: str
    ours: list[Row]
    theirs: list[Row]

    @property
    def why(self) -> str:
        """Why it was not measured on one of them; "" if it was measured on both."""
        failed = (row.why for row in self.ours + self.theirs if row.why)
        if why := next(failed, ""):
            return f"not measured: {one_line(why)}"
        return "" if self.ours and self.theirs else "not measured"

    def pair(self, value: Callable[[Row], float | None]) -> Pair:
        ours, theirs = (
            median(value(row) or 0.0 for row in rows) for rows in (self.ours, self.theirs)
        )
        return Pair(ours, theirs)

    @property
    def cpu(self) -> Pair:
        """CPU seconds of the broker for a million messages."""
        return self.pair(lambda row: row.cpu_s_per_million["broker"])

    @property
    def client_cpu(self) -> Pair:
        """CPU seconds of the client for a million messages."""
        return self.pair(lambda row: row.cpu_s_per_million["client"])

    def cells(self) -> list[str]:
        load = [self.way, str(self.size or "–"), self.ack]
        if self.why:
            return [*load, self.why, *["–"] * (len(_HEADS) - 4)]
        rate, cpu = self.pair(lambda row: row.messages_per_s), self.cpu
        latencies = ["–", "–"]
        if self.ours[0].kind != CONSUME:
            pairs = self.pair(lambda row: row.p50_ms), self.pair(lambda row: row.p99_ms)
            latencies = [f"{each.ours:.2f} / {each.theirs:.2f}" for each in pairs]
        return [
            *(*load, f"{rate.ours:,.0f}", f"{rate.theirs:,.0f}", f"{rate.ratio:.2f}"),
            *(*latencies, f"{cpu.ours:.1f} / {cpu.theirs:.1f}", f"{cpu.ratio:.2f}"),
        ]


def in_pairs(rows: Sequence[Row]) -> Iterator[Both]:
    """The loads, each with its rows of both; a row's name is that of the broker and the way."""
    by_load: dict[tuple[bool, str, int, str], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        broker, _, way = row.name.partition(", ")
        load = row.kind == SINGLE, way, row.size, row.ack
        by_load.setdefault(load, ([], []))[broker != OURS].append(row)
    for (_, way, size, ack), (ours, theirs) in by_load.items():
        yield Both(way, size, ack, ours, theirs)


def table(rows: Sequence[Row]) -> str:
    """The comparison in Markdown: a line for each load."""
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|--:|---" + "|--:" * (len(_HEADS) - 3) + "|"]
    return "\n".join(lines + ["| " + " | ".join(both.cells()) + " |" for both in in_pairs(rows)])
