"""Sends records that were read to the log again, whole, from ordinary, synchronous code.

Unlike a Producer's message, a record keeps its UNIQ_KEY, its times and its born host. Not
thread-safe, and not to be used across a fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import zmq

from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.core.groups.send_back import SendBack
from penstock.client.core.timeouts import silent
from penstock.client.groups.member_loop import Line
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import Record
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES

# How many records may be without an outcome: enough for full frames.
AT_ONCE = 500


class Resender:
    """Sends records to a broker, which may be silent or take nothing for `timeout_ms`."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: Store | None = None,
        timeout_ms: int = 30_000,
        clock: Clock | None = None,
    ) -> None:
        """Raises ConnectError."""
        self._clock = clock or SystemClock()
        self._timeout_ms = timeout_ms
        self._address = BrokerAddress("producers", endpoint, store, timeout_ms, 0)
        self._address.meet()
        self._core = SendBack("resender")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        # the sockets that the last poll found ready
        self._ready: set[Any] = set()
        self._line = Line(
            self._context, self._address, self._core.aim, PRODUCE_ANSWER_BYTES, self._poller
        )

    def __enter__(self) -> Resender:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def send(
        self, records: Iterable[Record], topic: str, queues: int
    ) -> Iterator[tuple[Record, PenstockError | None]]:
        """Send records for this topic, which is created if needed. Yields each with its outcome, in
        any order; a record without an error is on disk. Raises BrokerTimeout, or the broker's
        refusal if it has refused everything for the whole timeout.
        """
        self._core.need_topic(topic, queues)
        heard_ms = moved_ms = self._clock.monotonic_ms()
        coming = iter(records)
        is_over = False
        while not is_over or len(self._core):
            while not is_over and len(self._core) < AT_ONCE:
                record = next(coming, None)
                if record is None:
                    is_over = True
                else:
                    self._core.put(record, record)
            if self._turn():
                heard_ms = self._clock.monotonic_ms()
            yield from (outcomes := self._core.outcomes())
            now_ms, trouble = self._clock.monotonic_ms(), self._core.trouble
            if outcomes or trouble is None:
                moved_ms = now_ms
            if len(self._core) and now_ms - moved_ms > self._timeout_ms and trouble is not None:
                raise trouble
            if len(self._core) and now_ms - heard_ms > self._timeout_ms:
                raise silent(self._address.name, self._timeout_ms)

    def _turn(self) -> bool:
        """Send what is to be sent, and take what comes. Returns whether anything came."""
        now_ms = self._clock.monotonic_ms()
        self._line.look_after(now_ms, self._ready)
        if not self._line.send(list(self._core.outgoing(now_ms))):
            self._core.not_connected(now_ms)
        if len(self._core):
            found = self._poller.poll(max(1, self._core.wait_ms(now_ms)))
            self._ready = {each for each, _ in found}
        heard = False
        for parts in self._line.received(self._ready):
            self._core.received(parts, self._clock.monotonic_ms())
            heard = True
        return heard

    def close(self) -> None:
        """Disconnect."""
        self._line.close()
        self._context.term()
