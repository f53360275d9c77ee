"""One broker and all its clients: found once, by store or by any of its endpoints.

It holds no socket: it makes ordinary clients, and closes them when its block ends.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from penstock.client.connecting.broker_address import Store
from penstock.client.connecting.where import where
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.options import Topics
from penstock.client.reading.consumer import Consumer
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer


class Connection:
    """Makes producers, consumers and queries of one broker.

        with penstock.connect("./store") as broker:
            broker.producer().send("orders", b"...")
            for message in broker.consumer("orders", follow=False):
                print(message.body)

    The methods take the arguments of the classes. Leaving the block closes the clients, the last
    one first.
    """

    def __init__(
        self,
        target: Store | None = None,
        *,
        endpoint: str | None = None,
        store: Store | None = None,
    ) -> None:
        """`target` is an endpoint or a store; the other two arguments say which. Without any, it is
        the broker that is meant here: see `penstock.connect`.

        Raises InvalidArgument.
        """
        self._where = where(target, endpoint, store)
        self._made = ExitStack()

    def producer(self, **arguments: Any) -> Producer:
        """A producer. Raises ConnectError; for the arguments see Producer."""
        return self._made.enter_context(Producer(**self._where.arguments("producers"), **arguments))

    def consumer(self, topic: str, **arguments: Any) -> Consumer:
        """A consumer of a topic. Raises ConnectError; for the arguments see Consumer."""
        where = self._where.arguments("consumers")
        return self._made.enter_context(Consumer(**where, topic=topic, **arguments))

    def group(self, group: str, topics: Topics, **arguments: Any) -> GroupConsumer:
        """A member of a consumer group, which joins when the first message is asked for.

        For the arguments see GroupConsumer. Raises ConnectError.
        """
        endpoint, store = self._where.endpoint, self._where.store
        return self._made.enter_context(
            GroupConsumer(endpoint, group, topics, store=store, **arguments)
        )

    def query(self, **arguments: Any) -> MessageQuery:
        """A query for single messages. Raises ConnectError; for the arguments see MessageQuery."""
        return self._made.enter_context(
            MessageQuery(**self._where.arguments("consumers"), **arguments)
        )

    def topics(self) -> dict[str, int]:
        """All topics, and how many queues each has. Raises ConnectError."""
        with Producer(**self._where.arguments("producers")) as producer:
            return producer.topics()

    def close(self) -> None:
        """Close every client that was made here; producers wait for their outcomes."""
        self._made.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *raised: Any) -> None:
        # passed on, so that after a failed block no producer raises failures of its own as well
        self._made.__exit__(*raised)

    def _repr_html_(self) -> str:
        return self._where.as_html()

    def __repr__(self) -> str:
        return f"<penstock broker at {self._where.name}>"
