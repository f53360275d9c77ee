"""Producer, Consumer and MessageQuery for asyncio: the same names and arguments, the same cores.

`send` returns an awaitable future; nothing blocks the event loop, and there are no threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import zmq
import zmq.asyncio

from penstock.client import leaving
from penstock.client.aio_consumer import Consumer
from penstock.client.aio_query import MessageQuery
from penstock.client.arguments import check_timeout
from penstock.client.encoding import (
    COMPRESS_OVER_BYTES,
    BatchMessage,
    Body,
    Encoder,
    Keys,
    check_ack,
)
from penstock.client.frame_ring import FrameRing
from penstock.client.frames import Receipt, SendFuture
from penstock.client.local_address import is_loopback, local_address
from penstock.client.message import Message
from penstock.client.packing import Packer
from penstock.client.producer_core import ProducerCore
from penstock.client.send_loop import SendLoop
from penstock.shared import messages
from penstock.shared.bus import dial
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.layout import check_topic
from penstock.shared.message_id import key_origin

# drain() waits while more than this is on its way; twice as much is refused.
MAX_WAITING_BYTES = 64 << 20

__all__ = ["Consumer", "Message", "MessageQuery", "Producer", "Receipt"]


class Producer:
    """Sends messages from a coroutine. See `penstock.client.Producer` for the arguments.

        async with Producer("tcp://127.0.0.1:20911") as producer:
            receipt = await producer.send("orders", b"...", keys="k1")

    `await producer.drain()` now and then when sending without awaiting each future.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_ms: int = 30_000,
        ack: str = "",
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        ring: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        # the core's lock; here everything runs on the event loop, and nobody waits on it
        origin = key_origin(ip := local_address(endpoint), self._clock.now_ms())
        encoder = Encoder(ip, origin, compression, compress_over_bytes)
        self._settled = settled = threading.Condition()
        packer = Packer(encoder, FrameRing(ring and is_loopback(ip)))
        self._core = ProducerCore(endpoint, settled, timeout_ms, check_ack(ack), packer)
        self._changed = asyncio.Event()
        # whether something is to be sent, and what the task sleeps on
        self._wanted = False
        self._woken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        # once the event loop has told its task to end
        self._cancelled = False
        self._pid = os.getpid()

    async def __aenter__(self) -> Producer:
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        self._socket = dial(self._context, self._endpoint)
        self._task = asyncio.create_task(self._run(), name="penstock-producer")
        # who waits for a change must see that none will come any more
        self._task.add_done_callback(lambda task: self._changed.set())
        leaving.enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._closed:
            return
        try:
            # what was accepted before an error of the block is sent all the same
            await self._settle_in_time()
        except asyncio.CancelledError:  # it does not wait any longer
            await self._disconnect()
            self.leave()
            raise
        await self._disconnect()
        if error is not None:
            self.leave()
        elif (lost := self._core.failures.take()) is not None:
            raise lost.exception()

    async def _settle_in_time(self) -> None:
        """Wait for all outcomes; what has none when the timeout is over is given up."""
        with suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(self._timeout_ms / 1000 + 1):
                await self._settle_all()

    def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        ack: str = "",
        wait: bool = True,
    ) -> asyncio.Future[Receipt]:
        """Send one message; await the future for its Receipt.

        Raises InvalidMessage for what can be seen to be wrong here, and StoreUnavailable when too
        much is on its way: then `await drain()`.
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
        return self._future(topic, inner)

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
        return self._future(topic, inner)

    def _future(self, topic: str, inner: SendFuture) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        inner.add_done_callback(lambda settled: self._settle(topic, future, settled))
        self._want()
        return future

    def _settle(self, topic: str, future: asyncio.Future[Receipt], settled: SendFuture) -> None:
        if future.get_loop().is_closed():
            return  # nobody can wait for it any more
        error = settled.exception(0)
        if future.done():
            return  # the caller has cancelled it
        if error is None:
            future.set_result(settled.result(0))
        else:
            future.set_exception(error)
            self._core.failures.add(topic, len(settled.keys or (0,)), _Unseen(future))

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
        while self._core.waiting_bytes > MAX_WAITING_BYTES:
            self._check_usable()
            await self._next_change()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome.

        Raises BrokerTimeout after `timeout` seconds, and the first error of the messages that have
        failed and that nobody has awaited.
        """
        seconds = check_timeout(timeout)
        self._check_usable()
        try:
            async with asyncio.timeout(seconds):
                await self._settle_all()
        except TimeoutError:
            raise self._core.timeouts.flush(self._core.unsettled, timeout) from None
        if (lost := self._core.failures.take()) is not None:
            raise lost.exception()

    async def _settle_all(self) -> None:
        while self._core.unsettled:
            self._check_usable()
            await self._next_change()
        await asyncio.sleep(0)  # who awaits an outcome comes first

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
        seconds = check_timeout(timeout)
        self._check_usable()
        number = self._core.routes.request(request)
        self._want()
        try:
            async with asyncio.timeout(seconds):
                while (answer := self._core.routes.answer(number)) is None:
                    self._check_usable()
                    await self._next_change()
        except TimeoutError:
            raise self._core.timeouts.question(timeout) from None
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def _check_usable(self) -> None:
        if self._closed:
            if self._pid != os.getpid():
                what, hint = "this process is a fork of the one that made the producer", ""
            else:
                what, hint = "the producer was closed", "make another one"
            raise StoreUnavailable(what, self._endpoint, hint)
        if self._task is None:
            raise StoreUnavailable(
                "the producer is not open",
                self._endpoint,
                "use it inside: async with Producer(...)",
            )
        if self._task.done():
            raise StoreUnavailable("the producer's event loop has ended", self._endpoint)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _run(self) -> None:
        try:
            await self._talk()
        except asyncio.CancelledError:
            if self._closed:
                raise
            # the event loop is about to end, and waits for this: what was accepted is still sent
            self._cancelled = True
            try:
                await self._talk()
            finally:
                self._close()
                self.leave()
            raise

    async def _talk(self) -> None:
        """Until all is settled, once the event loop is about to end."""
        while self._core.unsettled or not self._cancelled:
            now_ms = self._clock.monotonic_ms()
            self._wanted = False
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
        if self._wanted:
            return
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        incoming = asyncio.ensure_future(self._socket.poll(wait_ms))
        try:
            await asyncio.wait({incoming, self._woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not loop.is_closed():
                incoming.cancel()
                self._woken.cancel()

    def _want(self) -> None:
        """Something is to be sent."""
        self._wanted = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _disconnect(self) -> None:
        if self._task is None or self._closed:
            return
        self._closed = True
        try:
            self._task.cancel()
            await asyncio.wait({self._task})
        finally:
            self._close()

    def _close(self) -> None:
        self._end()
        self._socket.close()
        self._context.term()

    def _end(self) -> None:
        """What has no outcome fails."""
        leaving.discard(self)
        self._closed = True
        self._core.fail_all(
            StoreUnavailable(
                "the producer was closed before the message had an outcome",
                self._endpoint,
                "a message that was on its way may be stored",
            )
        )

    # --- when the process ends: the event loop runs no more ---

    def __repr__(self) -> str:
        return f"<asyncio producer to {self._endpoint}>"

    def finish(self) -> None:
        """Send what is left, from the caller's thread unless the loop runs in another."""
        assert self._task is not None
        loop = self._task.get_loop()
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(self.__aexit__(None, None, None), loop).result()
            return
        # nobody will be told that it is pending for ever
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]
        if not self._cancelled and self._core.unsettled:
            sends = SendLoop(
                self._core, self._settled, self._endpoint, self._timeout_ms, self._clock
            )
            sends.finish_here()

    def leave(self) -> None:
        """Give up what has no outcome, and say what has failed unseen."""
        self._end()
        if lost := self._core.failures.take():
            lost.log(f"leaving {self!r}")

    def forked(self) -> None:
        """This is another process, in which nothing runs it."""
        self._closed = True


class _Unseen:
    """The failure of a send, as long as nobody has awaited it."""

    def __init__(self, future: asyncio.Future[Receipt]) -> None:
        self._future = future

    @property
    def seen(self) -> bool:
        # what asyncio goes by when it complains of a failure, at length and one by one
        return not self._future._log_traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._future.exception()
