"""How late do delayed messages come, and what do many waiting ones cost?

A broker of its own, a producer and then a consumer. Each message is for a moment of its own within
the time, and has that moment in its body. All should be sent before the first is due; if the
producer is too slow for that, the result says how many were `sent_late`, and their lateness counts
from when they were stored. With kills, actors and the whole broker die while messages come due.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from penstock.bench.loads.accounts import Accounts
from penstock.chaos.broker import Broker, fixed_ports
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable

TOPIC, QUEUES = "bench", 4
OUTCOME_S = 120
# Progress that has not moved within this time counts as stuck.
STALL_S = 60
# Time between the last message that is sent and the first that is due.
PAUSE_S = 2.0
# Sent first, to measure this machine's rate: the window begins when all messages are sent.
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
    """One run. Lateness in ms, from the due time until the copy is stored, and until the consumer
    has it; memory in MB, of all processes."""

    messages: int
    seconds: float
    pending: int
    kills: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    stored_p99_ms: float
    stored_max_ms: float
    sent_late: int  # already due when the producer had sent them
    early: int
    lost: int
    twice: int
    sent_per_s: int
    cpu_us: dict[str, float]  # CPU time of each process for a message, sent, kept and delivered
    memory_mb: float  # the increase since before anything waited
    plain_start_s: float  # start after a kill without pending messages; 0 without --pending
    start_s: float  # the same with them
    load_1m: float


def bench_delay(
    messages: int, seconds: float, pending: int, kills: int, size: int, moved: Moved
) -> Delay:
    """Deliver `messages` at random times within `seconds`, while `pending` others wait for hours.

    Meanwhile an actor or the broker is killed `kills` times. Raises StoreUnavailable.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-delay-"))
    broker = Broker(place, {**SETTINGS, **fixed_ports()})
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
            producer.create_topic(TRIAL_TOPIC, QUEUES)
        before_mb = memory_mb(broker)
        plain_s = start_s = 0.0
        if pending:
            plain_s = _restart(broker)
            now_ms = time.time_ns() // 1_000_000
            _send(broker, pending, size, now_ms + HOUR_MS, 39 * DAY_MS, moved)
            _await_pending(broker, pending)
            start_s = _restart(broker)
            _await_pending(broker, pending)
        memory = memory_mb(broker) - before_mb
        first_ms = time.time_ns() // 1_000_000
        trial = _send(broker, TRIAL, size, first_ms, 1000, moved, TRIAL_TOPIC)
        lead_ms = round((1.5 * messages / trial + PAUSE_S) * 1000)
        first_ms = time.time_ns() // 1_000_000 + lead_ms
        accounts = Accounts({**broker.actors(), "producer": os.getpid()})
        used = accounts.cpu_s()
        rate = _send(broker, messages, size, first_ms, round(seconds * 1000), moved)
        used["producer"] -= accounts.cpu_s()["producer"]
        span_ms = round(seconds * 1000)
        came = _receive(broker, messages, (first_ms, span_ms), (pending, kills), moved)
        for name, spent in accounts.cpu_s().items():
            used[name] = -used[name] if name == "producer" else spent - used[name]
        memory = max(memory, memory_mb(broker) - before_mb)
    finally:
        broker.clear()
        shutil.rmtree(place)
    late = np.percentile(came.late, [50, 99, 100]) if len(came.late) else np.zeros(3)
    stored = np.percentile(came.stored, [99, 100]) if len(came.stored) else np.zeros(2)
    return Delay(
        messages=messages,
        seconds=seconds,
        pending=pending,
        kills=kills,
        p50_ms=round(float(late[0]), 1),
        p99_ms=round(float(late[1]), 1),
        max_ms=round(float(late[2]), 1),
        stored_p99_ms=round(float(stored[0]), 1),
        stored_max_ms=round(float(stored[1]), 1),
        sent_late=came.sent_late,
        early=int((came.stored < 0).sum()),
        lost=int((came.counts == 0).sum()),
        twice=int((came.counts > 1).sum()),
        sent_per_s=round(rate),
        # the account of a replaced process says nothing
        cpu_us={} if kills else {k: round(v / messages * 1e6, 1) for k, v in used.items()},
        memory_mb=round(memory, 1),
        plain_start_s=round(plain_s, 2),
        start_s=round(start_s, 2),
        load_1m=round(psutil.getloadavg()[0], 1),
    )


def _restart(broker: Broker) -> float:
    """Kill it and start it again. Returns the seconds that the start takes."""
    broker.kill()
    return broker.start()


def memory_mb(broker: Broker) -> float:
    """The private memory of all its processes: pages of the store's files are the kernel's cache,
    and count as memory of whoever read them last."""
    return Accounts({"broker": broker.process.pid}).memory()["broker"].own_mib * (1 << 20) / 1e6


def _send(
    broker: Broker,
    count: int,
    size: int,
    first_ms: int,
    span_ms: int,
    moved: Moved,
    topic: str = TOPIC,
) -> float:
    """Send this many, each due at a moment of the span; returns how many a second."""
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
    most, moved_s = -1, time.monotonic()
    while (known := broker.status()["positions"]["pending_delayed"]) < count:
        if known > most:
            most, moved_s = known, time.monotonic()
        if time.monotonic() > moved_s + STALL_S:
            raise StoreUnavailable("the scheduler does not know all delayed messages", known)
        time.sleep(0.1)


class _Came(NamedTuple):
    """How late each message came to the consumer, and into its queue; and how often it came."""

    late: Figures
    stored: Figures
    counts: Figures
    sent_late: int


def _receive(
    broker: Broker,
    count: int,
    window: tuple[int, int],
    others: tuple[int, int],
    moved: Moved,
) -> _Came:
    (first_ms, span_ms), (pending, kills) = window, others
    late, stored = np.zeros(2 * count), np.zeros(2 * count)
    counts = np.zeros(count)
    total, missing, sent_late = 0, count, 0
    dice = random.Random(2)
    strikes = sorted(first_ms + dice.randrange(span_ms) for _ in range(kills))
    last_s = time.monotonic() + max(0.0, first_ms / 1000 - time.time())
    was_late = time.time_ns() // 1_000_000 > first_ms
    with Consumer(broker.consume, topic=TOPIC, start="earliest") as consumer:
        while time.monotonic() < last_s + span_ms / 1000 + STALL_S and total < 2 * count:
            if strikes and time.time_ns() // 1_000_000 >= strikes[0]:
                _strike(broker, dice)
                strikes.pop(0)
                # on a busy machine a start takes longer than the time between strikes: then nothing
                # comes between them, but nothing is lost
                last_s = max(last_s, time.monotonic())
            found = consumer.poll(timeout=0.1 if strikes else 0.5)
            now_ms = time.time_ns() / 1e6
            for message in found:
                number, due_ms = _BODY.unpack_from(message.body)
                if was_late and (kept_ms := int(message.properties["TIMER_ENQUEUE_MS"])) > due_ms:
                    due_ms, sent_late = kept_ms, sent_late + 1
                late[total] = now_ms - due_ms
                stored[total] = message.store_timestamp_ms - due_ms
                missing -= not counts[number]
                counts[number] += 1
                total += 1
                if total == 2 * count:
                    break
            if found:
                last_s = time.monotonic()
            elif not missing and not strikes and _is_over(broker, pending):
                break
            moved(min(total, count), count)
    return _Came(late[:total], stored[:total], counts, sent_late)


def _is_over(broker: Broker, pending: int) -> bool:
    """Whether no message is on its way that could come twice."""
    positions = broker.status()["positions"]
    over = positions["pending_delayed"] <= pending
    return over and bool(positions["dispatched"] == positions["wrote"])


def _strike(broker: Broker, dice: random.Random) -> None:
    """Kill the scheduler, another actor, or the whole broker."""
    struck = dice.choice(["scheduler"] * 4 + ["writer", "committer", "flusher", "reput", "broker"])
    if struck == "broker":
        _restart(broker)
    else:
        broker.strike(struck, SIGKILL)
