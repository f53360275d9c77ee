"""Clients of a broker: Producer, Consumer, GroupConsumer, MessageQuery; for asyncio in `aio`.

May import `shared`. No class is imported before it is asked for: an actor that puts messages into
the log needs only client.core, and a broker's start would otherwise wait for the rest.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING, because typing imports slowly
if TYPE_CHECKING:
    from penstock.client.connection import Connection
    from penstock.client.core.message import Message
    from penstock.client.core.sending.selectors import at_random, by_hash
    from penstock.client.groups.consumer import GroupConsumer
    from penstock.client.groups.message import Batch, GroupMessage
    from penstock.client.groups.options import Sql
    from penstock.client.reading.consumer import Consumer
    from penstock.client.reading.query import MessageQuery
    from penstock.client.sending.producer import BatchMessage, Producer, Receipt, SendFuture

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

# The module of each class, in this package.
_MODULES = {
    "Batch": "groups.message",
    "BatchMessage": "sending.producer",
    "Connection": "connection",
    "Consumer": "reading.consumer",
    "GroupConsumer": "groups.consumer",
    "GroupMessage": "groups.message",
    "Message": "core.message",
    "MessageQuery": "reading.query",
    "Producer": "sending.producer",
    "Receipt": "sending.producer",
    "SendFuture": "sending.producer",
    "Sql": "groups.options",
    "at_random": "core.sending.selectors",
    "by_hash": "core.sending.selectors",
}
assert list(_MODULES) == __all__


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
