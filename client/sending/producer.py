"""The producer: sends messages to a broker from ordinary, synchronous code.

A thread of its own owns the socket (send_loop.py); `send` only encodes and queues, so messages pack
into frames while earlier frames are in flight. Thread-safe; not to be used across a fork.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

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
from penstock.client.core.sending.outbox import MAX_FULL_IN_FLIGHT, MAX_IN_FLIGHT
from penstock.client.core.sending.selectors import Selector, queue_choice
from penstock.client.sending.producer_options import ProducerOptions
from penstock.client.sending.replying import Replying
from penstock.client.sending.requesting import Requesting
from penstock.client.sending.settled import Settled
from penstock.client.sending.topic_calls import TopicCalls
from penstock.client.sending.transacting import Transacting
from penstock.shared.clock import Clock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.loops.active import PlainSender, SendLock
from penstock.shared.loops.forms import FRAME_BYTES, NO_ROOM
from penstock.shared.loops.producer_clock import ProducerClock
from penstock.shared.notebook import as_table

if TYPE_CHECKING:
    from penstock.client.sending.send_loop import SendLoop
    from penstock.client.sending.transaction_loop import Listener

__all__ = ["BatchMessage", "Producer", "Receipt", "SendFuture"]

# send() waits while more than this is waiting: enough to fill the frames in flight, and some more.
# A longer queue would be slower: the caller would never wait, and its thread would keep the
# interpreter from the thread that talks to the broker.
MAX_WAITING_BYTES = (MAX_FULL_IN_FLIGHT + MAX_IN_FLIGHT) * FRAME_BYTES


class Producer(TopicCalls, Requesting, Replying[SendFuture], Transacting):
    """Sends messages. Use it as a context manager: leaving the block waits for all outcomes.

        with Producer(store="./store") as producer:
            receipt = producer.send("orders", b"...", tags="new", keys="k1").result(timeout=10)

    The broker is the one that runs on `store`, or the one that listens at `endpoint`: name exactly
    one. Raises ConnectError if it is not there, is no broker, or is another store's. A program that
    starts before its broker sets `wait_for_broker_ms`, the time for which to try. If the broker
    goes away later, the producer waits for it; by store it finds it again on any port.

    `timeout_ms` bounds how long a message may stay without an outcome, and how long `send` waits
    for room. `ack` is "durable" (on disk), "written" (survives every process, but not a power
    failure) or "", the broker's default. Bodies of `compress_over_bytes` or more are compressed if
    `compression` is "zlib", "lz4" or "zstd"; RocketMQ's clients read them all. A busy broker is
    asked again, in order, as long as `timeout_ms` allows; after that the error is BrokerBusy. With
    `ring` a producer that sends much to a broker on this machine does so through shared memory.
    With `send_latency_fault_enable` queues that were refused or slow rest for a while. With a
    `group` it has transactions: see Transacting.
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
        options = ProducerOptions.checked(
            timeout_ms, ack, compression, compress_over_bytes, ring, send_latency_fault_enable
        )
        self._where, self._requester = Where(None, endpoint, store), None
        self._clock = clock or ProducerClock()
        self._now_ms = self._clock.now_ms
        self._timeout_ms = timeout_ms
        self._lock = SendLock()
        self._settled = Settled(self._lock)
        self._address = address = BrokerAddress(
            "producers", endpoint, store, timeout_ms, wait_for_broker_ms
        )
        address.meet()
        self._core = options.core(address, self._settled, self._clock.now_ms())
        self._intake = intake = self._core.intake
        plain = PlainSender(intake, self._lock, self._now_ms, MAX_WAITING_BYTES)
        # looked up once, as each lookup would make another bound method
        self._try_send = plain.try_send
        # imported here with ZeroMQ, so that a program which only names this class waits for neither
        from penstock.client.sending.send_loop import SendLoop

        self._loop = SendLoop(self._core, self._settled, address, timeout_ms, self._clock)
        self._loop.start()
        self._begin_transactions(group, on_check)

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
    ) -> SendFuture:
        """Send one message; the future has its Receipt, or its error.

        The queue is `queue`, or follows from `shard` (messages with one sharding key stay in
        order), or is the one of the topic's queues that `selector` returns, or is the next one in
        turn; if there are many queues, only a few have their turn in one frame.

        Options are `selector`, `properties` (a mapping of texts), `flag` (32 bits), and `wait`:
        with wait=False the message is acknowledged before it is on disk (RocketMQ's property WAIT).
        It is delivered later with `delay` (seconds, or a timedelta), `deliver_at` (a datetime, or
        ms since 1970), both up to 40 days from now, or `delay_level` (1 to 18, RocketMQ's). It is
        never delivered early, and at once if the time has passed. Until it is due, the receipt's
        `recall_handle` takes it back.

        Raises InvalidMessage or InvalidArgument for errors that can be found before sending, and
        StoreUnavailable if there is no room for `timeout_ms`.
        """
        future: SendFuture | None = None
        if not options:
            future = self._try_send(topic, body, tags, keys, shard, queue, ack)
        if future is not None:
            return future
        return self._send(topic, body, tags, keys, shard, queue, check_ack(ack), **options)

    def _send(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: Keys,
        shard: str | None,
        queue: int | None,
        ack: str,
        **options: Unpack[SendOptions],
    ) -> SendFuture:
        """Send any message at any time; `_try_send` takes only the simple cases."""
        self._loop.check_usable()
        core = self._core
        future: SendFuture | None = None
        with self._lock:
            self._wait_for_room()
            # another thread may have closed the producer while this one waited
            self._loop.check_usable()
            now = self._now_ms()
            if not options:
                take = core.intake.take
                while (future := take(topic, body, tags, keys, shard, queue, ack, now)) is NO_ROOM:
                    core.open_frame(ack)
            if future is None:
                future = send(core, now, topic, body, tags, keys, shard, queue, ack, **options)
            if self._loop.asleep and core.may_send:
                self._loop.wake()
        return future

    def send_oneway(self, topic: str, body: Body, **fields: Unpack[MessageFields]) -> None:
        """Send one message without an outcome: there is no future, and no failure is raised.

        It keeps its place among the others like any message, but nobody waits until it is on disk.
        Its frame is repeated like any other, so the message is stored unless the broker refuses it,
        is away for `timeout_ms`, or loses power at once. Takes `send`'s fields of a message, and
        raises what `send` raises.
        """
        future = self.send(topic, body, ack="written", **fields)
        # so that `flush` and `close` do not raise its failure, and leaving does not log it
        future.seen = True

    def recall(self, handle: str | Receipt, *, ack: str = "") -> SendFuture:
        """Take back a message that was sent with `delay` or `deliver_at`, by its receipt or the
        handle in it: once the future has a receipt, it will not be delivered.

        Raises InvalidArgument if this is not a handle, or if the message is due already. The future
        raises the latter too, if the broker finds it.
        """
        self._loop.check_usable()
        with self._lock:
            self._wait_for_room()
            self._loop.check_usable()
            future = recall(self._core, self._now_ms(), handle, ack)
            self._loop.wake()
        return future

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
    ) -> SendFuture:
        """Send messages that are stored together: in one queue, at offsets without a gap.

        The future has one Receipt for all. A crash of the broker leaves all of them or none. A
        power failure before the acknowledgement may leave the first ones; this producer then stores
        the others after them. For the rest see `send`; no body is compressed, and all bodies
        together may be no larger than one message.
        """
        self._loop.check_usable()
        ack = check_ack(ack, wait)
        core = self._core
        future: SendFuture | None = None
        with self._lock:
            self._wait_for_room()
            self._loop.check_usable()
            now = self._now_ms()
            if shard is None and selector is None and wait is True:
                take = self._intake.take_batch
                while (future := take(topic, messages, queue, ack, now)) is NO_ROOM:
                    core.open_frame(ack)
            if future is None:
                chosen = queue_choice(selector, shard, queue)
                future = core.send_batch(topic, messages, shard, chosen, ack, wait, now)
            if self._loop.asleep and core.may_send:
                self._loop.wake()
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome.

        Raises BrokerTimeout after `timeout` seconds. So that no failure stays unseen, it also
        raises the first error of failed messages whose futures nobody has asked; a note on it says
        how many there are, and of which topics.
        """
        seconds = check_timeout(timeout)
        self._loop.check_usable()
        with self._settled:
            if not self._settled.wait_for(lambda: not self._intake.unsettled, seconds):
                raise self._core.timeouts.flush(self._intake.unsettled, timeout)
            lost = self._core.failures.take()
        if lost is not None:
            raise lost.exception()

    @property
    def max_message_bytes(self) -> int:
        """The broker's limit of a body; 0 while the broker has not been reached."""
        return self._core.terms.max_message_bytes

    def close(self) -> None:
        """Wait for all outcomes, then disconnect. Raises what `flush` raises.

        Ctrl-C ends the waiting. Messages without an outcome are then given up, which is logged.
        """
        if self._loop.closing:
            return
        self._settled.check_may_wait()
        try:
            self._loop.finish()
        except BaseException:
            self._loop.leave()
            raise
        finally:
            self._end_requests()
            self._end_transactions()
        self._loop.stop()
        lost = self._loop.take_lost()
        if lost is not None:
            raise lost.exception()

    def _disconnect(self) -> None:
        """Close at once: messages without an outcome are given up."""
        self._end_requests()
        self._end_transactions()
        self._loop.leave()

    @property
    def _closing(self) -> bool:
        return self._loop.closing

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        elif not self._loop.closing:
            # raise the block's own error, but still send what was accepted before it
            try:
                self._loop.finish()
            except KeyboardInterrupt:
                if not isinstance(error, KeyboardInterrupt):
                    raise
            finally:
                self._end_requests()
                self._end_transactions()
                self._loop.leave()

    def __del__(self) -> None:
        loop: SendLoop | None = self.__dict__.get("_loop")
        if loop is not None and not loop.closing:
            loop.orphaned = True  # the loop sends what it has and ends; a finalizer must not wait
            warnings.warn(f"unclosed {loop!r}", ResourceWarning, stacklevel=1, source=self)

    def _state(self) -> str:
        return "closed" if self._loop.closing else f"{self._intake.unsettled} without an outcome"

    def __repr__(self) -> str:
        return f"<Producer of {self._address.name}: {self._state()}>"

    def _repr_html_(self) -> str:
        return as_table("Producer", [("broker", self._address.name), ("messages", self._state())])

    def _wait_for_room(self) -> None:
        room = self._settled.wait_for(
            lambda: self._intake.waiting_bytes <= MAX_WAITING_BYTES, self._timeout_ms / 1000
        )
        if not room:
            raise StoreUnavailable(
                f"more than {MAX_WAITING_BYTES} bytes wait for the broker",
                self._intake.waiting_bytes,
                "it takes no more, or is down: send again later, and see penstock status",
            )
