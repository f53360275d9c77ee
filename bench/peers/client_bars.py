"""What is required of Penstock with RocketMQ's own client, compared with RocketMQ under that load.

The rows are those of same_client.py. A bar that was not measured is neither reached nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from penstock.bench.peers.bar import Bar
from penstock.bench.peers.both import Both, in_pairs
from penstock.bench.peers.brokers.gateway import PACE, RATE_PER_S
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN
from penstock.bench.peers.figures import Measured
from penstock.bench.peers.table import Comparison

_MOST_CPU = 0.5


def _load(found: Comparison, way: str, ack: str, size: int) -> Both | None:
    for both in in_pairs(found.same_client.rows):
        if (both.way, both.ack, both.size) == (way, ack, size) and not both.why:
            return both
    return None


def _ratio(
    way: str, ack: str, size: int, field: str, unit: str
) -> Callable[[Comparison], Measured]:
    def measure(found: Comparison) -> Measured:
        both = _load(found, way, ack, size)
        if both is None:
            return Measured(None, "not measured")
        pair = both.pair(attrgetter(field))
        digits = 0 if unit == "/s" else 2
        shown = (f"{each:,.{digits}f}{unit}" for each in pair)
        how = "Penstock {}; RocketMQ {}".format(*shown)
        if unit == "/s":
            how += "; the client's CPU us {:.1f} and {:.1f}, the broker's {:.1f} and {:.1f}".format(
                *both.client_cpu, *both.cpu
            )
        return Measured(pair.ratio, how)

    return measure


def _cpu(found: Comparison) -> Measured:
    """The ratio for the load that is worst for Penstock."""
    measured = [both for both in in_pairs(found.same_client.rows) if not both.why]
    if not measured:
        return Measured(None, "not measured")
    worst = max(measured, key=lambda both: both.cpu.ratio)
    enough = sum(both.cpu.ratio <= _MOST_CPU for both in measured)
    how = (
        f"{worst.way}, {worst.ack}, {worst.size} bytes: Penstock {worst.cpu.ours:.1f} s, RocketMQ "
        f"{worst.cpu.theirs:.1f} s; {enough} of {len(measured)} loads take at most {_MOST_CPU:g}"
    )
    return Measured(worst.cpu.ratio, how)


def _rates() -> Iterator[tuple[str, str, int, float]]:
    """Way, acknowledgement, size, and the required ratio."""
    for size in (100, 1024):
        yield "64 in flight", WRITTEN, size, 2
        yield "512 in flight", WRITTEN, size, 2
        yield "batches of 64", WRITTEN, size, 2
    yield "1 thread that waits", WRITTEN, 1024, 1
    yield "64 threads that wait", WRITTEN, 1024, 1
    yield "64 threads that wait", DURABLE, 1024, 3
    yield "512 threads that wait", DURABLE, 1024, 3
    for size in (100, 1024):
        yield "pull of a backlog", WRITTEN, size, 1.5


def client_bars() -> Iterator[Bar]:
    for way, ack, size, asked in _rates():
        key = f"client-{way.replace(' ', '-')}-{ack}-{size}"
        what = f"RocketMQ's client, {way}, {ack}, {size} bytes, beside RocketMQ"
        yield Bar(key, what, asked, _ratio(way, ack, size, "messages_per_s", "/s"))
    for ack in (WRITTEN, DURABLE):
        for name in ("p50_ms", "p99_ms"):
            what = f"RocketMQ's client, {PACE}, {ack}, {name[:3]}, beside RocketMQ"
            measure = _ratio(PACE, ack, 1024, name, " ms")
            yield Bar(f"client-{RATE_PER_S}-{ack}-{name[:3]}", what, 1, measure, at_most=True)
    what = "RocketMQ's client, the broker's CPU for a million messages, beside RocketMQ"
    yield Bar("client-cpu", what, _MOST_CPU, _cpu, at_most=True)
