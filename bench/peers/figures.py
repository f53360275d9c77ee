"""A bar's figure in a comparison, and what it was made of.

Each function here returns one that looks the figure up. A ratio is that of two medians of one
comparison. This file depends on the names of rows, but not on what is required.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from penstock.bench.log.sweeps import FEW_QUEUES, MANY_QUEUES
from penstock.bench.peers.brokers.peer import DURABLE, PACKED
from penstock.bench.peers.table import OURS, Comparison, Group, groups
from penstock.bench.reports.report import Result

BATCHES = "Penstock, batches of 64"
ROCKETMQ = "RocketMQ"
ROCKETMQ_BATCHES = "RocketMQ, batches of 64"
ROCKETMQ_THREADS = "RocketMQ, 512 threads that wait"
# above this rate the processors, and not the disk, may be the limit
CPU_BOUND_MB_PER_S = 500
CPU_BOUND_PART = 0.9
MIB = 1 << 20


class Measured(NamedTuple):
    """A figure and what it was made of; `enough` if it counts as reached because CPU-bound."""

    value: float | None
    how: str
    enough: bool = False


def _find(
    found: Comparison, kind: str, ack: str, size: int, in_flight: int = 0
) -> dict[str, Group]:
    """The groups of one load by their names; without `in_flight`, those of any."""
    return {
        group.name: group
        for group in groups(found, kind)
        if (group.ack, group.size) == (ack, size) and in_flight in (0, group.in_flight)
    }


def against(
    theirs: str, kind: str, ack: str, size: int, in_flight: int = 0, ours: str = OURS
) -> Callable[[Comparison], Measured]:
    """Looks up the ratio of two rows."""

    def measure(found: Comparison) -> Measured:
        there = _find(found, kind, ack, size, in_flight)
        return _ratio(there.get(ours), there.get(theirs), f"{ours} and {theirs}")

    return measure


def against_best(
    kind: str, ack: str, size: int, but: tuple[str, ...] = (), ours: str = OURS
) -> Callable[[Comparison], Measured]:
    """Looks up the ratio of a row of Penstock's to the fastest row that is neither Penstock's nor
    named in `but`.

    Penstock's row in batches is reported too: other brokers' clients have no batches here.
    """

    def measure(found: Comparison) -> Measured:
        there = _find(found, kind, ack, size)
        others = [each for each in there.values() if not each.name.startswith((OURS, *but))]
        best = max(others, key=lambda each: each.rate, default=None)
        measured = _ratio(there.get(ours), best, f"{ours} and other brokers")
        if measured.value is None or ours == BATCHES or BATCHES not in there:
            return measured
        return Measured(measured.value, f"{measured.how}; {_rate(there[BATCHES])}")

    return measure


def _ratio(ours: Group | None, theirs: Group | None, wanted: str) -> Measured:
    if ours is None or theirs is None:
        return Measured(None, f"one of {wanted} was not measured")
    return Measured(ours.rate / theirs.rate, f"{_rate(ours)}; {_rate(theirs)}")


def _rate(group: Group) -> str:
    return f"{group.name} {group.rate:,.0f}/s"


def of_the_disk(found: Comparison) -> Measured:
    """Durable bodies compared with the disk, measured in the same phase of the same run."""
    group = _find(found, PACKED, DURABLE, 1024).get(BATCHES)
    machines = found.machines.get(DURABLE)
    if group is None or not machines:
        return Measured(None, f"{BATCHES} was not measured")
    disk = median(each.write_new_file_mb_per_s for each in machines)
    used = group.cpu("total") * group.rate / 1e6 / machines[0].cpus
    how = (
        f"{group.name} {group.mb_per_s:.0f} MB/s of bodies; the disk {disk:.0f} MB/s in "
        f"{len(machines)} trials; processors used by {used:.0%}"
    )
    cpu_bound = group.mb_per_s > CPU_BOUND_MB_PER_S and used >= CPU_BOUND_PART
    return Measured(group.mb_per_s / disk, how, cpu_bound)


def of_queues(found: Comparison) -> Measured:
    rates = {point.x: point.messages_per_s for point in found.sweeps.queues}
    few, many = rates.get(FEW_QUEUES), rates.get(MANY_QUEUES)
    if few is None or many is None:
        return Measured(None, "the range over queues was not measured")
    how = f"{MANY_QUEUES:,} queues {many:,.0f}/s; {FEW_QUEUES} queues {few:,.0f}/s"
    return Measured(many / few, how)


def alone(found: Comparison, kind: str, ack: str) -> list[Result]:
    """The results of Penstock by itself in each run."""
    return [x for x in found.sweeps.alone if (x.kind, x.shape.ack) == (kind, ack)]


def queues_behind(found: Comparison) -> Measured:
    results = alone(found, "pipeline", DURABLE)
    if not results:
        return Measured(None, "Penstock alone was not measured")
    behind_ms = median(each.details["reput_behind_flushed"]["p99_ms"] for each in results)
    rate = median(each.messages_per_s for each in results)
    return Measured(behind_ms, f"at {rate:,.0f}/s; {len(results)} runs")


def idle_memory(found: Comparison) -> Measured:
    idle = [
        result.details["idle_pss_mib"] for result in found.sweeps.alone if result.kind == "pipeline"
    ]
    if not idle:
        return Measured(None, "Penstock alone was not measured")
    return Measured(max(idle) * MIB / 1e6, f"PSS of all processes, the highest of {len(idle)} runs")


def memory_growth(found: Comparison) -> Measured:
    result = found.sweeps.long
    grown = None if result is None else result.details["growth_own_mib"]
    if result is None or grown is None:
        return Measured(None, "the long run was not measured")
    how = (
        "PSS of all processes without pages of files on the disk, "
        f"{result.details['growth_pss_mib'] * MIB / 1e6:.1f} MB with them; medians of the last and "
        f"the second tenth of {result.seconds:.0f} s at {result.messages_per_s:,.0f}/s; one run"
    )
    return Measured(grown * MIB / 1e6, how)


def latency(ack: str, percent: int) -> Callable[[Comparison], Measured]:
    def measure(found: Comparison) -> Measured:
        results = alone(found, "latency", ack)
        if not results:
            return Measured(None, "Penstock alone was not measured")
        values = [(each.p50_ms if percent == 50 else each.p99_ms) or 0.0 for each in results]
        how = f"{results[0].messages} messages in each of {len(values)} runs: "
        return Measured(median(values), f"{how}{min(values):.1f} to {max(values):.1f} ms")

    return measure
