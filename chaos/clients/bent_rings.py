"""A producer with a ring that follows no rules: spans anywhere, bytes that change while the writer
reads them, and in the end a truncated file.

The writer stores a frame whole, as it was at some moment, or refuses it, and survives.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from penstock.chaos.history import Sent, digest
from penstock.chaos.load import QUEUES, TOPIC
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.memory.ring_file import RING_BYTES, ring_path, take_ring
from penstock.shared.memory.run_directory import Run
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Append, Appended, QueueRun, RingSpan, encode
from penstock.shared.wire.sockets import dial

ANSWER_MS = 10_000
_HOST = pack_host("127.0.0.1", 1)
_FAR = (1 << 62) - 1


class BentRing:
    """One producer, its session and its ring."""

    def __init__(self, run: Run, dice: random.Random) -> None:
        self._dice = dice
        self._run = run
        self._context: zmq.Context[Any] = zmq.Context()
        self._peer = dial(self._context, run.endpoints.produce)
        self._producer, self._session, self._seq = dice.getrandbits(60), 0, 1
        self._hello()
        opened = self._ask(encode(messages.OpenRing(1, self._producer)))
        if not isinstance(opened, messages.RingOpened):
            raise StoreUnavailable("the broker gave no ring", opened)
        self.number = opened.ring
        self.bytes: mmap.mmap = take_ring(run.run_id, opened.ring, opened.size, opened.token)

    def _ask(self, *parts: bytes) -> Any:
        self._peer.send_multipart(parts)
        if not self._peer.poll(ANSWER_MS):
            raise StoreUnavailable("a request got no answer", f"within {ANSWER_MS} ms")
        return messages.decode_produce_answer(self._peer.recv_multipart()[0])

    def _hello(self) -> None:
        self._session += 1
        self._ask(encode(messages.Hello(self._producer, self._session, self._seq, 0)))

    def send(self, span: RingSpan, run: QueueRun, payload: bytes = b"") -> Any:
        """The answer to a frame that is said to stand there."""
        header = Append(self._producer, self._session, self._seq, (run,), "written", False, span)
        answer = self._ask(encode(header), payload)
        self._seq += 1
        if not isinstance(answer, Appended):
            self._hello()  # a refusal may have ended the session
        return answer

    def bend(self, span: RingSpan) -> RingSpan:
        """The same span with something wrong."""
        replace, dice = msgspec.structs.replace, self._dice
        edge = dice.choice((0, 1, span.length - 1, span.length + 1, RING_BYTES, _FAR, 1 << 32))
        return dice.choice(
            (
                replace(span, ring=dice.choice((0, self.number ^ 1, _FAR))),
                replace(span, offset=edge),
                replace(span, length=edge),
                replace(span, offset=RING_BYTES - span.length + 1),
                replace(span, offset=edge, length=_FAR - edge),
            )
        )

    def make_shorter(self) -> None:
        """Truncate the file. After this nobody may touch the mapping."""
        os.truncate(ring_path(self._run.path, self.number), 4096)

    def close(self) -> None:
        self.bytes.close()
        self._peer.close(linger=0)
        self._context.term()


def throw_rings(
    run: Run, dice: random.Random, frames: int, moved: Callable[[], None]
) -> tuple[list[Sent], list[str]]:
    """Send frames through a ring. Returns what was acknowledged, and what is wrong."""
    ring, acked = BentRing(run, dice), []
    wrong: list[str] = []
    try:
        for number in range(frames):
            acked += _throw(ring, number, dice)
            moved()
        ring.make_shorter()
        if isinstance(ring.send(RingSpan(ring.number, 0, 8192), QueueRun(TOPIC, 0, 1)), Appended):
            wrong.append("a frame was stored that is in no ring any more")
    finally:
        ring.close()
    if not acked:
        wrong.append("no frame in a ring was stored")
    return acked, wrong


def _throw(ring: BentRing, number: int, dice: random.Random) -> list[Sent]:
    """Send one frame, right or wrong. Returns what of it was acknowledged."""
    queue, count = dice.randrange(QUEUES), dice.choice((1, 20, 200))
    bodies = [
        b"ring/%d/%d/" % (queue, number * 1000 + n) + dice.randbytes(500) for n in range(count)
    ]
    frame = b"".join([_record(queue, body, dice) for body in bodies])
    at = dice.randrange(RING_BYTES - len(frame))
    span, run = RingSpan(ring.number, at, len(frame)), QueueRun(TOPIC, queue, count)
    ring.bytes[at : at + len(frame)] = frame
    kind = dice.randrange(4)
    if kind == 0:
        answer = ring.send(ring.bend(span), run)
    elif kind == 1:
        answer = ring.send(span, run, payload=dice.choice((b"x", frame)))
    elif kind == 2:
        with _changing(ring.bytes, at, len(frame), random.Random(number)):
            answer = ring.send(span, run)
    else:
        answer = ring.send(span, run)
    if not isinstance(answer, Appended):
        return []
    stops = [*(stored.first for stored in answer.runs[1:]), count]
    return [
        Sent(queue, stored.queue_offset + n - stored.first, digest(bodies[n]), 0)
        for stored, stop in zip(answer.runs, stops, strict=True)
        for n in range(stored.first, stop)
    ]


@contextmanager
def _changing(ring: mmap.mmap, at: int, size: int, dice: random.Random) -> Iterator[None]:
    """While the block runs, bits of the frame flip back and forth."""
    stopping = threading.Event()

    def flip() -> None:
        while not stopping.is_set():
            place = at + dice.randrange(size)
            ring[place] ^= 1
            ring[place] ^= 1

    thread = threading.Thread(target=flip, name="bits")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _record(queue: int, body: bytes, dice: random.Random) -> bytes:
    properties = encode_properties({"UNIQ_KEY": dice.randbytes(8).hex()})
    return encode_record(
        Record(TOPIC, body, queue_id=queue, born_host=_HOST, properties=properties)
    )
