"""Producer, Consumer and MessageQuery for asyncio: the same names and arguments, the same cores.

`send` returns an awaitable future; nothing blocks the event loop, and there are no threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import zmq
import zmq.asyncio

from penstock.client.aio_consumer import Consumer
from penstock.client.aio_query import MessageQuery
from penstock.client.broker_address import BrokerAddress, Store
from penstock.client.encoding import COMPRESS_OVER_BYTES, BatchMessage, Body, Encoder, check_ack
from penstock.client.frame_ring import FrameRing
from penstock.client.frames import Receipt, SendFuture
from penstock.client.local_address import is_loopback
from penstock.client.message import Message
from penstock.client.packing import Packer
from penstock.client.producer_core import ProducerCore
from penstock.shared import messages
from penstock.shared.bus import dial
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.compression import check_compression
from penstock.shared.errors import ConnectError, PenstockError, StoreUnavailable
from penstock.shared.layout import check_topic
from penstock.shared.message_id import key_origin

# drain() waits while more than this is on its way; twice as much is refused.
MAX_WAITING_BYTES = 64 << 20

__all__ = ["Consumer", "Message", "MessageQuery", "Producer", "Receipt", "connect"]


def connect(target: Store | None = None, **named: Any) -> Any:
    """A broker and its clients: see Connection in penstock.client.aio_connection."""
    from penstock.client.aio_connection import Connection  # which needs the Producer from here

    return Connection(target, **named)


class Producer:
    """Sends messages from a coroutine. See `penstock.client.Producer` for the arguments.

        async with Producer(store="./store") as producer:
            receipt = await producer.send("orders", b"...", keys="k1")

    `await producer.drain()` now and then when sending without awaiting each future.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: Store | None = None,
        timeout_ms: int = 30_000,
        ack: str = "",
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        ring: bool = True,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timeout_ms = timeout_ms
        self._ack, self._ring = check_ack(ack), ring
        self._compression = check_compression(compression), compress_over_bytes
        self._address = BrokerAddress("producers", endpoint, store, timeout_ms, wait_for_broker_ms)
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Producer:
        address = self._address
        # both may look a name up, which others on this loop are not to wait for
        await asyncio.to_thread(address.meet)
        ip = await asyncio.to_thread(address.local_ip)
        encoder = Encoder(ip, key_origin(ip, self._clock.now_ms()), *self._compression)
        packer = Packer(encoder, FrameRing(self._ring and is_loopback(ip)))
        # the core's lock; here everything runs on the event loop, and nobody waits on it
        settled = threading.Condition()
        self._core = ProducerCore(address.name, settled, self._timeout_ms, self._ack, packer)
        address.give(self._core.routes.aim)
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        self._socket = dial(self._context, address.endpoint)
        self._task = asyncio.create_task(self._talk(), name="penstock-producer")
        # who waits for a change must see that none will come any more
        self._task.add_done_callback(lambda task: self._changed.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.flush(self._timeout_ms / 1000 + 1)
        finally:
            await self._disconnect()

    def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: str | None = None,
        shard: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        ack: str = "",
        wait: bool = True,
    ) -> asyncio.Future[Receipt]:
        """Send one message; await the future for its Receipt.

        Raises InvalidMessage or InvalidArgument for what can be seen to be wrong here, and
        StoreUnavailable when too much is on its way: then `await drain()`.
        """
        self._check_room()
        inner = self._core.send(
            topic,
            body,
            tags,
            keys,
            shard,
            queue,
            properties,
            flag,
            check_ack(ack, wait),
            wait,
            self._clock.now_ms(),
        )
        return self._future(inner)

    def send_batch(
        self,
        topic: str,
        messages: Iterable[BatchMessage | Body],
        *,
        shard: str | None = None,
        queue: int | None = None,
        ack: str = "",
        wait: bool = True,
    ) -> asyncio.Future[Receipt]:
        """Send messages that are stored together; await the future for their one Receipt."""
        self._check_room()
        ack, now_ms = check_ack(ack, wait), self._clock.now_ms()
        inner = self._core.send_batch(topic, messages, shard, queue, ack, wait, now_ms)
        return self._future(inner)

    def _future(self, inner: SendFuture) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        inner.add_done_callback(lambda settled: _settle(future, settled))
        self._wanted.set()
        return future

    def _check_room(self) -> None:
        self._check_usable()
        if self._core.waiting_bytes > 2 * MAX_WAITING_BYTES:
            raise StoreUnavailable(
                f"more than {2 * MAX_WAITING_BYTES} bytes wait for the broker",
                self._core.waiting_bytes,
                "await drain() between sends",
            )

    async def drain(self) -> None:
        """Wait until less than 64 MiB are on their way."""
        self._check_usable()
        while self._core.waiting_bytes > MAX_WAITING_BYTES:
            self._check_usable()
            await self._next_change()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome. Raises ConnectError after `timeout` seconds."""
        self._check_usable()
        try:
            async with asyncio.timeout(timeout):
                while self._core.unsettled:
                    self._check_usable()
                    await self._next_change()
        except TimeoutError:
            raise ConnectError(
                "messages are still without an answer",
                f"{self._core.unsettled} after {timeout} s",
                "see whether the broker runs: penstock status",
            ) from None

    async def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues; how many it has then."""
        answer = await self._administer(
            messages.CreateTopic(0, check_topic(topic), queues), timeout
        )
        assert isinstance(answer, messages.Routed)
        return answer.queues

    async def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        answer = await self._administer(messages.ListTopics(0), timeout)
        assert isinstance(answer, messages.TopicList)
        return answer.topics

    async def _administer(
        self, request: messages.CreateTopic | messages.ListTopics, timeout: float
    ) -> messages.Routed | messages.TopicList:
        self._check_usable()
        number = self._core.routes.request(request)
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout):
                while (answer := self._core.routes.answer(number)) is None:
                    self._check_usable()
                    await self._next_change()
        except TimeoutError:
            raise ConnectError(
                "the broker gave no answer",
                f"within {timeout} s",
                "see whether it runs: penstock status",
            ) from None
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def _check_usable(self) -> None:
        if self._task is None:
            raise StoreUnavailable(
                "the producer is not open",
                None,
                "use it inside its block: async with Producer(...) as producer",
            )
        if self._closed:
            raise StoreUnavailable(
                "the producer is closed", None, "make another one: Producer(endpoint)"
            )
        if self._task.done():
            self._task.result()  # raises what ended it

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _talk(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            if self._core.routes.aim.away:
                self._address.follow(self._socket, self._core.routes.aim, now_ms)
            self._wanted.clear()
            for parts in list(self._core.outgoing(now_ms)):
                try:
                    await self._socket.send_multipart(parts, zmq.NOBLOCK)
                except zmq.Again:
                    self._core.not_connected(now_ms)
                    break
            await self._sleep(self._core.wait_ms(now_ms))
            now_ms = self._clock.monotonic_ms()
            while await self._socket.poll(0):
                answer = await self._socket.recv_multipart()
                self._core.received(answer, now_ms)
            self._core.tick(now_ms)
            self._changed.set()

    async def _sleep(self, wait_ms: int) -> None:
        """Until something comes in, something is to be sent, or the time is over."""
        incoming = asyncio.ensure_future(self._socket.poll(wait_ms))
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait({incoming, wanted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (incoming, wanted):
                each.cancel()

    async def _disconnect(self) -> None:
        if self._task is None or self._closed:
            return
        self._closed = True
        self._task.cancel()
        await asyncio.wait({self._task})
        self._core.fail_all(
            StoreUnavailable("the producer was closed before this message had its outcome")
        )
        self._socket.close()
        self._context.term()


def _settle(future: asyncio.Future[Receipt], settled: SendFuture) -> None:
    if future.done():  # the caller has cancelled it
        return
    error = settled.exception(0)
    if error is None:
        future.set_result(settled.result(0))
    else:
        future.set_exception(error)
