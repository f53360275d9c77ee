"""Clients of a broker: Producer, Consumer and MessageQuery; the same names for asyncio in `aio`."""

from penstock.client.connection import Connection
from penstock.client.consumer import Consumer
from penstock.client.core.message import Message
from penstock.client.core.sending.selectors import at_random, by_hash
from penstock.client.producer import BatchMessage, Producer, Receipt, SendFuture
from penstock.client.query import MessageQuery

__all__ = [
    "BatchMessage",
    "Connection",
    "Consumer",
    "Message",
    "MessageQuery",
    "Producer",
    "Receipt",
    "SendFuture",
    "at_random",
    "by_hash",
]
