"""A consumer's side of its socket: sends the core's requests, hands it the answers.

This and ZeroMQ are imported when a consumer connects, so that a program which only names the class
waits for neither. Not thread-safe.
"""

from __future__ import annotations

import zmq

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.closing import closer
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import longest_answer_bytes
from penstock.shared.clock import Clock
from penstock.shared.wire.sockets import dial

# A shorter frame is copied: keeping ZeroMQ's frame alive would cost more memory than the copy.
_LONG_FRAME_BYTES = 64 << 10


def unframed(parts: list[zmq.Frame]) -> list[bytes | memoryview]:
    """The contents of frames: short ones are copied, a long one is a view that keeps it alive."""
    return [part.buffer if len(part) >= _LONG_FRAME_BYTES else part.bytes for part in parts]


class ConsumeLink:
    """Owns the socket of one consumer, and closes it by itself if `owner` forgets to."""

    def __init__(
        self,
        owner: object,
        name: str,
        core: ConsumerCore,
        address: BrokerAddress,
        max_body_bytes: int,
        clock: Clock,
    ) -> None:
        self._core, self._address, self._clock = core, address, clock
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = dial(
            context, address.endpoint, longest_answer_bytes(max_body_bytes)
        )
        self._lost = LostConnection(self._socket)
        self.close = closer(owner, name, self._lost, self._socket, context)

    @property
    def is_closed(self) -> bool:
        return self._socket.closed

    def wait(self, wait_ms: int) -> None:
        """Wait until an answer comes or a connection is lost."""
        if not self._core.is_waiting_long:
            self._socket.poll(wait_ms)
            return
        ready, _, _ = zmq.select([self._socket, self._lost.events], [], [], wait_ms / 1000)
        if self._lost.events in ready and self._lost.take(self._clock.monotonic_ms()):
            self._core.connection_lost()

    def exchange(self, now_ms: int) -> None:
        """Take what has come in, and ask for more."""
        core = self._core
        if core.aim.away:
            self._address.follow(self._socket, core.aim, now_ms)
            if self._lost.dial_again(self._address.endpoint, now_ms):
                core.given_up(int(self._socket.maxmsgsize))
        while True:
            try:
                answer = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            core.received(unframed(answer), now_ms)
            if core.has_unread:
                core.fetched(core.fetch(now_ms))
        for parts in core.outgoing(now_ms):
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                core.not_connected(now_ms)
