"""The asyncio twin of penstock.client.connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from penstock.client.aio.consumer import Consumer
from penstock.client.aio.group_consumer import GroupConsumer
from penstock.client.aio.producer import Producer
from penstock.client.aio.query import MessageQuery
from penstock.client.connecting.broker_address import Store
from penstock.client.connecting.where import where
from penstock.client.groups.options import Topics
from penstock.shared.wire.introduction import Serves


class Connection:
    """Makes producers, consumers and queries of one broker, already open.

    async with Connection("./store") as broker:
        producer = await broker.producer()
        await producer.send("orders", b"...")

    Leaving the block closes them, the last one first.
    """

    def __init__(
        self,
        target: Store | None = None,
        *,
        endpoint: str | None = None,
        store: Store | None = None,
    ) -> None:
        """`target` is an endpoint or a store. Raises InvalidArgument."""
        self._where = where(target, endpoint, store)
        self._made = AsyncExitStack()

    async def producer(self, **arguments: Any) -> Producer:
        """An open Producer. Raises ConnectError."""
        where = await self._arguments("producers")
        return await self._made.enter_async_context(Producer(**where, **arguments))

    async def consumer(self, topic: str, **arguments: Any) -> Consumer:
        """An open Consumer of a topic. Raises ConnectError."""
        where = await self._arguments("consumers")
        consumer = Consumer(**where, topic=topic, **arguments)
        return await self._made.enter_async_context(consumer)

    async def group(self, group: str, topics: Topics, **arguments: Any) -> GroupConsumer:
        """A member of a consumer group. Raises ConnectError."""
        endpoint, store = self._where.endpoint, self._where.store
        member = GroupConsumer(endpoint, group, topics, store=store, **arguments)
        return await self._made.enter_async_context(member)

    async def query(self, **arguments: Any) -> MessageQuery:
        """An open MessageQuery. Raises ConnectError."""
        where = await self._arguments("consumers")
        return await self._made.enter_async_context(MessageQuery(**where, **arguments))

    async def topics(self) -> dict[str, int]:
        """All topics, and how many queues each has. Raises ConnectError."""
        async with Producer(**await self._arguments("producers")) as producer:
            return await producer.topics()

    async def _arguments(self, serves: Serves) -> dict[str, Any]:
        return await asyncio.to_thread(self._where.arguments, serves)

    def __repr__(self) -> str:
        return f"<penstock broker at {self._where.name}>"

    def _repr_html_(self) -> str:
        return self._where.as_html()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._made.__aexit__(*raised)
