"""The producer: sends messages to a broker from ordinary, synchronous code.

One thread of its own talks to the socket; `send` only encodes and queues, so messages pack into
frames while earlier frames are on their way. Safe to use from several threads; not across a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NoReturn

import zmq

from penstock.client.broker_address import BrokerAddress, Store
from penstock.client.encoding import COMPRESS_OVER_BYTES, BatchMessage, Body, Encoder, check_ack
from penstock.client.frame_ring import FrameRing
from penstock.client.frames import Receipt, SendFuture
from penstock.client.local_address import is_loopback
from penstock.client.outbox import MAX_FULL_IN_FLIGHT, MAX_IN_FLIGHT
from penstock.client.packing import Packer
from penstock.client.producer_core import ProducerCore
from penstock.shared import messages
from penstock.shared.bus import dial
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import ConnectError, PenstockError, StoreUnavailable
from penstock.shared.layout import check_topic
from penstock.shared.message_id import key_origin
from penstock.shared.pure_intake import FRAME_BYTES

__all__ = ["BatchMessage", "Producer", "Receipt", "SendFuture"]

# send() waits while more than this is on its way: enough to fill the frames in flight, and some to
# follow. A longer queue makes it slower: the caller then never waits, and its thread keeps the
# interpreter from the one that talks to the broker.
MAX_WAITING_BYTES = (MAX_FULL_IN_FLIGHT + MAX_IN_FLIGHT) * FRAME_BYTES

# How often this process has been forked off: a producer does not work in a child.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Producer:
    """Sends messages. Use it as a context manager: leaving the block waits for all outcomes.

        with Producer(store="./store") as producer:
            receipt = producer.send("orders", b"...", tags="new", keys="k1").result(timeout=10)

    The broker is the one that runs on `store`, or whoever listens at `endpoint`: exactly one of
    both is named. Raises ConnectError where it is not there, is no broker, or is another store's; a
    program that starts before its broker says with `wait_for_broker_ms` how long it tries. A broker
    that goes away later is waited for; by store it is found again on any port.

    `timeout_ms` bounds how long a message may stay without an outcome, and how long `send` waits
    for room. `ack` is "durable" (on disk), "written" (survives every process, not a power failure)
    or "", the broker's default. Bodies of `compress_over_bytes` or more are compressed where
    `compression` is "zlib", "lz4" or "zstd"; RocketMQ's clients read them all. A broker that is
    busy is asked again, in order, as long as `timeout_ms` allows; then that is BrokerBusy. With
    `ring` a producer that sends much to a broker on this machine does so through shared memory.
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
        self._now_ms = self._clock.now_ms
        self._timeout_ms = timeout_ms
        self._lock = threading.RLock()
        self._settled = threading.Condition(self._lock)
        ack = check_ack(ack)
        self._address = address = BrokerAddress(
            "producers", endpoint, store, timeout_ms, wait_for_broker_ms
        )
        address.meet()
        origin = key_origin(ip := address.local_ip(), self._clock.now_ms())
        encoder = Encoder(ip, origin, compression, compress_over_bytes)
        packer = Packer(encoder, FrameRing(ring and is_loopback(ip)))
        self._core = ProducerCore(address.name, self._settled, timeout_ms, ack, packer)
        address.give(self._core.routes.aim)
        self._forks = _forks
        self._closing = False
        self._asleep = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = dial(self._context, address.endpoint)
        self._lost = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._talk, name="penstock-producer", daemon=True)
        self._thread.start()

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
    ) -> SendFuture:
        """Send one message; the future has its Receipt, or its error.

        The queue is `queue`, or follows from `shard` (messages with one sharding key stay in
        order), or is the next one in turn; of many queues few have their turn in one frame. With
        wait=False the message is acknowledged before it is on disk (RocketMQ's property WAIT).
        Raises InvalidMessage or InvalidArgument for what can be seen to be wrong here, and
        StoreUnavailable when there is no room for `timeout_ms`.
        """
        if self._closing or self._forks != _forks:
            self._refuse_use()
        if ack or not wait:
            ack = check_ack(ack, wait)
        core = self._core
        with self._lock:
            if core.waiting_bytes > MAX_WAITING_BYTES:
                self._wait_for_room()
            if self._closing:  # by another thread, meanwhile: nobody would answer any more
                self._refuse_use()
            future: SendFuture = core.send(
                topic,
                body,
                tags,
                keys,
                shard,
                queue,
                properties,
                flag,
                ack,
                wait,
                self._now_ms(),
            )
            if self._asleep and core.may_send:
                self._wake()
        return future

    def send_batch(
        self,
        topic: str,
        messages: Iterable[BatchMessage | Body],
        *,
        shard: str | None = None,
        queue: int | None = None,
        ack: str = "",
        wait: bool = True,
    ) -> SendFuture:
        """Send messages that are stored together: one queue, one offset behind the other.

        The future has one Receipt for all. A crash of the broker leaves all of them or none; a
        power failure before the acknowledgement may leave the first ones, and then this producer
        stores the others behind them. For the rest see `send`; no body is compressed, and the
        bodies together are no larger than one message may be.
        """
        self._check_usable()
        ack = check_ack(ack, wait)
        core = self._core
        with self._lock:
            self._wait_for_room()
            self._check_usable()
            now_ms = self._now_ms()
            future: SendFuture = core.send_batch(topic, messages, shard, queue, ack, wait, now_ms)
            if self._asleep and core.may_send:
                self._wake()
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome.

        Raises ConnectError after `timeout` seconds, and the first error of a message whose future
        nobody has asked, so that no failure stays unseen.
        """
        self._check_usable()
        with self._settled:
            if not self._settled.wait_for(lambda: not self._core.unsettled, timeout):
                raise ConnectError(
                    "messages are still without an answer",
                    f"{self._core.unsettled} after {timeout} s",
                    "see whether the broker runs: penstock status",
                )
            self._raise_unseen()

    def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues; how many it has then."""
        request = messages.CreateTopic(0, check_topic(topic), queues)
        answer = self._administer(request, timeout)
        assert isinstance(answer, messages.Routed)
        return answer.queues

    def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        answer = self._administer(messages.ListTopics(0), timeout)
        assert isinstance(answer, messages.TopicList)
        return answer.topics

    @property
    def max_message_bytes(self) -> int:
        """How long a body may be, as the broker has said; 0 while it has not been reached."""
        return self._core.terms.max_message_bytes

    def close(self) -> None:
        """Wait for all outcomes, then disconnect. Raises what `flush` raises."""
        if self._closing:
            return
        try:
            self.flush(self._timeout_ms / 1000 + 1)
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._closing = True
        os.eventfd_write(self._waker, 1)
        self._thread.join()
        with self._settled:
            unsettled = "the producer was closed before this message had its outcome"
            self._core.fail_all(StoreUnavailable(unsettled))
            self._settled.notify_all()
            os.close(self._waker)  # whoever holds the lock and finds it open may write to it
        self._socket.disable_monitor()
        self._lost.close()
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._closing:
            self._disconnect()  # the block's own error counts; do not wait behind it

    def _administer(
        self, request: messages.CreateTopic | messages.ListTopics, timeout: float
    ) -> messages.Routed | messages.TopicList:
        self._check_usable()
        found: list[messages.Routed | messages.TopicList | PenstockError] = []
        with self._settled:
            self._check_usable()
            number = self._core.routes.request(request)
            self._wake()

            def answered() -> bool:
                answer = self._core.routes.answer(number)
                found.extend([answer] if answer is not None else [])
                return bool(found)

            if not self._settled.wait_for(answered, timeout):
                raise ConnectError(
                    "the broker gave no answer",
                    f"within {timeout} s",
                    "see whether it runs: penstock status",
                )
        if isinstance(found[0], PenstockError):
            raise found[0]
        return found[0]

    def _check_usable(self) -> None:
        if self._closing or self._forks != _forks:
            self._refuse_use()

    def _wake(self) -> None:
        """Have the thread look what is to be sent; once for each time that it sleeps."""
        self._asleep = False
        os.eventfd_write(self._waker, 1)

    def _refuse_use(self) -> NoReturn:
        if self._closing:
            raise StoreUnavailable(
                "the producer is closed", None, "make another one: Producer(endpoint)"
            )
        raise StoreUnavailable(
            "the producer belongs to another process",
            "this one is a fork of it",
            "make one after the fork",
        )

    def _wait_for_room(self) -> None:
        room = self._settled.wait_for(
            lambda: self._core.waiting_bytes <= MAX_WAITING_BYTES, self._timeout_ms / 1000
        )
        if not room:
            raise StoreUnavailable(
                f"more than {MAX_WAITING_BYTES} bytes wait for the broker",
                self._core.waiting_bytes,
                "it takes no more, or is down: send again later, and see penstock status",
            )

    def _raise_unseen(self) -> None:
        failed, self._core.failed = self._core.failed, type(self._core.failed)(maxlen=1000)
        for future in failed:
            if not future.seen:
                future.result(0)

    # --- the thread ---

    def _talk(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker, zmq.POLLIN)
        poller.register(self._lost, zmq.POLLIN)
        while not self._closing:
            now_ms = self._clock.monotonic_ms()
            if self._core.routes.aim.away:
                self._address.follow(self._socket, self._core.routes.aim, now_ms)
            with self._settled:
                out = list(self._core.outgoing(now_ms))
                wait_ms = self._core.wait_ms(now_ms)
                self._asleep = True
            if not self._send_out(out):
                wait_ms = self._knock_soon()
            for ready, _ in poller.poll(wait_ms):
                if ready == self._waker:
                    os.eventfd_read(self._waker)
                elif ready == self._lost:
                    self._lost.recv_multipart()
                    self._knock_soon()
            self._take_answers()

    def _send_out(self, out: list[tuple[bytes | memoryview, ...]]) -> bool:
        """Whether there was a connection for all of it."""
        for parts in out:
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def _knock_soon(self) -> int:
        """There is no connection: how long to wait before the next try."""
        now_ms = self._clock.monotonic_ms()
        with self._settled:
            self._core.not_connected(now_ms)
            return self._core.wait_ms(now_ms)

    def _take_answers(self) -> None:
        answers = []
        while True:
            try:
                answers.append(self._socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        now_ms = self._clock.monotonic_ms()
        with self._settled:
            self._asleep = False
            for parts in answers:
                self._core.received(parts, now_ms)
            self._core.tick(now_ms)
            self._settled.notify_all()
