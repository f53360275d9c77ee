"""A slow disk: each flush takes longer, by a millisecond to seconds, and for a while none ends.

Acknowledgements come late and are not lost: a message waits for the flush that is under way, for
one of a queue or an index file, and for its own. While the disk stalls, a sender that waits longer
than sync_flush_timeout_ms is told FLUSH_DISK_TIMEOUT, and the message is stored all the same. When
too much is pending, new messages are turned away, so memory stays bounded. No actor is taken for
frozen.
"""

from __future__ import annotations

import random
import threading
import time

from penstock.chaos.arena import Arena
from penstock.chaos.history import Sent, check_acknowledged, digest
from penstock.chaos.interposed.faulty_disk import SOURCE
from penstock.chaos.load import QUEUES, TOPIC, read_all
from penstock.chaos.machine.usage import own_memory_bytes
from penstock.chaos.storage.short_life import ShortLife, short_life
from penstock.client.core.sending.frames import Receipt, SendFuture
from penstock.client.core.sending.outbox import MAX_FULL_IN_FLIGHT
from penstock.client.sending.producer import Producer
from penstock.shared.errors import BrokerBusy, FlushTimeout, PenstockError, StoreUnavailable
from penstock.shared.loops.forms import FRAME_BYTES

DELAYS_MS = (1, 5, 20, 50, 100, 200)
# on a busy machine each hand-over from one actor to the next may have to wait for its tick
SLACK_MS = 300
PACED_S, PACE_S = 1.5, 0.02
STALL_TIMEOUT_MS = 1000
FLUSH_TIMEOUT_MS = 500
STALLS_S = (2.0, 4.0)
# what one producer may have in flight
PENDING_BYTES, POOL_BYTES = MAX_FULL_IN_FLIGHT * FRAME_BYTES, 8 << 20
# what may be pending in the broker: frames, and as much as the send queue and sockets hold
MORE_MEMORY_KIB = 64 << 10
RESUMED_S = 2.0
_BODY_BYTES = 20_000


def slow_round(arena: Arena, dice: random.Random, replay: str) -> None:
    delay_ms, stall_s = dice.choice(DELAYS_MS), dice.uniform(*STALLS_S)
    settings: dict[str, object] = {
        # no segment is made while the disk stalls
        "mapped_file_size_commit_log_bytes": PENDING_BYTES,
        "transient_store_pool_enable": dice.random() < 0.5,
        "transient_store_pool_bytes": POOL_BYTES,
        "max_pending_bytes": PENDING_BYTES,
        "sync_flush_timeout_ms": FLUSH_TIMEOUT_MS,
        "actor_stall_timeout_ms": STALL_TIMEOUT_MS,
    }
    with arena.room() as room, short_life(room, arena.library(SOURCE), settings) as life:
        wrong = [] if not (said := life.start()) else [f"no start: {said}"]
        if not said:
            wrong += _check_delay(arena, life, delay_ms)
            wrong += _check_stall(arena, life, stall_s)
            wrong += life.check_tidy()
            life.broker.stop()
            wrong += life.check_next_life()
        arena.report.acknowledged += len(life.acked)
        arena.report.add_violations(wrong, replay)


class _Paced:
    """A producer that sends at a steady pace, whatever comes back, and notes when it sent."""

    def __init__(self, life: ShortLife, name: str, producer: Producer) -> None:
        self.late: list[Sent] = []
        self.errors: list[PenstockError] = []
        self.waited_s: list[float] = []
        self._life, self._name, self._producer = life, name, producer
        self._number = 0
        self._lock = threading.Lock()

    def send_for(self, seconds: float, bytes_at_once: int) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(max(1, bytes_at_once // _BODY_BYTES)):
                self._send()
            time.sleep(PACE_S)  # keeps the pace

    def _send(self) -> None:
        queue, began = self._number % QUEUES, time.monotonic()
        body = f"{self._name}/{queue}/{self._number}/".encode().ljust(_BODY_BYTES, b".")
        self._number += 1
        try:
            future = self._producer.send(TOPIC, body, queue=queue)
        except StoreUnavailable:
            return  # the producer itself holds no more
        future.add_done_callback(lambda done: self._settled(queue, body, began, done))

    def _settled(self, queue: int, body: bytes, began: float, done: SendFuture) -> None:
        error = done.exception(0)
        with self._lock:
            if error is None:
                offset = done.result(0).queue_offset
                self.waited_s.append(time.monotonic() - began)
                self._life.acked.append(Sent(queue, offset, digest(body), 0))
            elif isinstance(error, FlushTimeout) and isinstance(error.receipt, Receipt):
                offset = error.receipt.queue_offset
                self.late.append(Sent(queue, offset, digest(body), 0))
            else:
                self.errors.append(error)


def _check_delay(arena: Arena, life: ShortLife, delay_ms: int) -> list[str]:
    """Check that slower flushes delay acknowledgements too, and by at most three flushes."""
    life.disk.delay(delay_ms)
    with Producer(life.broker.produce, timeout_ms=30_000, ack="durable") as producer:
        paced = _Paced(life, "paced", producer)
        paced.send_for(PACED_S, _BODY_BYTES)
        producer.flush(60)
    life.disk.delay(0)
    arena.report.add_fault("slow disk")
    arena.moved()
    for waited_s in paced.waited_s:
        arena.report.add_wait(f"flushes that take {delay_ms} ms longer", waited_s)
    p99_ms = sorted(paced.waited_s)[int(len(paced.waited_s) * 0.99)] * 1000
    wrong = [f"a send fails on a slow disk: {error}" for error in paced.errors[:1]]
    if p99_ms > 3 * delay_ms + SLACK_MS:
        wrong.append(f"with flushes of {delay_ms} ms, 1 % of messages wait over {p99_ms:.0f} ms")
    return wrong


def _check_stall(arena: Arena, life: ShortLife, stall_s: float) -> list[str]:
    """Send more than the broker may keep while no flush ends."""
    before_kib = _memory_kib(life)
    life.disk.delay(3_600_000)
    with Producer(life.broker.produce, timeout_ms=30_000, ack="durable") as producer:
        flood = _Paced(life, "flood", producer)
        # in a thread, because it blocks when the producer holds no more
        sending = threading.Thread(target=flood.send_for, args=(stall_s, 20 * _BODY_BYTES))
        sending.start()
        time.sleep(stall_s)  # the length of the stall
        more_kib = _memory_kib(life) - before_kib
        life.disk.delay(0)
        healed = time.monotonic()
        life.await_send(10)
        took = time.monotonic() - healed
        sending.join()
        producer.flush(60)
    arena.report.add_fault("disk that stands still")
    arena.moved()
    wrong = [f"told in a stall: {e}" for e in flood.errors if not isinstance(e, BrokerBusy)][:1]
    if not flood.late:
        wrong.append("nobody is told FLUSH_DISK_TIMEOUT while the disk stands still")
    if more_kib > MORE_MEMORY_KIB:
        wrong.append(f"a disk that stands still costs {more_kib} KiB of memory")
    if took > RESUMED_S:
        wrong.append(f"a message is taken {took:.2f} s after the disk moves")
    life.broker.await_dispatched()
    arena.report.add_recovery("disk stood still", took, time.monotonic() - healed)
    stored = read_all(life.broker.consume)
    wrong += check_acknowledged(life.acked, stored, "which were acknowledged late")
    return wrong + check_acknowledged(flood.late, stored, "told FLUSH_DISK_TIMEOUT")


def _memory_kib(life: ShortLife) -> int:
    """The private memory of the broker's processes, without files and shared memory."""
    return sum(own_memory_bytes(pid) for pid in life.broker.processes()) >> 10
