"""One broker and all its clients: found once, by store or by any of its endpoints.

It holds no socket: what it makes are ordinary clients, which it closes when its block ends.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from typing import Any

from penstock.client.broker_address import (
    Store,
    as_seen_from,
    check_one,
    check_store,
    not_served,
)
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.query import MessageQuery
from penstock.shared.wire.ask_broker import ask_broker
from penstock.shared.wire.endpoint import parse_endpoint
from penstock.shared.wire.introduction import ENDPOINT_OF, Greeted, Serves

_SCHEMES = ("tcp:", "ipc:")
# A directory of such a name can be given as ./NAME, or as store="NAME".
_LIKE_ENDPOINT = re.compile(r"[^/\\]+:[0-9]+|[a-z]+://.*")
# How long the broker may take to say who it is.
TIMEOUT_MS = 30_000


class Where:
    """Which broker a text means: an endpoint begins with tcp: or ipc:, all else is a store."""

    def __init__(self, target: Store | None, endpoint: str | None, store: Store | None) -> None:
        if target is not None and isinstance(target, str) and target.startswith(_SCHEMES):
            check_one(target, store if endpoint is None else endpoint)
            endpoint = target
        elif target is not None:
            check_one(endpoint, target)
            store = target
        check_one(endpoint, store)
        if store is not None:
            check_store(store)
            if isinstance(target, str) and _LIKE_ENDPOINT.fullmatch(target):
                parse_endpoint(target)  # raises: it lacks the tcp://
        if endpoint is not None:
            parse_endpoint(endpoint)
        self.endpoint, self.store = endpoint, store
        self.name = endpoint if store is None else os.fspath(store)
        self._broker: Greeted | None = None

    def arguments(self, serves: Serves) -> dict[str, Any]:
        """What a client of that kind is told. By endpoint, the broker is asked for the others.

        Raises ConnectError.
        """
        if self.endpoint is None:
            return {"store": self.store}
        if self._broker is None:
            self._broker = ask_broker(self.endpoint, TIMEOUT_MS)
        if serves == self._broker.serves:
            return {"endpoint": self.endpoint}
        there = getattr(as_seen_from(self.endpoint, self._broker), ENDPOINT_OF[serves])
        if not there:
            raise not_served(self.endpoint, serves)
        return {"endpoint": there}


class Connection:
    """Makes producers, consumers and queries of one broker.

        with penstock.connect("./store") as broker:
            broker.producer().send("orders", b"...")
            for message in broker.consumer("orders", follow=False):
                print(message.body)

    They take the arguments of the classes, and leaving the block closes them, the last one first.
    """

    def __init__(
        self,
        target: Store | None = None,
        *,
        endpoint: str | None = None,
        store: Store | None = None,
    ) -> None:
        """`target` is an endpoint or a store; which of both it is may be said by name.

        Raises InvalidArgument.
        """
        self._where = Where(target, endpoint, store)
        self._made = ExitStack()

    def producer(self, **arguments: Any) -> Producer:
        """A producer. Raises ConnectError; for the arguments see Producer."""
        return self._made.enter_context(Producer(**self._where.arguments("producers"), **arguments))

    def consumer(self, topic: str, **arguments: Any) -> Consumer:
        """A consumer of a topic. Raises ConnectError; for the arguments see Consumer."""
        where = self._where.arguments("consumers")
        return self._made.enter_context(Consumer(**where, topic=topic, **arguments))

    def query(self, **arguments: Any) -> MessageQuery:
        """For single messages. Raises ConnectError; for the arguments see MessageQuery."""
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
        # passed on: a producer whose block has failed does not raise failures of its own as well
        self._made.__exit__(*raised)

    def __repr__(self) -> str:
        return f"<penstock broker at {self._where.name}>"
