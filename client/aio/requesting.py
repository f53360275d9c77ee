"""The requesting side of request and reply, for an asyncio Producer.

Replies are read as in the synchronous requester (requester.py), but by a task that starts with the
first request and ends with the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Unpack

from penstock.client.aio.consumer import Consumer
from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.where import Where
from penstock.client.core.message import Message
from penstock.client.core.requests import check_wait, merged
from penstock.client.core.send_options import MessageFields
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import Receipt
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.timeouts import Timeouts
from penstock.client.sending.requester import LOOK_S
from penstock.shared.errors import BrokerTimeout, StoreUnavailable
from penstock.shared.messaging.request_reply import (
    CORRELATION_ID,
    new_client_id,
    new_correlation_id,
    replies_to,
    reply_topic,
    request_properties,
)

Send = Callable[[dict[str, str]], asyncio.Future[Receipt]]


class Requester:
    """The requests of one producer that wait for replies, and the task that reads those."""

    def __init__(
        self, where: Where, ip: bytes, timeouts: Timeouts, make_topic: Callable[[], Awaitable[None]]
    ) -> None:
        """`make_topic` creates the reply topic if it does not exist."""
        self._where, self._timeouts, self._make_topic = where, timeouts, make_topic
        self._client_id = new_client_id(ip)
        self._beginning = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    async def request(self, send: Send, topic: str, timeout: float) -> Message:
        """Send a request by `send`, which takes its properties, and wait for the reply. See
        `Producer.request`."""
        correlation_id = new_correlation_id()
        # the error to raise when the time is over: it depends on what was being waited for
        late = self._timeouts.question(timeout)
        try:
            async with asyncio.timeout(timeout):
                async with self._beginning:
                    self._check_open()
                    if self._task is None or self._task.done():
                        await self._begin()
                reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._waiting[correlation_id] = reply
                own = request_properties(correlation_id, self._client_id, int(timeout * 1000))
                late = self._timeouts.request(topic, correlation_id, timeout)
                await send(own)
                late = self._timeouts.reply(topic, correlation_id, timeout)
                return await reply
        except BrokerTimeout:
            raise  # a TimeoutError as well, but for the broker's silence and not for this timeout
        except TimeoutError:
            raise late from None
        finally:
            self._waiting.pop(correlation_id, None)

    async def _begin(self) -> None:
        """Read the replies that are stored from now on."""
        await self._make_topic()
        # by endpoint, this asks the broker for its consumers' endpoint, which may block
        where = await asyncio.to_thread(self._where.arguments, "consumers")
        consumer = Consumer(
            **where,
            topic=reply_topic(),
            start="latest",
            sql=replies_to(self._client_id),
            timeout_ms=self._timeouts.timeout_ms,
        )
        await consumer.__aenter__()
        try:
            while not consumer.is_placed:
                await consumer.poll(LOOK_S)
            self._check_open()
        except BaseException:
            await consumer.__aexit__()
            raise
        self._task = asyncio.create_task(self._read(consumer), name="penstock-requester")

    async def _read(self, consumer: Consumer) -> None:
        """Read replies until cancelled. An error fails all waiting requests, and the next request
        starts another task."""
        try:
            async for message in consumer:
                waiting = self._waiting.get(message.properties.get(CORRELATION_ID, ""))
                # the first reply counts; one whose request has ended is dropped
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except Exception as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
        finally:
            await consumer.__aexit__()

    async def close(self) -> None:
        """Fail the requests that still wait, and end the task."""
        self._closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                closed = StoreUnavailable("the producer was closed", self._timeouts.endpoint)
                waiting.set_exception(closed)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the producer is closed", self._timeouts.endpoint)


class Requesting:
    """The part of a producer that sends requests."""

    _address: BrokerAddress
    _core: ProducerCore
    _where: Where
    _requester: Requester | None

    if TYPE_CHECKING:
        # the producer's
        send: Callable[..., asyncio.Future[Receipt]]
        topics: Callable[[], Awaitable[dict[str, int]]]
        create_topic: Callable[[str, int], Awaitable[int]]

    async def request(
        self, topic: str, body: Body, *, timeout: float = 3.0, **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message and wait for its reply. See `penstock.client.Producer`."""
        seconds = check_wait(timeout)
        if self._requester is None:
            ip = await asyncio.to_thread(self._address.local_ip)
            if self._requester is None:  # else another request has made it meanwhile
                timeouts = self._core.timeouts
                self._requester = Requester(self._where, ip, timeouts, self._make_reply_topic)

        def send(own: dict[str, str]) -> asyncio.Future[Receipt]:
            fields["properties"] = merged(fields.get("properties"), own)
            return self.send(topic, body, **fields)

        return await self._requester.request(send, topic, seconds)

    async def _end_requests(self) -> None:
        if self._requester is not None:
            await self._requester.close()

    async def _make_reply_topic(self) -> None:
        if reply_topic() not in await self.topics():
            await self.create_topic(reply_topic(), 1)
