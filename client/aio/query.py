"""The asyncio twin of penstock.client.reading.query."""

from __future__ import annotations

import zmq

from penstock.client.aio.link import Link
from penstock.client.connecting.broker_address import Store
from penstock.client.core.message import Message
from penstock.client.core.query_core import (
    DEFAULT_MAX_NUM,
    REPEAT_MS,
    QueryCore,
    Question,
    Time,
    by_id,
    by_key,
    by_unique_key,
)
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.notebook import as_table


class MessageQuery(Link):
    """Asks a broker for single messages; see the synchronous one for the rules.

    async with MessageQuery(store="./store") as query:
        found = await query.by_key("orders", "order-4711")
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: Store | None = None,
        timeout_ms: int = 30_000,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(endpoint, store, timeout_ms, wait_for_broker_ms)
        self._clock = clock or SystemClock()
        self._core = QueryCore(self._address.name, timeout_ms)
        self._aim, self._given_up = self._core.aim, self._core.given_up

    def _repr_html_(self) -> str:
        return as_table("Message query", [("broker", self._address.name)])

    async def by_key(
        self,
        topic: str,
        key: str,
        max_num: int = DEFAULT_MAX_NUM,
        *,
        begin: Time = None,
        end: Time = None,
    ) -> list[Message]:
        """The newest messages with this key, oldest first."""
        return await self._ask(by_key(topic, key, max_num, begin, end))

    async def by_unique_key(self, topic: str, unique_key: str) -> list[Message]:
        """The messages with this unique key: one, unless it was sent twice."""
        return await self._ask(by_unique_key(topic, unique_key))

    async def by_id(self, message_id: str) -> Message:
        """The message that an offsetMsgId names. Raises MessageNotFound if there is none."""
        return (await self._ask(by_id(message_id)))[0]

    async def _ask(self, question: Question) -> list[Message]:
        socket = self._socket
        self._core.ask(question, self._clock.monotonic_ms())
        while self._core.found is None:
            now_ms = self._clock.monotonic_ms()
            self._follow(now_ms)
            header = self._core.outgoing(now_ms)
            # A connection takes a moment to open. Until then nothing can be sent or answered.
            if header is not None and not await self._sent(header):
                self._core.not_connected()
            elif await socket.poll(REPEAT_MS):
                self._core.received(await socket.recv_multipart())
        return self._core.found

    async def _sent(self, header: bytes) -> bool:
        """Whether it could be sent; waits as long as for an answer."""
        if not await self._socket.poll(REPEAT_MS, zmq.POLLOUT):
            return False
        try:
            await self._socket.send(header, zmq.NOBLOCK)
        except zmq.Again:  # the connection was lost in between
            return False
        return True
