"""The official Java client with the same load on Penstock's gateway and on RocketMQ, in turns.

python -m penstock.bench.peers.same_client        prints a table

What the two brokers are given is one program's doing: only the address is another one. So the
table compares brokers and no clients.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
from msgspec.structs import replace

from penstock.bench.machine import Machine
from penstock.bench.peers.gateway import Gateway, Real
from penstock.bench.peers.peer import CONSUME, SINGLE
from penstock.bench.peers.plan import PHASES, Plan
from penstock.bench.peers.rounds import in_turns
from penstock.bench.peers.table import Row, one_line

_HEADS = (
    *("the client", "body", "acknowledged", "Penstock/s", "RocketMQ/s", "ratio"),
    *("p50 ms", "p99 ms", "CPU s", "ratio"),
)


class Both:
    """The rows of one load on both brokers."""

    def __init__(self, ours: list[Row], theirs: list[Row]) -> None:
        self._ours, self._theirs = ours, theirs

    def _pair(self, of: str) -> tuple[float, float]:
        ours, theirs = (
            median(getattr(row, of) or 0.0 for row in rows) for rows in (self._ours, self._theirs)
        )
        return ours, theirs

    def cells(self) -> list[str]:
        row = self._ours[0]
        failed = [f"not measured: {one_line(each.why)}" for each in self._all() if each.why]
        load = [row.name, str(row.size), row.ack]
        if failed or not self._theirs:
            return [*load, *(failed or ["not measured"])[:1], *["–"] * (len(_HEADS) - 4)]
        rate, p50, p99 = map(self._pair, ("messages_per_s", "p50_ms", "p99_ms"))
        cpu = [
            median(each.cpu_s_per_million["broker"] for each in rows)
            for rows in (self._ours, self._theirs)
        ]
        latencies = [
            "–" if row.kind == CONSUME else f"{ours:.2f} / {theirs:.2f}"
            for ours, theirs in (p50, p99)
        ]
        return [
            *(*load, f"{rate[0]:,.0f}", f"{rate[1]:,.0f}", f"{rate[0] / rate[1]:.2f}"),
            *(*latencies, f"{cpu[0]:.1f} / {cpu[1]:.1f}", f"{cpu[0] / cpu[1]:.2f}"),
        ]

    def _all(self) -> list[Row]:
        return self._ours + self._theirs


def table(ours: list[Row], theirs: list[Row]) -> str:
    """The comparison in Markdown: a line for each load."""
    loads = dict.fromkeys((row.kind == SINGLE, row.name, row.size, row.ack) for row in ours)
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|--:|---" + "|--:" * (len(_HEADS) - 3) + "|"]
    for _, name, size, ack in loads:
        mine, other = (
            [row for row in rows if (row.name, row.size, row.ack) == (name, size, ack)]
            for rows in (ours, theirs)
        )
        lines.append("| " + " | ".join(Both(mine, other).cells()) + " |")
    return "\n".join(lines)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=1.5, show_default=True)
@click.option("--phases", default=",".join(PHASES), show_default=True, help="Which of these.")
@click.option("--sizes", default="100,1024", show_default=True, help="Of bodies, in bytes.")
def main(runs: int, seconds: float, phases: str, sizes: str) -> None:
    """Measure both brokers with RocketMQ's Java client."""
    # servers are stopped on the way out, also when somebody ends this
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    plan = Plan(
        runs=runs,
        seconds=seconds,
        phases=phases.split(","),
        sizes=[int(size) for size in sizes.split(",")],
    )
    peers = Gateway(), Real()
    for peer in peers:
        say(f"{peer.name}: {peer.version()}")
    found: dict[str, list[Row]] = {peer.name: [] for peer in peers}
    machines: list[Machine] = []
    for phase in plan.phases:
        with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
            for row in in_turns(peers, phase, plan, Path(place), machines, say):
                broker, _, way = row.name.partition(", ")
                found[broker].append(replace(row, name=way))
    loads = [machine.load_average for machine in machines]
    print(f"{runs} rounds of {seconds:g} s, load average {min(loads):.1f} to {max(loads):.1f}\n")
    print(table(*found.values()))


if __name__ == "__main__":
    main()
