"""A message that was sent, as the record that is put into the log. Pure functions.

What RocketMQ's broker adds to a single message is added here: a UNIQ_KEY where its sender has set
none, MSG_REGION, TRACE_ON and CLUSTER. A batch's messages stay as they are (see batch.py). A
message with a delay, by level or time, and a half message get the form in which they wait.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.remoting.batch import batch_frame
from penstock.remoting.fields import SendFields
from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.delay_levels import is_no_level
from penstock.shared.formats.properties import DELAY, UNIQ_KEY, decode_properties, encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_crc import PROP_CRC, with_prop_crc_room
from penstock.shared.formats.record_layout import (
    SYS_ANY_HOST_V6,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    Shape,
)
from penstock.shared.messaging.delayed import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    Delay,
    delayed,
)
from penstock.shared.messaging.half import TRAN_MSG, as_half
from penstock.shared.messaging.system_topics import dlq_topic
from penstock.shared.names import MAX_PROPERTIES_BYTES, RETRY_PREFIX, check_topic

REGION = "DefaultRegion"
# RocketMQ's mark on a message that POP has handed out, and a property that the broker sets itself.
_DROPPED = ("POP_CK", PROP_CRC)
# The number of messages in a record that is itself a batch.
INNER_NUM = "INNER_NUM"


_NUMBER = re.compile("-?[0-9]{1,15}")


class Sent(NamedTuple):
    """Records for one queue of `topic`, which is not the sender's topic while they wait. `sizes`
    are the records', in bytes."""

    topic: str
    queue_id: int
    records: bytes
    sizes: Sequence[int]
    is_batch: bool
    unique_key: str = ""

    @property
    def messages(self) -> int:
        return len(self.sizes)


def sent_message(
    fields: SendFields,
    queue_id: int,
    body: bytes,
    *,
    new_key: str,
    now_ms: int,
    born_host: bytes,
    cluster: str,
    max_message_bytes: int,
    shape: Shape,
) -> Sent:
    """A single message for this queue. `new_key` is its UNIQ_KEY if it has none.

    Raises InvalidArgument, InvalidMessage, PropertiesTooLarge.
    """
    topic = check_topic(fields.topic)
    if len(body) > max_message_bytes:
        raise InvalidMessage(
            f"the body is larger than {max_message_bytes} bytes",
            len(body),
            f"start the broker with: penstock up --set max_message_size_bytes={len(body)}",
        )
    properties = _sent_properties(fields)
    properties.setdefault(UNIQ_KEY, new_key)
    properties |= {"MSG_REGION": REGION, "TRACE_ON": "true", "CLUSTER": cluster}
    record = Record(
        topic,
        body,
        encode_properties(properties),
        queue_id=queue_id,
        flag=fields.flag,
        sys_flag=fields.sys_flag & ~SYS_ANY_HOST_V6,
        born_timestamp_ms=fields.born_timestamp,
        born_host=born_host,
        store_host=bytes(shape.store_host_bytes),
        reconsume_times=fields.reconsume_times,
    )
    if _is_half(fields, properties):
        record = as_half(record, fields.producer_group)
    elif fields.sys_flag & SYS_TRANSACTION_MASK:
        raise InvalidMessage(
            "the message is marked as part of a transaction, and is no half message",
            hex(fields.sys_flag),
            f"give it the property {TRAN_MSG}",
        )
    else:
        record = delayed(record, _timer(properties, now_ms))
    raw = with_prop_crc_room(record.properties, shape.prop_crc)
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(
            f"the properties take more than {MAX_PROPERTIES_BYTES} bytes",
            len(raw),
            "put large values into the body",
        )
    whole = encode_record(replace(record, properties=raw))
    return Sent(record.topic, record.queue_id, whole, (len(whole),), False, properties[UNIQ_KEY])


def sent_batch(
    fields: SendFields,
    queue_id: int,
    body: bytes,
    *,
    born_host: bytes,
    max_message_bytes: int,
    shape: Shape,
) -> Sent:
    """A batch for this queue. Raises InvalidArgument, InvalidMessage, PropertiesTooLarge."""
    records, sizes = batch_frame(
        body,
        fields.topic,
        queue_id,
        born_timestamp_ms=fields.born_timestamp,
        born_host=born_host,
        sys_flag=fields.sys_flag & ~SYS_ANY_HOST_V6,
        reconsume_times=fields.reconsume_times,
        max_message_bytes=max_message_bytes,
        shape=shape,
    )
    return Sent(fields.topic, queue_id, records, sizes, True)


def as_dead_letter(fields: SendFields) -> SendFields:
    """Turn what a client gives back to its group's retry topic into a dead letter of the group."""
    # RocketMQ's mark on a dead letter that was sent; one that was given back by its id has level 0
    properties = decode_properties(fields.properties.encode("utf-8", "replace")) | {DELAY: "-1"}
    return replace(
        fields,
        topic=dlq_topic(fields.topic.removeprefix(RETRY_PREFIX)),
        queue_id=0,
        properties=encode_properties(properties).decode(),
    )


def _timer(properties: dict[str, str], now_ms: int) -> Delay | None:
    """When a message is to be delivered, if it names a time that is to come. A level takes
    precedence. As in RocketMQ, a message of a time in the past does not wait."""
    if _names_level(properties):
        return None
    for name, unit_ms in ((TIMER_DELAY_SEC, 1000), (TIMER_DELAY_MS, 1), (TIMER_DELIVER_MS, 0)):
        text = properties.get(name)
        if text is None:
            continue
        if not _NUMBER.fullmatch(text):
            what = "the message's time is not a number of up to 15 digits"
            raise InvalidMessage(what, f"{name}={text[:40]}")
        delay_ms = int(text) * unit_ms
        out_ms = now_ms + delay_ms if unit_ms else int(text)
        return Delay(out_ms=out_ms, delay_ms=delay_ms) if out_ms > now_ms else None
    return None


def _sent_properties(fields: SendFields) -> dict[str, str]:
    """The sender's properties that are stored. Raises InvalidMessage for a message that only
    RocketMQ's queues of type BatchCQ can hold."""
    properties = decode_properties(fields.properties.encode("utf-8", "replace"))
    for name in _DROPPED:
        properties.pop(name, None)
    if fields.sys_flag & SYS_INNER_BATCH or INNER_NUM in properties:
        raise InvalidMessage(
            "the message is marked as a batch in one record, and no topic here has queues for such",
            hex(fields.sys_flag),
            "send its messages as a batch",
        )
    return properties


def _names_level(properties: dict[str, str]) -> bool:
    """Whether it asks for a delay by level, as far as RocketMQ goes: 0 and less is no delay."""
    return not is_no_level(properties.get(DELAY, "0").encode())


def _is_half(fields: SendFields, properties: dict[str, str]) -> bool:
    """Whether it is a half message: one that comes again after a delay is not one a second time."""
    comes_again = fields.reconsume_times > 0 and _names_level(properties)
    return properties.get(TRAN_MSG, "").lower() == "true" and not comes_again
