"""Clients of a broker: Producer, Consumer, GroupConsumer, MessageQuery; for asyncio in `aio`."""

from penstock.client.connection import Connection
from penstock.client.consumer import Consumer
from penstock.client.core.message import Message
from penstock.client.core.sending.selectors import at_random, by_hash
from penstock.client.group_consumer import GroupConsumer
from penstock.client.group_message import Batch, GroupMessage
from penstock.client.group_options import Sql
from penstock.client.producer import BatchMessage, Producer, Receipt, SendFuture
from penstock.client.query import MessageQuery

__all__ = [
    "Batch",
    "BatchMessage",
    "Connection",
    "Consumer",
    "GroupConsumer",
    "GroupMessage",
    "Message",
    "MessageQuery",
    "Producer",
    "Receipt",
    "SendFuture",
    "Sql",
    "at_random",
    "by_hash",
]
