"""How late do delayed messages come, and what do many that wait cost?

A broker of its own, a producer and then a consumer. All messages are sent before the first is due,
each for a moment of its own within the time; each names that moment in its body. So what counts is
the delivery alone, from the due time to the consumer's hand.
"""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from penstock.chaos.broker import Broker, fixed_ports
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.shared.errors import StoreUnavailable

TOPIC, QUEUES = "bench", 4
OUTCOME_S = 120
# Between the last message that is sent and the first that is due.
PAUSE_S = 2.0
# Sent before, to see how many a second this machine sends: the window begins when all are sent.
TRIAL, TRIAL_TOPIC = 20_000, "trial"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SETTINGS: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": 256 << 20,
    "mapped_file_size_consume_queue_bytes": 6_000_000,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
    "transient_store_pool_bytes": 32 << 20,
}
_BODY = struct.Struct("=qq")
Figures = npt.NDArray[np.float64]
Moved = Callable[[int, int], None]


class Delay(msgspec.Struct, frozen=True):
    """One run. Lateness in ms from the due time to the consumer; memory in MB, of all processes."""

    messages: int
    seconds: float
    pending: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    stored_p99_ms: float  # until the copy is stored
    early: int
    lost: int
    twice: int
    sent_per_s: int
    scheduler_us: float  # CPU time of the scheduler for each message, from queue to queue
    memory_mb: float  # more than before anything waited
    start_s: float  # of a broker with the pending ones, killed before; 0 without
    load_1m: float


def bench_delay(messages: int, seconds: float, pending: int, size: int, moved: Moved) -> Delay:
    """Deliver `messages` at random times within `seconds`, while `pending` others wait for hours.

    Raises StoreUnavailable.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-delay-"))
    broker = Broker(place, {**SETTINGS, **fixed_ports()})
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
            producer.create_topic(TRIAL_TOPIC, QUEUES)
        before_mb = memory_mb(broker)
        start_s = 0.0
        if pending:
            now_ms = time.time_ns() // 1_000_000
            _send(broker, pending, size, now_ms + HOUR_MS, 39 * DAY_MS, moved)
            _await_pending(broker, pending)
            broker.kill()
            start_s = broker.start()
            _await_pending(broker, pending)
        memory = memory_mb(broker) - before_mb
        first_ms = time.time_ns() // 1_000_000
        trial = _send(broker, TRIAL, size, first_ms, 1000, moved, TRIAL_TOPIC)
        lead_ms = round((1.5 * messages / trial + PAUSE_S) * 1000)
        first_ms = time.time_ns() // 1_000_000 + lead_ms
        scheduler = psutil.Process(broker.actors()["scheduler"])
        used = sum(scheduler.cpu_times()[:2])
        rate = _send(broker, messages, size, first_ms, round(seconds * 1000), moved)
        if time.time_ns() // 1_000_000 > first_ms:
            raise StoreUnavailable(
                "the messages were not all sent before the first was due",
                f"{rate:.0f} a second",
                "measure on a quieter machine, or fewer: penstock bench delay --messages 100000",
            )
        late, stored, counts = _receive(broker, messages, first_ms, seconds, moved)
        percentiles = np.percentile(late, [50, 99, 100]) if len(late) else np.zeros(3)
        return Delay(
            messages=messages,
            seconds=seconds,
            pending=pending,
            p50_ms=round(float(percentiles[0]), 1),
            p99_ms=round(float(percentiles[1]), 1),
            max_ms=round(float(percentiles[2]), 1),
            stored_p99_ms=round(float(np.percentile(stored, 99)), 1) if len(stored) else 0.0,
            early=int((stored < 0).sum()),
            lost=int((counts == 0).sum()),
            twice=int((counts > 1).sum()),
            sent_per_s=round(rate),
            scheduler_us=round((sum(scheduler.cpu_times()[:2]) - used) / messages * 1e6, 1),
            memory_mb=round(max(memory, memory_mb(broker) - before_mb), 1),
            start_s=round(start_s, 2),
            load_1m=round(psutil.getloadavg()[0], 1),
        )
    finally:
        broker.clear()
        shutil.rmtree(place)


def memory_mb(broker: Broker) -> float:
    """What all its processes have for themselves, their shared memory counted once."""
    root = psutil.Process(broker.process.pid)
    found = 0
    for process in (root, *root.children()):
        full = process.memory_full_info()
        # pss counts a page for as many as share it; mapped files of the store are not its memory
        found += full.pss
    return found / 1e6


def _send(
    broker: Broker,
    count: int,
    size: int,
    first_ms: int,
    span_ms: int,
    moved: Moved,
    topic: str = TOPIC,
) -> float:
    """Send this many, each due at a moment of the span; how many a second that were."""
    dice = random.Random(1)
    filler = bytes(max(0, size - _BODY.size))
    began = time.monotonic()
    with Producer(broker.produce) as producer:
        for number in range(count):
            due_ms = first_ms + dice.randrange(span_ms)
            body = _BODY.pack(number, due_ms) + filler
            producer.send(topic, body, queue=number % QUEUES, deliver_at=due_ms)
            if not number % 10_000:
                moved(number, count)
        producer.flush(OUTCOME_S)
    return count / (time.monotonic() - began)


def _await_pending(broker: Broker, count: int) -> None:
    deadline = time.monotonic() + OUTCOME_S
    while broker.status()["positions"]["pending_delayed"] < count:
        if time.monotonic() > deadline:
            raise StoreUnavailable("delayed messages are not all known to the scheduler in time")
        time.sleep(0.1)


def _receive(
    broker: Broker, count: int, first_ms: int, seconds: float, moved: Moved
) -> tuple[Figures, Figures, Figures]:
    """How late each came to the consumer, and into its queue, in ms; and how often each came."""
    late, stored = np.zeros(2 * count), np.zeros(2 * count)
    counts = np.zeros(count)
    total, missing = 0, count
    deadline = time.time() + max(0.0, first_ms / 1000 - time.time()) + seconds + 60
    with Consumer(broker.consume, topic=TOPIC, start="earliest") as consumer:
        while time.time() < deadline and total < 2 * count:
            # once all have come, a moment more: something may come twice
            found = consumer.poll(timeout=0.5 if missing else 2)
            now_ms = time.time_ns() / 1e6
            if not found and not missing:
                break
            for message in found:
                number, due_ms = _BODY.unpack_from(message.body)
                late[total] = now_ms - due_ms
                stored[total] = message.store_timestamp_ms - due_ms
                missing -= not counts[number]
                counts[number] += 1
                total += 1
                if total == 2 * count:
                    break
            moved(min(total, count), count)
    return late[:total], stored[:total], counts
