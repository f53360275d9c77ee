"""What the properties of a produced message may not be, for whole frames at once.

Most frames hold none of the names looked for, so one search through a frame's bytes usually does.
Only where one of them occurs, in a body perhaps, are its records taken apart. Pure functions.
"""

from __future__ import annotations

from penstock.shared.errors import InvalidMessage
from penstock.shared.hot_loops import properties_at
from penstock.shared.layout import RETRY_PREFIX
from penstock.shared.properties import DELAY, find_property
from penstock.shared.record_crc import PROP_CRC_BYTES, PROP_CRC_LEAD, has_prop_crc

_DELAY = DELAY.encode()


def check_properties(frame: bytes | bytearray, starts: list[int], prop_crc: bool) -> None:
    """Raise InvalidMessage for a delayed message, a checksum where none belongs or is missing, and
    properties whose end could not be told from one that is torn.

    `starts` are the records' places, the frame's length last; `prop_crc` says whether each has to
    end in the room for a checksum.
    """
    if prop_crc and not all(has_prop_crc(frame, end) for end in starts[1:]):
        raise InvalidMessage(
            "each record ends in 20 bytes for its checksum (enabled_append_prop_crc)",
            "one has none",
            "the broker's Welcome says so",
        )
    if not all(frame[end - 1] for end in starts[1:]):
        _check_ends(frame, starts)
    own = len(starts) - 1 if prop_crc else 0
    if _DELAY + b"\x01" not in frame and frame.count(PROP_CRC_LEAD) == own:
        return
    view = memoryview(frame)
    for at, end in zip(starts, starts[1:], strict=False):
        properties = properties_at(view, at, end - at)
        level = find_property(properties, _DELAY)
        if level and level != b"0":
            raise delay_refused(level.decode("utf-8", "replace"))
        if PROP_CRC_LEAD in b"\x02" + properties[: -PROP_CRC_BYTES if prop_crc else None]:
            raise InvalidMessage(
                "a sender gives no checksum of the record: the broker makes it",
                "property __CRC32#",
                "leave the property out",
            )


def _check_ends(frame: bytes | bytearray, starts: list[int]) -> None:
    """Properties that end in a zero byte would look, after a power failure, as if torn there."""
    view = memoryview(frame)
    for at, end in zip(starts, starts[1:], strict=False):
        if properties_at(view, at, end - at).endswith(b"\0"):
            raise InvalidMessage(
                "properties do not end in a zero byte", "they do", "end each property with 0x02"
            )


def delay_refused(level: object) -> InvalidMessage:
    """Nothing delivers delayed messages yet, so taking one would be losing it."""
    return InvalidMessage(
        "messages are delivered at once: this broker has no scheduler for delay levels",
        f"DELAY={level}",
        "leave the delay out",
    )


def check_batch(topic: str, body_bytes: int, max_body_bytes: int) -> None:
    """Raise InvalidMessage for a batch that RocketMQ would refuse as a whole."""
    if topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("a batch is not for a retry topic", topic, "send single messages")
    if body_bytes > max_body_bytes:
        raise InvalidMessage(
            f"a batch has at most {max_body_bytes} bytes",
            body_bytes,
            "send smaller batches, or raise max_message_size_bytes at the broker",
        )
