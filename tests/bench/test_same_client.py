"""The table of RocketMQ's client with both brokers is made of medians, and says what failed."""

from __future__ import annotations

from typing import Any

from penstock.bench.peers.gateway import Real
from penstock.bench.peers.peer import CONSUME, DURABLE, WRITTEN
from penstock.bench.peers.same_client import table
from penstock.bench.peers.table import Row


def row(rate: float = 0.0, cpu: float = 0.0, **more: Any) -> Row:
    usual: dict[str, Any] = {"name": "64 in flight", "ack": WRITTEN, "size": 100}
    usual |= {"messages_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0}
    return Row(**usual | more, cpu_s_per_million={"broker": cpu})


def test_a_load_is_one_line_of_medians() -> None:
    ours = [row(1000, 10), row(4000, 20), row(2000, 12)]
    line = table(ours, [row(1000, 24)]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:6] == ["64 in flight", "100", "written", "2,000", "1,000", "2.00"]
    assert cells[6:] == ["1.00 / 1.00", "2.00 / 2.00", "12.0 / 24.0", "0.50"]


def test_reading_has_no_latency_and_what_failed_says_why() -> None:
    read = row(10, 1, name="pull", kind=CONSUME)
    failed = row(ack=DURABLE, why="it did not\nstart")
    lines = table([read, failed], [read, row(1, 1, ack=DURABLE)]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| – | – | 1.0 / 1.0 |" in lines[2] and "not measured: it did not start" in lines[3]


def test_what_rocketmqs_driver_is_compiled_from_is_there() -> None:
    assert [source for source in Real()._java._sources if not source.is_file()] == []
