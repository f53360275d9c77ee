"""The bars: each finds its figures among what is measured, and says how much is missing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.log.sweeps import Point, Sweeps
from penstock.bench.peers.bar import Bar, verdict
from penstock.bench.peers.bars import BARS, bars_table
from penstock.bench.peers.brokers.peer import CONSUME, DURABLE, PACKED, SINGLE, WRITTEN
from penstock.bench.peers.client_bars import client_bars
from penstock.bench.peers.compare import PEERS
from penstock.bench.peers.figures import Measured
from penstock.bench.peers.plan import BACKLOG, PHASES, Plan, ack_in, ways_in
from penstock.bench.peers.reasons import REASONS
from penstock.bench.peers.table import Comparison, Row
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape

PLAN = Plan()
BY_KEY = {bar.key: bar for bar in BARS}
Load = tuple[str, str, str, int, int]  # name, kind, acknowledged, size, in flight


def _machine(disk: float, cpus: int = 2) -> Machine:
    return Machine(cpus, "cpu", 4.0, "6.1", "3.11", 0.5, disk, 2000, 10_000, 9000)


def _loads() -> list[Load]:
    """Every load that a whole comparison has."""
    return [
        (way.name, way.kind, ack_in(phase), size, 0 if phase == BACKLOG else way.in_flight or 4096)
        for make, phase in product(PEERS.values(), PHASES)
        for way in ways_in(make(), phase)
        for size in (PLAN.sizes[-1:] if way.kind == SINGLE else PLAN.sizes)
    ]


def _compared(rates: dict[Load, float], cpu_s: float = 1.0) -> Comparison:
    """Three rounds, whose medians are the rates."""
    cpu = {"broker": cpu_s / 2, "client": cpu_s / 2, "total": cpu_s}
    rows = [
        Row(
            name,
            ack,
            size,
            run,
            kind=kind,
            in_flight=in_flight,
            messages_per_s=rate * factor,
            cpu_s_per_million=cpu,
        )
        for (name, kind, ack, size, in_flight), rate in rates.items()
        for run, factor in enumerate((0.1, 1.0, 3.0))
    ]
    machines = {DURABLE: [_machine(disk) for disk in (50.0, 400.0, 900.0)], WRITTEN: [_machine(1)]}
    return Comparison([], rows, machines, 3, 2.0, 4096, 4)


def test_every_bar_about_other_brokers_finds_its_rows_in_a_whole_comparison() -> None:
    rates = {load: 1000.0 + number for number, load in enumerate(_loads())}
    ours, batches = "Penstock", "Penstock, batches of 64"
    at = {
        "batches-durable-1024": (batches, "RocketMQ, batches of 64", PACKED, DURABLE, 1024, 4096),
        "batches-written-1024": (batches, "RocketMQ, batches of 64", PACKED, WRITTEN, 1024, 4096),
        "batches-written-100": (batches, "RocketMQ, batches of 64", PACKED, WRITTEN, 100, 4096),
        "single-written-64": (ours, "RocketMQ", SINGLE, WRITTEN, 1024, 64),
        "single-written-512": (ours, "RocketMQ", SINGLE, WRITTEN, 1024, 512),
        "single-durable-512": (
            *(ours, "RocketMQ, 512 threads that wait"),
            *(SINGLE, DURABLE, 1024, 512),
        ),
    }
    found = _compared(rates)
    for key, (one, other, *load) in at.items():
        expected = rates[one, *load] / rates[other, *load]
        assert BY_KEY[key].measure(found).value == pytest.approx(expected), key
    assert all(bar.measure(found).value is not None for bar in BARS[: len(at) + 5])


@given(st.lists(st.floats(1, 1e7), min_size=6, max_size=6))
def test_the_best_other_broker_is_the_fastest_that_is_not_excepted(speeds: list[float]) -> None:
    names = [make().name for make in PEERS.values()]
    speed = dict(zip(names, speeds, strict=True))
    rates = {(name, PACKED, WRITTEN, 100, 4096): rate for name, rate in speed.items()}
    rates |= {(name, CONSUME, WRITTEN, 100, 0): rate for name, rate in speed.items()}
    found = _compared(rates)
    others = {name: rate for name, rate in speed.items() if name != "Penstock"}
    read = BY_KEY["consume-100"].measure(found).value
    assert read == pytest.approx(speed["Penstock"] / max(others.values()))
    del others["RocketMQ"]
    sent = BY_KEY["packed-written-100"].measure(found).value
    assert sent == pytest.approx(speed["Penstock"] / max(others.values()))


@pytest.mark.parametrize(
    ("rate", "cpu_s", "outcome"),
    [
        (400_000, 1.0, "reached"),
        (200_000, 9.0, "missed by 46%"),
        (500_000, 3.6, "reached"),
        (600_000, 3.0, "reached: CPU-bound"),
        (600_000, 2.9, "missed by 35%"),
    ],
)
def test_the_disk_is_that_of_the_same_phase_and_short_of_processors_counts_only_when_fast(
    rate: int, cpu_s: float, outcome: str
) -> None:
    load = ("Penstock, batches of 64", PACKED, DURABLE, 1024, 4096)
    found = _compared({load: rate}, cpu_s)
    if rate == 600_000:
        found.machines[DURABLE] = [_machine(1000.0)] * 3
    assert verdict(BY_KEY["disk"], BY_KEY["disk"].measure(found)) == outcome


@given(st.floats(0.01, 1000), st.floats(0.01, 1000), st.booleans())
def test_a_verdict_says_by_how_much_of_what_is_asked(
    asked: float, value: float, at_most: bool
) -> None:
    bar = Bar("key", "what", asked, lambda found: Measured(value, ""), at_most=at_most)
    short = (value - asked if at_most else asked - value) / asked
    expected = "reached" if short <= 0 else f"missed by {short:.0%}"
    assert verdict(bar, Measured(value, "")) == expected
    assert verdict(bar, Measured(None, "")) == "not measured"


def test_what_penstock_does_alone_is_held_against_its_bars() -> None:
    found = _compared({})
    after = {"reput_behind_flushed": {"p99_ms": 120.0}}
    found.sweeps = Sweeps(
        queues=[Point(DURABLE, x, rate, 1) for x, rate in ((8, 100.0), (64, 1.0), (10_000, 90.0))],
        alone=[
            _result("latency", WRITTEN, 0.4, 6.0),
            _result("latency", DURABLE, 2.0, 9.0),
            _result("pipeline", WRITTEN, 1, 1, {"idle_pss_mib": 100.0}),
            _result("pipeline", DURABLE, 1, 1, after | {"idle_pss_mib": 300.0}),
        ],
        long=_result("pipeline", WRITTEN, 1, 1, {"growth_own_mib": 3, "growth_pss_mib": 9}),
    )
    keys = ("queues", "queues-behind", "latency-written-50", "latency-durable-50")
    keys += ("latency-written-99", "latency-durable-99", "memory-idle", "memory-growth")
    outcomes = [verdict(BY_KEY[key], BY_KEY[key].measure(found)) for key in keys]
    reached = "reached"
    assert outcomes[:6] == [reached, "missed by 20%", reached, reached, "missed by 20%", reached]
    assert outcomes[6:] == ["missed by 5%", "missed by 3.15 MB"]


def _result(
    kind: str, ack: str, p50: float, p99: float, details: dict[str, object] | None = None
) -> Result:
    return Result(
        kind=kind,
        shape=Shape(ack=ack),
        messages=1,
        stored=1,
        seconds=1.0,
        messages_per_s=1.0,
        mb_per_s=1.0,
        p50_ms=p50,
        p99_ms=p99,
        latency_of="",
        cpu_s_per_million={"total": 1.0},
        machine=_machine(1),
        details=details or {},
    )


def test_a_reason_stands_beside_what_is_missed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for bar in BARS:
        monkeypatch.setitem(REASONS, bar.key, f"because of {bar.key}")
    rates = {
        (name, CONSUME, WRITTEN, size, 0): rate
        for name, size, rate in (
            ("Penstock", 100, 200.0),
            ("Kafka", 100, 100.0),
            ("Penstock", 1024, 120.0),
            ("Kafka", 1024, 100.0),
        )
    }
    lines = bars_table(_compared(rates)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells} == {6} and len(cells) == 2 + len(BARS)
    stated = {row[5]: row[1:4] for row in cells[2:] if row[5]}
    assert stated == {"because of consume-1024": ["at least 2 x", "1.20 x", "missed by 40%"]}


def test_every_reason_is_that_of_a_bar_and_no_two_bars_share_it() -> None:
    bars = [*BARS, *client_bars()]
    keys = {bar.key for bar in bars}
    assert len(keys) == len(bars)
    assert set(REASONS) <= keys
