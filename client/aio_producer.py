"""The asyncio twin of penstock.client.producer.

`send` returns an awaitable future; nothing blocks the event loop, and there are no threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping

from msgspec import structs

from penstock.client.aio_requesting import Requesting
from penstock.client.aio_send_loop import AioSendLoop, Unawaited
from penstock.client.aio_topic_calls import AioTopicCalls
from penstock.client.aio_transacting import AioListener as Listener
from penstock.client.aio_transacting import Transacting
from penstock.client.broker_address import BrokerAddress, Store
from penstock.client.core.arguments import check_at_least, check_bool, check_timeout
from penstock.client.core.delays import (
    RECALL_BODY,
    Moment,
    Seconds,
    recall_of,
    wanted_delay,
)
from penstock.client.core.sending.encoding import (
    COMPRESS_OVER_BYTES,
    NO_FLAG,
    BatchMessage,
    Body,
    Encoder,
    Keys,
    check_ack,
)
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import Receipt, SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.queue_faults import QueueFaults
from penstock.client.core.sending.routes import Request
from penstock.client.core.sending.selectors import Selector, queue_choice
from penstock.client.local_address import is_loopback
from penstock.client.where import Where
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.formats.compression import check_compression
from penstock.shared.formats.message_id import key_origin
from penstock.shared.loops.forms import NO_ROOM
from penstock.shared.loops.producer_clock import ProducerClock
from penstock.shared.wire import messages

# drain() waits while more than this is on its way; twice as much is refused.
MAX_WAITING_BYTES = 64 << 20

_AT_ONCE = None, None, None


class Producer(AioTopicCalls, Requesting, Transacting):
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
        timeout_ms = check_at_least("timeout_ms", timeout_ms, 1)
        self._clock = clock or ProducerClock()
        self._timeout_ms = timeout_ms
        self._ack, self._ring = check_ack(ack), check_bool("ring", ring)
        self._faults = check_bool("send_latency_fault_enable", send_latency_fault_enable)
        over_bytes = check_at_least("compress_over_bytes", compress_over_bytes, 0)
        self._compression = check_compression(compression), over_bytes
        self._address = BrokerAddress("producers", endpoint, store, timeout_ms, wait_for_broker_ms)
        self._started: AioSendLoop | None = None
        self._where, self._requester = Where(None, endpoint, store), None
        self._group, self._on_check, self._talks = group, on_check, None

    async def __aenter__(self) -> Producer:
        address = self._address
        # both may look up a name, which would hold up everybody else on this event loop
        await asyncio.to_thread(address.meet)
        ip = await asyncio.to_thread(address.local_ip)
        encoder = Encoder(ip, key_origin(ip, self._clock.now_ms()), *self._compression)
        packer = Packer(encoder, FrameRing(self._ring and is_loopback(ip)))
        # the core's lock, which nobody waits for here: everything runs on the event loop
        settled = threading.Condition()
        self._core = ProducerCore(address.name, settled, self._timeout_ms, self._ack, packer)
        self._core.moves.faults = QueueFaults() if self._faults else None
        address.give(self._core.routes.aim)
        self._started = AioSendLoop(self._core, settled, address, self._timeout_ms, self._clock)
        self._started.start()
        await self._begin_transactions()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What was accepted before an error of the block is sent all the same."""
        await self._end_requests()
        await self._loop.close()
        await self._end_transactions()
        if error is not None:
            self._loop.leave()
        elif (lost := self._core.failures.take()) is not None:
            raise lost.exception()

    def __repr__(self) -> str:
        return f"<asyncio producer of {self._address.name}>"

    def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        ack: str = "",
        wait: bool = True,
        delay: Seconds = None,
        deliver_at: Moment = None,
        delay_level: int | None = None,
    ) -> asyncio.Future[Receipt]:
        """Send one message; await the future for its Receipt.

        For `delay`, `deliver_at` and `delay_level` see the synchronous producer.

        Raises InvalidMessage or InvalidArgument for what can be seen to be wrong here, and
        StoreUnavailable when too much is on its way: then `await drain()`.
        """
        message = BatchMessage(body, tags, keys, properties, flag)
        when = delay, deliver_at, delay_level
        taken = self._take(topic, message, shard, queue, selector, ack, wait, when)
        return self._future(topic, taken)

    def send_oneway(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        """Send one message whose outcome nobody is told. See `penstock.client.Producer`."""
        message = BatchMessage(body, tags, keys, properties, flag)
        self._take(topic, message, shard, queue, selector, "written", True).seen = True
        self._loop.want()

    def _take(
        self,
        topic: str,
        message: BatchMessage,
        shard: str | None,
        queue: int | None,
        selector: Selector | None,
        ack: str,
        wait: bool,
        when: tuple[Seconds, Moment, int | None] = _AT_ONCE,
    ) -> SendFuture:
        self._check_room()
        core, ack, now = self._core, check_ack(ack, wait), self._clock.now_ms()
        inner: SendFuture | None = None
        body, tags, keys = message.body, message.tags, message.keys
        plain = message.properties is None and message.flag is NO_FLAG and wait and selector is None
        if plain and when == _AT_ONCE:
            take = core.intake.take
            while (inner := take(topic, body, tags, keys, shard, queue, ack, now)) is NO_ROOM:
                core.open_frame(ack)
        if inner is None:
            later, own = wanted_delay(*when, message.properties, now)
            if own is not message.properties:
                message = structs.replace(message, properties=own)
            chosen = queue_choice(selector, shard, queue)
            inner = core.send(topic, message, shard, chosen, ack, wait, now, later)
        return inner

    def recall(self, handle: str | Receipt, *, ack: str = "") -> asyncio.Future[Receipt]:
        """Take back a message that was sent with `delay` or `deliver_at`: by its receipt, or the
        receipt's `recall_handle`. See the synchronous producer."""
        self._check_room()
        now = self._clock.now_ms()
        topic, later = recall_of(handle, now)
        message = BatchMessage(RECALL_BODY, keys=later.recalls)
        inner = self._core.send(topic, message, None, 0, check_ack(ack), True, now, later)
        return self._future(topic, inner)

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
            return  # nobody can wait for it any more
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
        """Wait until less than 64 MiB are on their way."""
        while self._core.intake.waiting_bytes > MAX_WAITING_BYTES:
            self._loop.check_usable()
            await self._loop.next_change()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome.

        Raises BrokerTimeout after `timeout` seconds, and the first error of the messages that have
        failed and that nobody has awaited.
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
        """How long a body may be, as the broker has said; 0 while it has not been reached."""
        return 0 if self._started is None else self._core.terms.max_message_bytes

    async def _administer(self, request: Request, timeout: float) -> messages.TopicAnswer:
        seconds = check_timeout(timeout)
        self._loop.check_usable()
        number = self._core.routes.request(request)
        self._loop.want()
        try:
            async with asyncio.timeout(seconds):
                while (answer := self._core.routes.answer(number)) is None:
                    self._loop.check_usable()
                    await self._loop.next_change()
        except TimeoutError:
            raise self._core.timeouts.question(timeout) from None
        finally:
            self._core.routes.forget(number)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

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
