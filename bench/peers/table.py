"""What a comparison found, and its tables: medians, and ratios to Penstock.

There is no broker and no clock here: everything is made from the rows, which are also in the JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import msgspec

from penstock.bench.log.sweeps import Sweeps
from penstock.bench.peers.brokers.peer import CONSUME, PACKED, SINGLE
from penstock.bench.reports.machine import Machine

OURS = "Penstock"


class Known(msgspec.Struct, frozen=True):
    """A broker: its version, or why it is missing."""

    name: str
    version: str
    missing: str
    client: str
    settings: dict[str, str]


class Row(msgspec.Struct, frozen=True):
    """One load on one broker. `why` says why it did not run, or failed.

    `repeated` is how many messages more are stored than were acknowledged.
    """

    name: str
    ack: str
    size: int = 0
    run: int = 0
    why: str = ""
    kind: str = PACKED
    in_flight: int = 0
    messages: int = 0
    repeated: int = 0
    seconds: float = 0.0
    messages_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_s_per_million: dict[str, float] = {}


class SameClient(msgspec.Struct):
    """RocketMQ's own client with the same loads on Penstock and on RocketMQ: see both.py."""

    rows: list[Row] = []
    machines: list[Machine] = []
    command: str = ""
    finished: str = ""


class Comparison(msgspec.Struct):
    """Everything that was measured, and with what.

    `machines` has the machine's limits during each phase, `backlog` the messages of each size.
    """

    peers: list[Known]
    rows: list[Row]
    machines: dict[str, list[Machine]]
    runs: int
    seconds: float
    in_flight: int
    queues: int
    backlog: dict[str, int] = {}
    command: str = ""
    finished: str = ""
    sweeps: Sweeps = msgspec.field(default_factory=Sweeps)
    same_client: SameClient = msgspec.field(default_factory=SameClient)


class Group(NamedTuple):
    """The runs of one load on one broker."""

    name: str
    kind: str
    ack: str
    size: int
    in_flight: int
    rows: list[Row]

    @property
    def rate(self) -> float:
        return self.median_of(lambda row: row.messages_per_s)

    @property
    def mb_per_s(self) -> float:
        return self.rate * self.size / 1e6

    def median_of(self, value: Callable[[Row], float | None]) -> float:
        return float(median(value(row) or 0.0 for row in self.rows))

    def cpu(self, of: str) -> float:
        """CPU seconds for a million messages."""
        return self.median_of(lambda row: row.cpu_s_per_million[of])


def groups(found: Comparison, kind: str) -> list[Group]:
    """The groups of a kind: by load, and in each Penstock first and then the fastest."""
    by_load: dict[tuple[str, str, int, int], list[Row]] = {}
    for row in found.rows:
        if row.kind == kind and not row.why:
            by_load.setdefault((row.name, row.ack, row.size, row.in_flight), []).append(row)
    made = [
        Group(name, kind, ack, size, in_flight, rows)
        for (name, ack, size, in_flight), rows in by_load.items()
    ]
    return sorted(made, key=lambda group: (_load_of(group), not _is_ours(group), -group.rate))


def _load_of(group: Group) -> tuple[str, int, int]:
    return group.ack, group.size, group.in_flight


def _is_ours(group: Group) -> bool:
    return group.name.startswith(OURS)


def _ratio(group: Group, ours: Group | None) -> str:
    return "–" if ours is None else f"{group.rate / ours.rate:.2f}"


def _spread(group: Group) -> str:
    rates = [row.messages_per_s for row in group.rows]
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


CELLS: dict[str, Callable[[Group, Group | None], str]] = {
    "acknowledged": lambda group, ours: group.ack,
    "body": lambda group, ours: str(group.size),
    "in flight": lambda group, ours: str(group.in_flight),
    "broker": lambda group, ours: group.name,
    "messages/s": lambda group, ours: f"{group.rate:,.0f}",
    "lowest to highest": lambda group, ours: _spread(group),
    "MB/s": lambda group, ours: f"{group.mb_per_s:.1f}",
    f"to {OURS}": _ratio,
    "p50 ms": lambda group, ours: f"{group.median_of(lambda row: row.p50_ms):.1f}",
    "p99 ms": lambda group, ours: f"{group.median_of(lambda row: row.p99_ms):.1f}",
    "CPU s: broker": lambda group, ours: f"{group.cpu('broker'):.1f}",
    "client": lambda group, ours: f"{group.cpu('client'):.1f}",
}
_RATE = ("broker", "messages/s", "lowest to highest")
_COST = ("CPU s: broker", "client")
COLUMNS = {
    PACKED: ("acknowledged", "body", *_RATE, "MB/s", f"to {OURS}", "p50 ms", "p99 ms", *_COST),
    SINGLE: ("acknowledged", "in flight", *_RATE, f"to {OURS}", "p50 ms", "p99 ms", *_COST),
    CONSUME: ("body", *_RATE, "MB/s", f"to {OURS}", *_COST),
}
_TEXT = ("acknowledged", "broker")


def table(found: Comparison, kind: str) -> str:
    """The table of a kind in Markdown: every broker, with those that could not be measured."""
    columns = COLUMNS[kind]
    measured = groups(found, kind)
    ours = {_load_of(group): group for group in measured if group.name == OURS}
    lines = ["| " + " | ".join(columns) + " |"]
    lines.append("|" + "|".join("---" if name in _TEXT else "--:" for name in columns) + "|")
    for group in measured:
        cells = [CELLS[name](group, ours.get(_load_of(group))) for name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    failed = {
        (row.name, row.ack, row.size, row.in_flight, row.why): row
        for row in found.rows
        if row.kind == kind and row.why
    }
    lines += [_unmeasured(row, columns) for row in failed.values()]
    return "\n".join(lines)


def _unmeasured(row: Row, columns: tuple[str, ...]) -> str:
    cells = {
        "acknowledged": row.ack,
        "body": str(row.size or "–"),
        "in flight": str(row.in_flight or "–"),
        "broker": row.name,
        "messages/s": f"not measured: {one_line(row.why)}",
    }
    return "| " + " | ".join(cells.get(name, "–") for name in columns) + " |"


def one_line(text: str) -> str:
    """A text that fits into a cell."""
    return text.replace("|", "/").replace("\n", " ")
