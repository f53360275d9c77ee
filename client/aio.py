"""The clients for asyncio: the same names and arguments, the same cores."""

from __future__ import annotations

from typing import Any

from penstock.client.aio_connection import Connection
from penstock.client.aio_consumer import Consumer
from penstock.client.aio_group_consumer import GroupConsumer
from penstock.client.aio_producer import Producer
from penstock.client.aio_query import MessageQuery
from penstock.client.broker_address import Store
from penstock.client.core.message import Message
from penstock.client.core.sending.frames import Receipt

__all__ = [
    "Consumer",
    "GroupConsumer",
    "Message",
    "MessageQuery",
    "Producer",
    "Receipt",
    "connect",
]


def connect(target: Store | None = None, **named: Any) -> Connection:
    """A broker and its clients: see Connection in penstock.client.aio_connection."""
    return Connection(target, **named)
