"""The asyncio twin of penstock.client.reading.consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import zmq
import zmq.asyncio

from penstock.client.aio.link import Link
from penstock.client.connecting.broker_address import Store, check_one
from penstock.client.core.arguments import check_timeout
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Message
from penstock.client.core.selection import choose
from penstock.client.core.start import Start
from penstock.client.reading.consume_link import unframed
from penstock.client.reading.consumer import BOTH_NAMED_HINT
from penstock.client.reading.consumer_state import ConsumerState
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.formats.compression import MAX_BODY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")


class Consumer(Link, ConsumerState):
    """Reads a topic from a coroutine. See `penstock.client.Consumer` for the arguments.

    async with Consumer(store="./store", topic="orders") as consumer:
        async for message in consumer:
            ...
    """

    def __init__(
        self,
        endpoint: str | None = None,
        topic: str = "",
        *,
        store: Store | None = None,
        start: Start = "earliest",
        queues: Collection[int] | None = None,
        follow: bool = True,
        tags: str = "",
        sql: str = "",
        group: str = "",
        timeout_ms: int = 30_000,
        max_body_bytes: int = MAX_BODY_BYTES,
        direct: bool = True,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        check_one(endpoint, store, BOTH_NAMED_HINT)
        super().__init__(endpoint, store, timeout_ms, wait_for_broker_ms, max_body_bytes)
        self._clock = clock or SystemClock()
        now_ms = self._clock.now_ms()
        self._core = ConsumerCore(
            self._address.name,
            topic,
            now_ms,
            start=start,
            queues=queues,
            follow=follow,
            selection=choose(tags, sql, group, now_ms),
            timeout_ms=timeout_ms,
            max_body_bytes=max_body_bytes,
            direct=direct,
            hears_losses=True,
        )
        # what has come and `bodies` has not returned yet
        self._bodies: Iterator[bytes | Message] = iter(())
        self._aim, self._given_up = self._core.aim, self._core.given_up

    async def __aiter__(self) -> AsyncIterator[Message]:
        while batch := await self.poll(None):
            self._rest = iter(batch)
            for message in self._rest:
                yield message

    async def bodies(self) -> AsyncIterator[bytes]:
        """The bodies alone. See `penstock.client.Consumer.bodies`."""
        while True:
            for each in self._bodies:
                yield each.body if isinstance(each, Message) else each
            batch = await self._poll(None, self._take_bodies)
            if not batch:
                return
            self._bodies = iter(batch)

    async def poll(self, timeout: float | None) -> list[Message]:
        """The messages that are there. Waits up to `timeout` seconds for one (None: for ever)."""
        return await self._poll(timeout, self._take)

    async def poll_arrow(
        self, timeout: float | None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The messages of one `poll` as rows. See `penstock.client.Consumer.poll_arrow`."""
        from penstock.client.arrow.columns import Columns

        made = Columns(columns, self._core.max_body_bytes, self._core.topic)
        return made.together(await self._poll(timeout, self._taking(made)))

    async def _poll(self, timeout: float | None, take: Callable[[], list[_T]]) -> list[_T]:
        timeout = check_timeout(timeout)
        deadline_ms = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000
        while True:
            now_ms = self._clock.monotonic_ms()
            await self._exchange(now_ms)
            batch = take()
            if batch or self._core.finished:
                return batch
            left_ms = 1 << 30 if deadline_ms is None else deadline_ms - now_ms
            if left_ms <= 0:
                return []
            if not self._core.ready:
                wait_ms = min(left_ms, max(1, self._core.wait_ms(now_ms)))
                await self._wait(int(wait_ms))

    async def _wait(self, wait_ms: int) -> None:
        """Wait until an answer comes or a connection is lost."""
        if not self._core.is_waiting_long:
            await self._socket.poll(wait_ms)
            return
        lost, poller = self._lost, zmq.asyncio.Poller()
        for each in (self._socket, lost.events):
            poller.register(each, zmq.POLLIN)
        ready = dict(await poller.poll(wait_ms))
        if lost.events in ready and lost.take(self._clock.monotonic_ms()):
            self._core.connection_lost()

    async def _exchange(self, now_ms: int) -> None:
        socket = self._socket
        self._follow(now_ms)
        while await socket.poll(0):
            answer = await socket.recv_multipart(copy=False)
            self._core.received(unframed(answer), now_ms)
            if self._core.has_unread:
                # in a thread, as a disk may be slow and must not hold up the event loop
                self._core.fetched(await asyncio.to_thread(self._core.fetch, now_ms))
        for parts in self._core.outgoing(now_ms):
            try:
                await socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                self._core.not_connected(now_ms)
