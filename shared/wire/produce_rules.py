"""What a broker refuses in a produced message or batch, and the words for it.

Client and broker both apply these rules: the client fails before anything is sent, and the broker
cannot trust a client.
"""

from __future__ import annotations

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.names import MAX_PROPERTIES_BYTES, RETRY_PREFIX


def delay_refused(level: str) -> InvalidMessage:
    """The error for an ordinary record that asks for a delay: it would not be delayed."""
    if not (level.isascii() and level.isdigit() and len(level) <= 9):
        what = "the message's delay level is not a number"
        return InvalidMessage(what, f"DELAY={level[:40]}", "levels go from 1 to 18")
    return InvalidMessage(
        "the message asks for a delay, and is not in the form in which delayed messages wait",
        f"DELAY={level}",
        f"send it with delay_level={level}",
    )


def check_properties_size(length: int) -> None:
    """Raise PropertiesTooLarge for properties of this many bytes, UNIQ_KEY among them.

    The limit is RocketMQ's: in a record their length is a signed 16-bit number.
    """
    if length > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(
            f"properties, tags and keys take more than {MAX_PROPERTIES_BYTES} bytes together",
            length,
            "put large values into the body",
        )


def check_batch(topic: str, body_bytes: int, max_body_bytes: int) -> None:
    """Raise InvalidMessage for a batch that RocketMQ would refuse as a whole.

    `body_bytes` is the size of the whole batch, which may not exceed that of one message.
    """
    if topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("the batch is for a retry topic", topic, "send single messages")
    if body_bytes > max_body_bytes:
        raise InvalidMessage(
            f"the batch is larger than {max_body_bytes} bytes",
            body_bytes,
            "send smaller batches, or start the broker with: penstock up --set "
            f"max_message_size_bytes={body_bytes}",
        )
