"""The bars: what is required of Penstock next to other brokers, what was measured, what is missed.

A bar that was not measured is neither reached nor missed. Figures are looked up in figures.py;
reasons are in reasons.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.bench.peers.bar import Bar, verdict
from penstock.bench.peers.brokers.peer import CONSUME, DURABLE, PACKED, SINGLE, WRITTEN
from penstock.bench.peers.figures import (
    BATCHES,
    ROCKETMQ,
    ROCKETMQ_BATCHES,
    ROCKETMQ_THREADS,
    against,
    against_best,
    idle_memory,
    latency,
    memory_growth,
    of_queues,
    of_the_disk,
    queues_behind,
)
from penstock.bench.peers.reasons import REASONS
from penstock.bench.peers.table import Comparison, one_line


def _produce_bars() -> list[Bar]:
    flush = {DURABLE: "SYNC_FLUSH", WRITTEN: "ASYNC_FLUSH"}
    bars = []
    for ack, size, asked in ((DURABLE, 1024, 10), (WRITTEN, 1024, 5), (WRITTEN, 100, 10)):
        measure = against(ROCKETMQ_BATCHES, PACKED, ack, size, ours=BATCHES)
        what = f"batches, {ack}, {size} bytes, beside RocketMQ's batches with {flush[ack]}"
        bars.append(Bar(f"batches-{ack}-{size}", what, asked, measure))
    for ack, size, least in (
        (WRITTEN, 1024, 3.0),
        (WRITTEN, 100, 1.5),
        (DURABLE, 1024, 2),
        (DURABLE, 100, 2),
    ):
        measure = against_best(PACKED, ack, size, (ROCKETMQ,))
        what = f"packed by the client, {ack}, {size} bytes, beside the best other broker"
        bars.append(Bar(f"packed-{ack}-{size}", what, least, measure))
    measure = against_best(PACKED, WRITTEN, 1024, ours=BATCHES)
    what = "batches, written, 1024 bytes, beside the best other broker"
    bars.append(Bar(f"batches-best-{WRITTEN}-1024", what, 2.5, measure))
    for in_flight in (64, 512):
        measure = against(ROCKETMQ, SINGLE, WRITTEN, 1024, in_flight)
        what = f"single sends, written, {in_flight} in flight, beside RocketMQ's asynchronous ones"
        bars.append(Bar(f"single-{WRITTEN}-{in_flight}", what, 4, measure))
    measure = against(ROCKETMQ_THREADS, SINGLE, DURABLE, 1024, 512)
    what = "single sends, durable, 512 in flight, beside RocketMQ with SYNC_FLUSH and 512 threads"
    return [*bars, Bar(f"single-{DURABLE}-512", what, 5, measure)]


def _alone_bars() -> list[Bar]:
    bars = [
        Bar("queues", "10,000 queues beside 8, durable", 0.8, of_queues),
        Bar(
            "queues-behind",
            "queues behind the disk at full rate, p99",
            100,
            queues_behind,
            "ms",
            at_most=True,
        ),
    ]
    for ack, percent, asked in (
        (WRITTEN, 50, 0.5),
        (DURABLE, 50, 2),
        (WRITTEN, 99, 5),
        (DURABLE, 99, 10),
    ):
        what = f"producer to consumer at 1,000 messages a second, {ack}, p{percent}"
        measure = latency(ack, percent)
        bars.append(Bar(f"latency-{ack}-{percent}", what, asked, measure, "ms", at_most=True))
    what = "memory of all processes, idle"
    bars.append(Bar("memory-idle", what, 300, idle_memory, "MB", at_most=True))
    what = "memory more after a long run at full rate than when it was warm"
    bars.append(Bar("memory-growth", what, 0, memory_growth, "MB", at_most=True))
    return bars


BARS: tuple[Bar, ...] = (
    *_produce_bars(),
    Bar("disk", "batches, durable, 1024 bytes, MB/s to the disk's own", 0.95, of_the_disk),
    *(
        Bar(
            f"consume-{size}",
            f"reading a backlog, {size} bytes, beside the best other broker",
            2,
            against_best(CONSUME, WRITTEN, size),
        )
        for size in (100, 1024)
    ),
    *_alone_bars(),
)


def bars_table(found: Comparison, bars: Iterable[Bar] = BARS) -> str:
    """The bars in Markdown, with a reason for each that is missed."""
    lines = ["| what | asked | measured | | made of | why |", "|---|--:|--:|---|---|---|"]
    for bar in bars:
        measured = bar.measure(found)
        outcome = verdict(bar, measured)
        asked = f"{'at most' if bar.at_most else 'at least'} {bar.asked:g} {bar.unit}"
        value = "–" if measured.value is None else f"{measured.value:.2f} {bar.unit}"
        why = REASONS.get(bar.key, "–") if outcome.startswith("missed") else ""
        cells = (bar.what, asked, value, outcome, measured.how, why)
        lines.append("| " + " | ".join(one_line(cell) for cell in cells) + " |")
    return "\n".join(lines)
