"""The table of RocketMQ's client with both brokers is made of medians, and says what failed.

Each of its bars finds its rows in it.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.bench.peers.bar import verdict
from penstock.bench.peers.bars import bars_table
from penstock.bench.peers.both import table
from penstock.bench.peers.brokers.gateway import Gateway, Real
from penstock.bench.peers.brokers.peer import CONSUME, DURABLE, PACED, SINGLE, WRITTEN, Server
from penstock.bench.peers.client_bars import client_bars
from penstock.bench.peers.page import save
from penstock.bench.peers.plan import PHASES, Plan, ack_in, tasks_in, ways_in
from penstock.bench.peers.rounds import what
from penstock.bench.peers.table import Comparison, Row, SameClient
from penstock.bench.reports.machine import Machine

BARS = {bar.key: bar for bar in client_bars()}


def row(broker: str, rate: float = 0.0, cpu: float = 0.0, **more: Any) -> Row:
    usual: dict[str, Any] = {"name": "64 in flight", "ack": WRITTEN, "size": 100}
    usual |= {"messages_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0} | more
    usual["name"] = f"{broker}, {usual['name']}"
    return Row(**usual, cpu_s_per_million={"broker": cpu, "client": 6.0})


def compared(rows: list[Row]) -> Comparison:
    return Comparison([], [], {}, 3, 1.5, 4096, 4, same_client=SameClient(rows))


def test_a_load_is_one_line_of_medians() -> None:
    ours = [row("Penstock", rate, cpu) for rate, cpu in ((1000, 10), (4000, 20), (2000, 12))]
    line = table([*ours, row("RocketMQ", 1000, 24)]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:6] == ["64 in flight", "100", "written", "2,000", "1,000", "2.00"]
    assert cells[6:] == ["1.00 / 1.00", "2.00 / 2.00", "12.0 / 24.0", "0.50"]


def test_reading_has_no_latency_and_what_failed_or_is_missing_says_so() -> None:
    read = [row(name, 10, 1, name="pull", kind=CONSUME) for name in ("Penstock", "RocketMQ")]
    failed = row("Penstock", ack=DURABLE, why="it did not\nstart")
    lines = table([*read, failed, row("RocketMQ", 1, 1, ack=DURABLE), row("Penstock")]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| – | – | 1.0 / 1.0 |" in lines[2] and "not measured: it did not start" in lines[3]
    assert "| not measured |" in lines[4]


def _whole() -> list[Row]:
    """The rows of a whole run: Penstock is twice as fast, and takes 0.4 of the CPU."""
    plan, rows = Plan(), []
    for (peer, rate, cpu), phase in product(((Gateway(), 20.0, 4.0), (Real(), 10.0, 10.0)), PHASES):
        for way in ways_in(peer, phase):
            broker, _, name = way.name.partition(", ")
            for size in plan.sizes[-1:] if way.kind in (SINGLE, PACED) else plan.sizes:
                more = {"kind": way.kind, "size": size, "ack": ack_in(phase), "name": name}
                rows.append(row(broker, rate, cpu, **more))
    return rows


def test_every_bar_finds_its_rows_in_a_whole_run() -> None:
    found = compared(_whole())
    values = {key: bar.measure(found).value for key, bar in BARS.items()}
    expected = {key: 1.0 if " ms" in bar.measure(found).how else 2.0 for key, bar in BARS.items()}
    assert values == {**expected, "client-cpu": pytest.approx(0.4)}
    assert sum(value == 1.0 for value in values.values()) == 4, "two percentiles, twice"
    rate = BARS["client-64-in-flight-written-100"].measure(found)
    assert rate.how.endswith("; the client's CPU us 6.0 and 6.0, the broker's 4.0 and 10.0")
    missed = [key for key, bar in BARS.items() if verdict(bar, bar.measure(found)) != "reached"]
    assert len(missed) == 2 and all(DURABLE in key for key in missed)


def test_the_cpu_is_that_of_the_worst_load_and_nothing_is_made_of_no_rows() -> None:
    names = {"Penstock": 9, "RocketMQ": 10}
    worst = [row(name, 1, cpu, name="odd", kind=PACED) for name, cpu in names.items()]
    measured = BARS["client-cpu"].measure(compared(_whole() + worst))
    assert measured.value == pytest.approx(0.9) and measured.how.startswith("odd, written, 100")
    for bar in BARS.values():
        assert verdict(bar, bar.measure(compared([]))) == "not measured"


def test_the_page_has_table_and_bars_once_there_are_some(tmp_path: Path) -> None:
    machine = Machine(2, "cpu", 4.0, "6.1", "3.11", 0.5, 1.0, 2.0, 3.0, 4.0)
    found = compared([])
    found.machines = {WRITTEN: [machine]}
    save(found, tmp_path)
    assert "RocketMQ's client on both" not in (tmp_path / "performance.md").read_text()
    found.same_client = SameClient(_whole(), [machine], "the command", "today")
    save(found, tmp_path)
    raw = (tmp_path / "performance.json").read_bytes()
    assert msgspec.json.decode(raw, type=Comparison) == found
    page = (tmp_path / "performance.md").read_text().partition("RocketMQ's client on both")[2]
    assert table(found.same_client.rows) in page and "the command" in page
    assert bars_table(found, client_bars()) in page


def test_what_rocketmqs_driver_is_compiled_from_is_there() -> None:
    assert [source for source in Real()._java._sources if not source.is_file()] == []


def test_both_brokers_take_turns_in_each_load() -> None:
    plan = Plan()
    for phase in PHASES:
        tasks = [
            task
            for peer in (Gateway(), Real())
            for task in tasks_in(peer, Server({}, {}), phase, plan)
        ]
        tasks.sort(key=what)
        assert [task.peer.name for task in tasks] == ["Penstock", "RocketMQ"] * (len(tasks) // 2)
        assert [what(task) for task in tasks[::2]] == [what(task) for task in tasks[1::2]]
