"""The requests of one synchronous producer that wait for replies, and how the replies are read.

A requester reads the reply topic from where it ended when the requester began. The broker filters
by the requester's id, so a pull waits there until a reply has come. There is no thread: one of the
waiting callers reads for all, and when it has its own reply, the next one goes on. While nobody
waits, nobody reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.where import Where
from penstock.client.core.message import Message
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.timeouts import Timeouts
from penstock.client.reading.consumer import Consumer
from penstock.shared.errors import BrokerTimeout, StoreUnavailable
from penstock.shared.messaging.request_reply import (
    CORRELATION_ID,
    new_client_id,
    new_correlation_id,
    replies_to,
    reply_topic,
    request_properties,
)

# After a pause this long reading begins at the end again, to skip what others were sent meanwhile.
IDLE_S = 5.0
# How long one poll of the first request waits for where the reply topic ends.
LOOK_S = 0.01


class Requester:
    """The requests of one producer that wait for replies, and the consumer that reads them."""

    def __init__(
        self, where: Where, ip: bytes, timeouts: Timeouts, make_topic: Callable[[float], None]
    ) -> None:
        """`make_topic` creates the reply topic, if it does not exist, within that many seconds."""
        self._where, self._timeouts, self._make_topic = where, timeouts, make_topic
        self._client_id = new_client_id(ip)
        self._consumer: Consumer | None = None
        self._looked_s = 0.0
        # correlation id -> the reply, once it has come
        self._waiting: dict[str, Message | None] = {}
        # whether a caller is opening the consumer, or reading, for all
        self._is_opened = self._is_read = False
        self._closed = False
        self._changed = threading.Condition()

    def request(
        self, send: Callable[[dict[str, str]], SendFuture], topic: str, timeout: float
    ) -> Message:
        """Send a request by `send`, which takes its properties, and wait for the reply. See
        `Producer.request`."""
        until_s = time.monotonic() + timeout
        correlation_id = self._begin(timeout, until_s)
        try:
            own = request_properties(correlation_id, self._client_id, int(timeout * 1000))
            # Nobody can read, and so answer, the request much before it is acknowledged. So waiting
            # for that first costs nothing, and a failure is known at once.
            sent = send(own)
            try:
                sent.result(max(0.0, until_s - time.monotonic()))
            except BrokerTimeout:
                if sent.done():
                    raise
                raise self._timeouts.request(topic, correlation_id, timeout) from None
            return self._reply(correlation_id, topic, timeout, until_s)
        finally:
            with self._changed:
                del self._waiting[correlation_id]
                self._looked_s = time.monotonic()

    def _begin(self, timeout: float, until_s: float) -> str:
        """A request's id, once every reply to it will be seen."""
        with self._changed:
            self._check_open()
            idle = not self._waiting and time.monotonic() - self._looked_s > IDLE_S
            if self._consumer is not None and idle:
                self._consumer.close()
                self._consumer = None
            while self._consumer is None:
                if not self._is_opened:
                    self._open(timeout, until_s)
                elif not self._changed.wait(max(0.0, until_s - time.monotonic())):
                    raise self._timeouts.question(timeout)
                self._check_open()
            self._waiting[correlation_id := new_correlation_id()] = None
            return correlation_id

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the producer is closed", self._timeouts.endpoint)

    def _open(self, timeout: float, until_s: float) -> None:
        """Open the consumer for all callers, without the lock meanwhile."""
        self._is_opened = True
        consumer: Consumer | None = None
        self._changed.release()
        try:
            consumer = self._placed(timeout, until_s)
        finally:
            self._changed.acquire()
            self._is_opened = False
            if consumer is not None and self._closed:
                consumer.close()
            else:
                self._consumer = consumer
            self._changed.notify_all()

    def _placed(self, timeout: float, until_s: float) -> Consumer:
        """A consumer of the replies that are stored from now on."""
        # rounded to ms, because an error shows it
        self._make_topic(max(0.0, round(until_s - time.monotonic(), 3)))
        where = self._where.arguments("consumers")
        # met here first: the consumer waits as long as the producer, this caller may have less time
        left_ms = max(1, int((until_s - time.monotonic()) * 1000))
        BrokerAddress("consumers", where.get("endpoint"), where.get("store"), left_ms, 0).meet()
        consumer = Consumer(
            **where,
            topic=reply_topic(),
            start="latest",
            sql=replies_to(self._client_id),
            timeout_ms=self._timeouts.timeout_ms,
        )
        try:
            while not consumer.is_placed:
                if time.monotonic() > until_s:
                    raise self._timeouts.question(timeout)
                consumer.poll(LOOK_S)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def _reply(self, correlation_id: str, topic: str, timeout: float, until_s: float) -> Message:
        with self._changed:
            while (reply := self._waiting[correlation_id]) is None:
                left_s = until_s - time.monotonic()
                if self._closed:
                    raise StoreUnavailable("the producer was closed", self._timeouts.endpoint)
                if left_s <= 0:
                    raise self._timeouts.reply(topic, correlation_id, timeout)
                if self._is_read:
                    self._changed.wait(left_s)
                else:
                    self._read(left_s)
            return reply

    def _read(self, timeout: float) -> None:
        """Take replies for all waiting callers, without the lock meanwhile."""
        assert self._consumer is not None
        self._is_read = True
        found: list[Message] = []
        self._changed.release()
        try:
            found = self._consumer.poll(timeout)
        finally:
            self._changed.acquire()
            self._is_read = False
            for message in found:
                # the first reply counts; one whose request has ended is dropped
                correlation_id = message.properties.get(CORRELATION_ID, "")
                if self._waiting.get(correlation_id, message) is None:
                    self._waiting[correlation_id] = message
            if self._closed:
                self._consumer.close()
            self._changed.notify_all()

    def close(self) -> None:
        """Fail the callers that still wait: at once, or the one that reads when its poll ends."""
        with self._changed:
            self._closed = True
            if self._consumer is not None and not self._is_read:
                self._consumer.close()
            self._changed.notify_all()
