"""Batches in the layout of RocketMQ's clients: encode, decode, and turn into records.

    size of the item i32 (22 + L + P), magic i32 = 0, bodyCRC i32 = 0, flag i32,
    body length L i32, body, properties length P i16, properties        item after item

On disk there are no batches: each item becomes an ordinary record. Topic, queue, times and hosts
come from the request; flag, body and properties from the item, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import SYS_INNER_BATCH, SYS_TRANSACTION_MASK, Shape
from penstock.shared.loops.active import batch_records
from penstock.shared.names import MAX_PROPERTIES_BYTES, check_topic
from penstock.shared.wire.produce_rules import check_batch

_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")
_FIXED_BYTES = _HEAD.size + _LENGTH.size

assert _FIXED_BYTES == 22, "an item without body and properties has 22 bytes"


class BatchItem(NamedTuple):
    """One message of a batch. `properties` are encoded; `body` may be empty, as in RocketMQ."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch request. Raises PropertiesTooLarge.

    The size of the whole is not checked: only the broker knows how much it accepts.
    """
    parts: list[bytes] = []
    for item in items:
        if len(item.properties) > MAX_PROPERTIES_BYTES:
            what = f"properties take more than {MAX_PROPERTIES_BYTES} bytes"
            raise PropertiesTooLarge(what, len(item.properties), "put large values into the body")
        size = _FIXED_BYTES + len(item.body) + len(item.properties)
        parts += (
            # magic and CRC as RocketMQ's clients leave them: the broker computes the CRC itself
            _HEAD.pack(size, 0, 0, item.flag, len(item.body)),
            item.body,
            _LENGTH.pack(len(item.properties)),
            item.properties,
        )
    return b"".join(parts)


def decode_batch(raw: bytes) -> list[BatchItem]:
    """The items of a batch. Raises InvalidMessage, which names the item, for anything else.

    Magic and CRC of an item are ignored, as RocketMQ ignores them: its clients send zeros.
    """
    items: list[BatchItem] = []
    at = 0
    while at < len(raw):
        left = len(raw) - at
        if left < _FIXED_BYTES:
            raise _bad("the batch ends in a part of an item", f"{left} bytes are left", items)
        size, _, _, flag, body_length = _HEAD.unpack_from(raw, at)
        if not _FIXED_BYTES <= size <= left:
            raise _bad(
                "an item does not end inside its batch", f"{size} bytes, {left} are left", items
            )
        # From here on `size` bounds everything, and `left` has bounded `size`. It is at least 22,
        # so the loop ends for any bytes.
        body_at = at + _HEAD.size
        if not 0 <= body_length <= size - _FIXED_BYTES:
            raise _bad(
                "a body does not end inside its item", f"{body_length} of {size} bytes", items
            )
        properties_at = body_at + body_length + _LENGTH.size
        (properties_length,) = _LENGTH.unpack_from(raw, properties_at - _LENGTH.size)
        # A negative length cannot pass: the item would have to end before its properties begin.
        if properties_at + properties_length != at + size:
            raise _bad("the lengths of an item do not add up to its size", f"{size} bytes", items)
        items.append(
            BatchItem(flag, raw[body_at : body_at + body_length], raw[properties_at : at + size])
        )
        at += size
    return items


def batch_frame(
    raw: bytes,
    topic: str,
    queue_id: int,
    *,
    born_timestamp_ms: int,
    born_host: bytes,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    max_message_bytes: int,
    shape: Shape,
) -> tuple[bytes, list[int]]:
    """A batch request as records, whose fields that the broker stamps are blank, and the size of
    each.

    Raises InvalidMessage for what RocketMQ refuses: no item, a transaction, a retry topic, a
    request of more than `max_message_bytes`. Raises PropertiesTooLarge if an item's properties fit,
    but not with the checksum that `shape` asks for.
    """
    if sys_flag & SYS_TRANSACTION_MASK:
        raise InvalidMessage(
            "the batch is marked as part of a transaction", hex(sys_flag), "send single messages"
        )
    if sys_flag & SYS_INNER_BATCH:
        raise InvalidMessage(
            "the batch is marked as one in one record, and no topic here has queues for such",
            hex(sys_flag),
            "send it without the mark",
        )
    check_batch(check_topic(topic), len(raw), max_message_bytes)
    # what all records have in common; after the topic comes a properties length of 0
    common = encode_record(
        Record(
            topic,
            b"",
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            # blank, but of the broker's length: it fills in its address without moving the rest
            store_host=bytes(shape.store_host_bytes),
            reconsume_times=reconsume_times,
        )
    )
    made = batch_records(raw, common, shape.prop_crc)
    if made is not None and made[1]:
        return made
    if not decode_batch(raw):
        raise InvalidMessage("the batch holds no message", None, "put at least one into it")
    raise PropertiesTooLarge(
        f"properties and checksum take more than {MAX_PROPERTIES_BYTES} bytes",
        f"in a batch of {len(raw)} bytes",
        "put large values into the body",
    )


def _bad(what: str, value: str, items: list[BatchItem]) -> InvalidMessage:
    return InvalidMessage(what, f"{value} in item {len(items)} of the batch")
