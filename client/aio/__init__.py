"""The clients for asyncio: the same names and arguments, the same cores.

May import `core`, `arrow`, `connecting`, `sending`, `groups`, `reading`, and `shared`. Nothing that
a synchronous client decides as well is decided here: that is in the core, or in the synchronous
client's room.
"""

from __future__ import annotations

from typing import Any

from penstock.client.aio.connection import Connection
from penstock.client.aio.consumer import Consumer
from penstock.client.aio.group_consumer import GroupConsumer
from penstock.client.aio.producer import Producer
from penstock.client.aio.query import MessageQuery
from penstock.client.connecting.broker_address import Store
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
    """A broker and its clients: see Connection in penstock.client.aio.connection."""
    return Connection(target, **named)
