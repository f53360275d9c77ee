"""Penstock by itself over a range: in flight, size, queues, a growing store; for docs and plots.

Each figure is one run of a kind of `penstock bench`. One broker serves a whole range, except over
queues, which need smaller files. Failures are reported, and the rest is measured.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.loads.target import Where, opened
from penstock.bench.log.latency import bench_latency
from penstock.bench.log.pipeline import bench_pipeline
from penstock.bench.log.produce import produce
from penstock.bench.log.topics import bench_topics
from penstock.bench.reports.machine import Machine, measure_machine
from penstock.bench.reports.report import Result, Shape
from penstock.shared.errors import PenstockError

IN_FLIGHT = (1, 8, 64, 512, 4096)
SIZES = (16, 100, 1024, 10_240, 102_400)
QUEUES = (1, 8, 64, 512, 4096, 10_000)
# the bars for Penstock alone are decided by these rounds, and over queues the numbers take turns
RUNS = 5
FEW_QUEUES, MANY_QUEUES = 8, 10_000
LATENCY_S = 3.0
GROWTH_STEPS = 10
ACKS = ("written", "durable")


class Point(msgspec.Struct, frozen=True):
    """One figure of a line: `x` is its value on the range's axis."""

    line: str
    x: float
    messages_per_s: float
    mb_per_s: float


class Sweeps(msgspec.Struct):
    """All ranges; RUNS results of each other kind; a long run; and what failed, and why."""

    in_flight: list[Point] = []
    size: list[Point] = []
    queues: list[Point] = []
    store_gb: list[Point] = []
    alone: list[Result] = []
    long: Result | None = None
    failed: list[str] = []


def sweep(seconds: float, long_s: float, say: Callable[[str], None]) -> Sweeps:
    """Measure everything: `seconds` for each point, and `long_s` of full rate for the long run."""
    machine = measure_machine(Path(tempfile.gettempdir()))
    found = Sweeps()
    # paced loads come first, once the disk has taken what earlier work left
    os.sync()
    for ack in ACKS * RUNS:
        with told(found, f"latency, {ack}", say):
            paced = Shape(ack=ack, rate_per_s=1000, seconds=max(LATENCY_S, seconds))
            found.alone.append(bench_latency(paced, Where(), machine, _unseen))
    for ack in ACKS:
        flights = [Shape(ack=ack, in_flight=number, seconds=seconds) for number in IN_FLIGHT]
        with told(found, f"over messages in flight, {ack}", say):
            found.in_flight += _points(flights, machine, ack, lambda shape: shape.in_flight, say)
        sizes = [Shape(ack=ack, size=size, seconds=seconds) for size in SIZES]
        with told(found, f"over sizes, {ack}", say):
            found.size += _points(sizes, machine, ack, lambda shape: shape.size, say)
    found.queues = list(_over_queues(found, Shape(seconds=seconds), machine, say))
    with told(found, "a store that grows", say):
        found.store_gb += _growth(Shape(ack="written", seconds=seconds), machine, say)
    for ack in ACKS * RUNS:
        with told(found, f"pipeline, {ack}", say):
            shape = Shape(ack=ack, seconds=seconds)
            found.alone.append(bench_pipeline(shape, Where(), machine, _unseen))
    if long_s:
        with told(found, f"memory over {long_s:.0f} s", say):
            # small bodies, because the disk must have room for all messages
            shape = Shape(size=100, ack="written", seconds=long_s)
            found.long = bench_pipeline(shape, Where(), machine, _unseen)
    return found


@contextmanager
def told(found: Sweeps, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Record why a part failed; its figures until then stay."""
    say(what)
    try:
        yield
    except PenstockError as error:
        say(f"{what}: {error}")
        found.failed.append(f"{what}: {error}"[:300])


def _points(
    shapes: Sequence[Shape],
    machine: Machine,
    line: str,
    over: Callable[[Shape], float],
    say: Callable[[str], None],
) -> Iterator[Point]:
    with opened(Where(), shapes[0].ack) as target:
        for shape in shapes:
            result = produce(target, shape, machine, _unseen, "produce")
            say(f"{line}, {over(shape):.0f}: {result.messages_per_s:.0f}/s")
            yield _point(line, over(shape), result)


def _growth(shape: Shape, machine: Machine, say: Callable[[str], None]) -> Iterator[Point]:
    """Send the same load again and again into one store, which grows."""
    with opened(Where(), shape.ack) as target:
        assert target.positions is not None
        for _ in range(GROWTH_STEPS):
            result = produce(target, shape, machine, _unseen, "produce")
            held_gb = target.positions["wrote"] / 1e9
            say(f"a store of {held_gb:.2f} GB: {result.messages_per_s:.0f}/s")
            yield _point(shape.ack, held_gb, result)


def _over_queues(
    found: Sweeps, shape: Shape, machine: Machine, say: Callable[[str], None]
) -> Iterator[Point]:
    """Medians, if a number of queues is tried more than once."""
    tried: dict[int, list[Result]] = {number: [] for number in QUEUES}
    for number in (*QUEUES, *(FEW_QUEUES, MANY_QUEUES) * (RUNS - 1)):
        with told(found, f"{number} queues", say):
            for result in bench_topics(shape, (number,), Where(), machine, _unseen):
                say(f"{number} queues: {result.messages_per_s:.0f}/s")
                tried[number].append(result)
    for number, results in tried.items():
        if results:
            rate = median(each.messages_per_s for each in results)
            yield Point("durable", number, rate, median(each.mb_per_s for each in results))


def _point(line: str, x: float, result: Result) -> Point:
    return Point(line, round(x, 3), result.messages_per_s, result.mb_per_s)


def _unseen(done: int, total: int) -> None:
    """No bar: a line is printed for each figure."""
