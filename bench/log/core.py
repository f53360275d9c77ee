"""What the loops that run once per message cost, compiled and in Python, each by itself.

It measures CPU time of this thread, so other load on the machine counts little, and takes the
median of several runs. A frame is what a producer sends at once; the log is that frame, stamped.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec

from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops import active
from penstock.shared.loops.forms import DraftRun, Stamp
from penstock.shared.loops.pure import (
    answer as pure_answer,
)
from penstock.shared.loops.pure import (
    encode as pure_encode,
)
from penstock.shared.loops.pure import (
    frame as pure_frame,
)
from penstock.shared.loops.pure import (
    message as pure_message,
)
from penstock.shared.loops.pure import (
    queues as pure_queues,
)
from penstock.shared.loops.pure import (
    walk as pure_walk,
)

FRAME_BYTES = 256 << 10
TOPIC, NAME = b"orders", b"\6orders"
NOW_MS = 1_700_000_000_000


class LoopCost(msgspec.Struct, frozen=True):
    """The cost of one loop for a message of a body size. MB are 10**6 bytes of records."""

    loop: str
    body_bytes: int
    native: bool
    ns_per_message: float
    mb_per_s: float


def bench_core(body_bytes: int, runs: int = 9) -> Iterator[LoopCost]:
    """Each loop in each form that this installation has, compiled first."""
    for loops in _forms():
        made, count = _frame(loops, body_bytes)
        for name, call in _calls(loops, body_bytes, made):
            ns = median(_cpu_ns(call) for _ in range(runs)) / count
            speed = len(made) / count / ns * 1000
            yield LoopCost(name, body_bytes, loops.native, round(ns, 1), round(speed, 1))


def _forms() -> list[Any]:
    pure = SimpleNamespace(native=False)
    for module in (pure_encode, pure_frame, pure_message, pure_answer, pure_queues, pure_walk):
        vars(pure).update(vars(module))
    if active.why_pure:
        return [pure]
    return [SimpleNamespace(**{**vars(active), "native": True}), pure]


def _frame(loops: Any, body_bytes: int) -> tuple[bytes, int]:
    frame = bytearray(2 * FRAME_BYTES + body_bytes)
    starts = _maker(loops).pack(frame, _run(body_bytes))
    return bytes(frame[: starts[-1]]), len(starts) - 1


def _maker(loops: Any) -> Any:
    return loops.RecordMaker(pack_host("10.1.2.3", 0), KeyOrigin("0A" * 10, 0), Shape())


def _run(body_bytes: int) -> list[DraftRun]:
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    count = max(1, FRAME_BYTES // (body_bytes + 150))
    return [(NAME, 1, [body[:body_bytes]] * count, array("q", [NOW_MS << 16]) * count)]


def _calls(loops: Any, body_bytes: int, frame: bytes) -> Iterator[tuple[str, Callable[[], Any]]]:
    maker, run, buffer = _maker(loops), _run(body_bytes), bytearray(len(frame))
    runs = [(TOPIC, 1, len(run[0][2]))]
    starts = loops.check_frame(frame, runs, 1 << 30)
    offsets = list(range(len(starts) - 1))
    log = memoryview(bytearray(len(frame)))
    stamp = Stamp(NOW_MS, pack_host("10.1.2.3", 10911))
    loops.put_stamped(log, frame, starts, offsets, 0, stamp)
    stored = bytes(log)
    yield "encode", lambda: maker.pack(buffer, run)
    yield "check", lambda: loops.check_frame(frame, runs, 1 << 30)
    yield "check properties", lambda: loops.check_properties(frame, starts, False)
    yield "copy and stamp", lambda: loops.put_stamped(log, frame, starts, offsets, 0, stamp)
    queues = loops.QueueNumbers()
    yield "dispatch", lambda: loops.dispatch(log, 0, queues)
    yield "dispatch with keys", lambda: loops.dispatch(log, 0, queues, keyed=True)
    yield "scan", lambda: loops.record_starts(stored, 0, Checksum.BODY)
    place, queue_offsets = (0, len(log)), (0, len(starts))

    def messages() -> list[pure_message.Message]:
        found: list[pure_message.Message]
        found, _, _ = loops.messages(stored, place, 1, queue_offsets, MAX_BODY_BYTES, b"name")
        return found

    yield "messages", messages
    yield "messages and bodies", lambda: [each.body for each in messages()]
    asked = stored, place, 1, queue_offsets, MAX_BODY_BYTES, b"name"
    yield "bodies", lambda: loops.bodies(*asked)


def _cpu_ns(call: Callable[[], Any], least_ns: int = 2_000_000) -> float:
    """The CPU time of one call, repeated until it can be measured."""
    calls, began = 0, time.thread_time_ns()
    while True:
        call()
        calls += 1
        spent = time.thread_time_ns() - began
        if spent >= least_ns:
            return spent / calls
