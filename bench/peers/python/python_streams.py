"""Clients made for asyncio: nats-py for NATS JetStream, rstream for RabbitMQ's streams.

Both pass each message to a callback as it comes. The reader takes everything that has come at once.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from penstock.shared.errors import StoreUnavailable

ANSWER_TIMEOUT_S = 60
# RabbitMQ's default user
USER = {"username": "guest", "password": "guest"}


class _Came:
    """Bodies that have come but were not read yet."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._some = asyncio.Event()

    def put(self, body: bytes) -> None:
        self.bodies.append(body)
        self._some.set()

    async def take(self, timeout_s: float) -> list[bytes]:
        """All of them, as soon as there is one; none if the time is over."""
        if not self.bodies:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._some.wait()
            except TimeoutError:
                return []
        self._some.clear()
        bodies, self.bodies = self.bodies, []
        return bodies


class _Unanswered:
    """Counts unanswered messages, and keeps them below a number. With 1, each is answered before
    the next is sent; otherwise a loop that sleeps until then would not even send it."""

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._count = 0
        self._failed: list[object] = []
        self._changed = asyncio.Event()

    def sent(self, count: int) -> None:
        self._count += count

    def answered(self, error: object = None) -> None:
        self._count -= 1
        if error is not None:
            self._failed.append(error)
        self._changed.set()

    async def room(self) -> None:
        await self._below(self._in_flight)

    async def none(self) -> None:
        """Wait until none is unanswered. Raises StoreUnavailable if a message was not taken."""
        await self._below(1)
        if self._failed:
            raise StoreUnavailable("messages were not taken", self._failed[0])

    async def _below(self, number: int) -> None:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while self._count >= number:
                self._changed.clear()
                await self._changed.wait()


class NatsPy:
    """nats-py: `publish_async` for each message, and an ordered consumer that pushes."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        self._endpoint, self._topic, self._in_flight = endpoint, topic, in_flight
        self._unanswered = _Unanswered(in_flight)
        self._came = _Came()
        self._stream: Any = None
        self._subscribed: Any = None

    async def _connected(self) -> Any:
        if self._stream is None:
            connection = await import_module("nats").connect(f"nats://{self._endpoint}")
            self._stream = connection.jetstream(
                timeout=ANSWER_TIMEOUT_S, publish_async_max_pending=max(64, self._in_flight)
            )
            await self._stream.add_stream(name=self._topic, subjects=[self._topic])
        return self._stream

    def _answered(self, future: asyncio.Future[object]) -> None:
        self._unanswered.answered(future.exception())

    async def send(self, bodies: list[bytes]) -> None:
        stream, topic = await self._connected(), self._topic
        self._unanswered.sent(len(bodies))
        for body in bodies:
            future = await stream.publish_async(topic, body)
            future.add_done_callback(self._answered)
        await self._unanswered.room()

    async def settle(self) -> None:
        await self._unanswered.none()

    async def start(self) -> None:
        stream = await self._connected()
        if self._subscribed is not None:
            await self._subscribed.unsubscribe()
        self._came = came = _Came()

        async def take(message: Any) -> None:
            came.put(message.data)

        self._subscribed = await stream.subscribe(self._topic, cb=take, ordered_consumer=True)

    async def read(self, timeout_s: float) -> list[bytes]:
        return await self._came.take(timeout_s)


class RStream:
    """rstream: `send_batch` of bare bytes, which its documentation calls fastest, with a
    confirmation for each message, and a consumer without a codec."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        self._rstream: Any = import_module("rstream")
        host, _, port = endpoint.rpartition(":")
        self._where = {"host": host, "port": int(port), **USER}
        self._topic = topic
        self._unanswered = _Unanswered(in_flight)
        self._came = _Came()
        self._producer: Any = None
        self._consumer: Any = None

    async def _made(self, kind: Any) -> Any:
        """A producer or a consumer; the first of them makes the stream."""
        made = kind(**self._where)
        await made.start()
        await made.create_stream(self._topic, exists_ok=True)
        return made

    def _confirmed(self, status: Any) -> None:
        self._unanswered.answered(None if status.is_confirmed else status.response_code)

    async def send(self, bodies: list[bytes]) -> None:
        if self._producer is None:
            self._producer = await self._made(self._rstream.Producer)
        self._unanswered.sent(len(bodies))
        await self._producer.send_batch(self._topic, bodies, on_publish_confirm=self._confirmed)
        await self._unanswered.room()

    async def settle(self) -> None:
        await self._unanswered.none()

    async def start(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        self._consumer = await self._made(self._rstream.Consumer)
        self._came = came = _Came()
        await self._consumer.subscribe(self._topic, lambda body, context: came.put(body))

    async def read(self, timeout_s: float) -> list[bytes]:
        return await self._came.take(timeout_s)
