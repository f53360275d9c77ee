"""Many consumers in one process and one thread: each is the client's own core and a connection.

    python -m penstock.bench.loads.many_consumers ORDER      a FollowMany, as JSON

It follows the protocol of load processes (load.py). A thousand programs with a consumer each would
need more memory than a measuring machine has; the broker sees no difference.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
import zmq

from penstock.bench.loads.load import ANSWER_TIMEOUT_S, STAMP, Seen, await_go, thinned
from penstock.bench.loads.seats import Seats
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import longest_answer_bytes
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.loops.active import has_message
from penstock.shared.wire.sockets import dial


class FollowMany(msgspec.Struct, frozen=True):
    """`consumers` follow a topic, each through a socket: `warm` messages before they are ready,
    then `messages`. Each message begins with the moment at which it was due."""

    endpoint: str
    topic: str
    consumers: int
    warm: int
    messages: int


class Seat:
    """One consumer."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], order: FollowMany) -> None:
        now_ms = time.time_ns() // 1_000_000
        timeout_ms = ANSWER_TIMEOUT_S * 1000
        self.core = ConsumerCore(order.endpoint, order.topic, now_ms, timeout_ms=timeout_ms)
        longest = longest_answer_bytes(MAX_BODY_BYTES)
        self.socket: Any = dial(context, order.endpoint, longest)
        self.taken = 0
        self.latencies_ms: list[float] = []

    def turn(self, now_ms: int) -> None:
        """Take what has come, and ask for more."""
        self._hear(now_ms)
        for parts in self.core.outgoing(now_ms):
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                self.core.not_connected(now_ms)
        # a send may have consumed the readiness event of the socket's descriptor
        self._hear(now_ms)

    def _hear(self, now_ms: int) -> None:
        while has_message(self.socket):
            self.core.received(self.socket.recv_multipart(zmq.NOBLOCK), now_ms)
            batch = self.core.take()
            self.taken += len(batch)
            now_ns = time.monotonic_ns()
            stamps = (STAMP.unpack_from(message.body)[0] for message in batch)
            self.latencies_ms += ((now_ns - due_ns) / 1e6 for due_ns in stamps)


class Loop:
    """Serves all consumers of a process."""

    def __init__(self, order: FollowMany) -> None:
        self._seats = Seats(lambda context, _: Seat(context, order), order.consumers)
        self.seats = self._seats.all

    def run(self, count: int) -> None:
        """Run until each has taken `count` messages in all. Raises SystemExit if fewer or more
        come."""
        heard = time.monotonic()
        seats, waiting = self.seats, set(self.seats)
        while waiting:
            now = time.monotonic()
            for seat in seats:
                before = seat.taken
                seat.turn(time.monotonic_ns() // 1_000_000)
                if seat.taken > before:
                    heard = now
                if seat.taken >= count:
                    waiting.discard(seat)
            seats = self._seats.heard()
            if now > heard + ANSWER_TIMEOUT_S:
                raise SystemExit(f"{len(waiting)} consumers wait for messages that do not come")
        if more := [seat.taken for seat in self.seats if seat.taken > count]:
            raise SystemExit(f"{more[0]} messages came where {count} were sent")


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=FollowMany)
    loop = Loop(order)
    loop.run(order.warm)
    for seat in loop.seats:
        seat.latencies_ms.clear()
    await_go()
    began, cpu_began = time.perf_counter(), time.process_time()
    loop.run(order.warm + order.messages)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    latencies_ms = [each for seat in loop.seats for each in seat.latencies_ms]
    taken, warm = order.consumers * order.messages, order.consumers * order.warm
    print(msgspec.json.encode(Seen(taken, warm, seconds, cpu_s, thinned(latencies_ms))).decode())


if __name__ == "__main__":
    main()
