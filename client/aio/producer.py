"""The asyncio twin of penstock.client.sending.producer.

`send` returns an awaitable future; nothing blocks the event loop, and there are no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from penstock.client.aio.requesting import Requesting
from penstock.client.aio.send_loop import AioSendLoop, Unawaited
from penstock.client.aio.topic_calls import AioTopicCalls
from penstock.client.aio.transacting import AioListener as Listener
from penstock.client.aio.transacting import Transacting
from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.connecting.where import Where
from penstock.client.core.arguments import check_timeout
from penstock.client.core.send_options import MessageFields, SendOptions, recall, send
from penstock.client.core.sending.encoding import (
    COMPRESS_OVER_BYTES,
    BatchMessage,
    Body,
    Keys,
    check_ack,
)
from penstock.client.core.sending.frames import Receipt, SendFuture
from penstock.client.core.sending.selectors import Selector, queue_choice
from penstock.client.sending.producer_options import ProducerOptions
from penstock.client.sending.replying import Replying
from penstock.client.sending.settled import Settled
from penstock.shared.clock import Clock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.loops.forms import NO_ROOM
from penstock.shared.loops.producer_clock import ProducerClock
from penstock.shared.notebook import as_table

# drain() waits while more than this waits for the broker; send() refuses more than twice this.
MAX_WAITING_BYTES = 64 << 20


class Producer(AioTopicCalls, Requesting, Replying[asyncio.Future[Receipt]], Transacting):
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
        send_latency_fault_enable: bool = False,
        wait_for_broker_ms: int = 0,
        group: str | None = None,
        on_check: Listener | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = ProducerOptions.checked(
            timeout_ms, ack, compression, compress_over_bytes, ring, send_latency_fault_enable
        )
        self._clock, self._timeout_ms = clock or ProducerClock(), timeout_ms
        self._address = BrokerAddress("producers", endpoint, store, timeout_ms, wait_for_broker_ms)
        self._started: AioSendLoop | None = None
        self._where, self._requester = Where(None, endpoint, store), None
        self._group, self._on_check, self._talks = group, on_check, None

    async def __aenter__(self) -> Producer:
        address = self._address
        # the core's lock, which is never contended here: everything runs on the event loop
        settled = Settled()
        # in threads, as both may look up a name, which would hold up the event loop
        await asyncio.to_thread(address.meet)
        self._core = await asyncio.to_thread(
            self._options.core, address, settled, self._clock.now_ms()
        )
        self._started = AioSendLoop(self._core, settled, address, self._timeout_ms, self._clock)
        self._started.start()
        await self._begin_transactions()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Messages that were accepted before an error of the block are still sent."""
        # each step runs even if another fails: the task may be cancelled in any of them
        try:
            await self._loop.close()
        finally:
            try:
                await self._end_requests()
            finally:
                await self._end_transactions()
        if error is not None:
            self._loop.leave()
        elif (lost := self._core.failures.take()) is not None:
            raise lost.exception()

    def __repr__(self) -> str:
        return f"<asyncio producer of {self._address.name}>"

    def _repr_html_(self) -> str:
        return as_table("Producer", [("broker", self._address.name)])

    def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        ack: str = "",
        **options: Unpack[SendOptions],
    ) -> asyncio.Future[Receipt]:
        """Send one message; await the future for its Receipt.

        For the options see the synchronous producer. Raises InvalidMessage or InvalidArgument for
        errors that can be found before sending, and StoreUnavailable if too much waits for the
        broker: then `await drain()`.
        """
        inner = self._send(topic, body, tags, keys, shard, queue, ack, **options)
        return self._future(topic, inner)

    def send_oneway(self, topic: str, body: Body, **fields: Unpack[MessageFields]) -> None:
        """Send one message without an outcome. See `penstock.client.Producer`."""
        self._send(topic, body, ack="written", **fields).seen = True
        self._loop.want()

    def _send(
        self,
        topic: str,
        body: Body,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        ack: str = "",
        **options: Unpack[SendOptions],
    ) -> SendFuture:
        self._check_room()
        core, now = self._core, self._clock.now_ms()
        inner: SendFuture | None = None
        if not options:
            take, ack = core.intake.take, check_ack(ack)
            while (inner := take(topic, body, tags, keys, shard, queue, ack, now)) is NO_ROOM:
                core.open_frame(ack)
        if inner is None:
            inner = send(core, now, topic, body, tags, keys, shard, queue, ack, **options)
        return inner

    def recall(self, handle: str | Receipt, *, ack: str = "") -> asyncio.Future[Receipt]:
        """Take back a message that was sent with `delay` or `deliver_at`: by its receipt, or the
        receipt's `recall_handle`. See the synchronous producer."""
        self._check_room()
        inner = recall(self._core, self._clock.now_ms(), handle, ack)
        return self._future(inner.topic, inner)

    def send_batch(
        self,
        topic: str,
        messages: Iterable[BatchMessage | Body],
        *,
        shard: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        ack: str = "",
        wait: bool = True,
    ) -> asyncio.Future[Receipt]:
        """Send messages that are stored together; await the future for their one Receipt."""
        self._check_room()
        core, ack, now = self._core, check_ack(ack, wait), self._clock.now_ms()
        inner: SendFuture | None = None
        if shard is None and selector is None and wait is True:
            take = core.intake.take_batch
            while (inner := take(topic, messages, queue, ack, now)) is NO_ROOM:
                core.open_frame(ack)
        if inner is None:
            chosen = queue_choice(selector, shard, queue)
            inner = core.send_batch(topic, messages, shard, chosen, ack, wait, now)
        return self._future(topic, inner)

    def _future(self, topic: str, inner: SendFuture) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        inner.add_done_callback(lambda settled: self._settle(topic, future, settled))
        self._loop.want()
        return future

    def _settle(self, topic: str, future: asyncio.Future[Receipt], settled: SendFuture) -> None:
        if future.get_loop().is_closed():
            return  # nobody can await it any more
        error = settled.exception(0)
        if future.done():
            return  # the caller has cancelled it
        if error is None:
            future.set_result(settled.result(0))
        else:
            future.set_exception(error)
            self._core.failures.add(topic, len(settled.keys or (0,)), Unawaited(future))

    def _check_room(self) -> None:
        self._loop.check_usable()
        if self._core.intake.waiting_bytes > 2 * MAX_WAITING_BYTES:
            raise StoreUnavailable(
                f"more than {2 * MAX_WAITING_BYTES} bytes wait for the broker",
                self._core.intake.waiting_bytes,
                "await drain() between sends",
            )

    async def drain(self) -> None:
        """Wait until no more than 64 MiB wait for the broker."""
        while self._core.intake.waiting_bytes > MAX_WAITING_BYTES:
            self._loop.check_usable()
            await self._loop.next_change()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome.

        Raises BrokerTimeout after `timeout` seconds, and the first error of failed messages whose
        futures nobody has awaited.
        """
        seconds = check_timeout(timeout)
        self._loop.check_usable()
        try:
            async with asyncio.timeout(seconds):
                await self._loop.settle_all()
        except TimeoutError:
            raise self._core.timeouts.flush(self._core.intake.unsettled, timeout) from None
        if (lost := self._core.failures.take()) is not None:
            raise lost.exception()

    @property
    def max_message_bytes(self) -> int:
        """The broker's limit of a body; 0 while the broker has not been reached."""
        return 0 if self._started is None else self._core.terms.max_message_bytes

    @property
    def _loop(self) -> AioSendLoop:
        """Raises StoreUnavailable before the block."""
        if self._started is None:
            raise StoreUnavailable(
                "the producer is not open",
                None,
                "use it inside its block: async with Producer(...) as producer",
            )
        return self._started
