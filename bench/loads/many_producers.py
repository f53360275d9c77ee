"""Many producers in one process and one thread: each is the client's own core and a connection.

    python -m penstock.bench.loads.many_producers ORDER      a SendMany, as JSON

It follows the protocol of load processes (load.py). A thousand programs with a producer each would
need more memory than a measuring machine has; the broker sees no difference.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle
from typing import Any

import msgspec
import zmq

from penstock.bench.loads.load import ANSWER_TIMEOUT_S, Seen, await_go, body_of, thinned
from penstock.bench.loads.seats import Seats
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.sending.settled import Settled
from penstock.shared.formats.message_id import key_origin
from penstock.shared.loops.active import has_message
from penstock.shared.loops.forms import NO_ROOM
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

LOOPBACK = bytes((127, 0, 0, 1))


class SendMany(msgspec.Struct, frozen=True):
    """`producers` send for `seconds`, each with at most `in_flight` unanswered messages, after a
    warm-up of `warm_s`. The topics exist."""

    endpoint: str
    topics: list[str]
    body_bytes: int
    ack: str
    producers: int
    in_flight: int
    seconds: float
    warm_s: float = 1.0


class Seat:
    """One producer."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], order: SendMany, at: int) -> None:
        encoder = Encoder(LOOPBACK, key_origin(LOOPBACK, time.time_ns() // 1_000_000))
        packer = Packer(encoder, FrameRing(False))
        timeout_ms = ANSWER_TIMEOUT_S * 1000
        self.core = ProducerCore(order.endpoint, Settled(), timeout_ms, order.ack, packer)
        self.socket: Any = dial(context, order.endpoint, PRODUCE_ANSWER_BYTES)
        # so that they do not all begin with the same topic
        self._topics = cycle(order.topics[at % len(order.topics) :] + order.topics)
        self._body, self._ack = body_of(order.body_bytes), order.ack
        self._in_flight = order.in_flight
        self.sent = 0
        # a message whose latency is sampled, and when it was sent
        self._sample: tuple[SendFuture, float] | None = None
        self.latencies_ms: list[float] = []

    def fill(self, now_ms: int) -> None:
        """Send as many as may be unanswered."""
        core, intake = self.core, self.core.intake
        while intake.unsettled < self._in_flight:
            topic = next(self._topics)
            given = topic, self._body, None, None, None, None, self._ack, now_ms
            taken = intake.take(*given)
            if taken is NO_ROOM:
                core.open_frame(self._ack)
                taken = intake.take(*given)
            if taken is None:  # the topic's queues are not known yet
                message = BatchMessage(self._body)
                taken = core.send(topic, message, None, None, self._ack, True, now_ms)
            self._sample = self._sample or (taken, time.perf_counter())
            self.sent += 1

    def turn(self, now_ms: int) -> None:
        for parts in self.core.outgoing(now_ms):
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                self.core.not_connected(now_ms)
                return

    def hear(self, now_ms: int) -> None:
        while has_message(self.socket):
            self.core.received(self.socket.recv_multipart(zmq.NOBLOCK), now_ms)
        if self._sample is not None and self._sample[0].done():
            self.latencies_ms.append((time.perf_counter() - self._sample[1]) * 1000)
            self._sample = None


class Loop:
    """Serves all producers of a process."""

    def __init__(self, order: SendMany) -> None:
        self._seats = Seats(lambda context, at: Seat(context, order, at), order.producers)
        self.seats = self._seats.all

    @property
    def sent(self) -> int:
        return sum(seat.sent for seat in self.seats)

    def run(self, seconds: float) -> None:
        """Send for this long, then wait for all answers. Raises SystemExit if some do not come, or
        a message has failed."""
        until = time.monotonic() + seconds
        seats, waiting = self.seats, set(self.seats)
        while waiting:
            now = time.monotonic()
            self._serve(seats, now < until, waiting)
            seats = self._seats.heard()
            if now > until + ANSWER_TIMEOUT_S:
                raise SystemExit(f"{len(waiting)} producers have no answer")
        if lost := [found for seat in self.seats if (found := seat.core.failures.take())]:
            raise SystemExit(f"{len(lost)} producers failed: {lost[0].error}")

    def _serve(self, seats: list[Seat], sends: bool, waiting: set[Seat]) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        for seat in seats:
            seat.hear(now_ms)
            if sends:
                seat.fill(now_ms)
            seat.turn(now_ms)
            # a send may have consumed the readiness event of the socket's descriptor
            seat.hear(now_ms)
            seat.core.tick(now_ms)
            if not sends and not seat.core.intake.unsettled:
                waiting.discard(seat)


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=SendMany)
    loop = Loop(order)
    loop.run(order.warm_s)
    warm = loop.sent
    for seat in loop.seats:
        seat.latencies_ms.clear()
    await_go()
    began, cpu_began = time.perf_counter(), time.process_time()
    loop.run(order.seconds)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    latencies_ms = [each for seat in loop.seats for each in seat.latencies_ms]
    seen = Seen(loop.sent - warm, warm, seconds, cpu_s, thinned(latencies_ms))
    print(msgspec.json.encode(seen).decode(), flush=True)


if __name__ == "__main__":
    main()
