"""Clients of a broker: Producer and Consumer for ordinary code; the same names in `aio`."""

from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import BatchMessage, Producer, Receipt, SendFuture

__all__ = ["BatchMessage", "Consumer", "Message", "Producer", "Receipt", "SendFuture"]
