"""The records of transactions, in RocketMQ's form. Pure functions on records and their properties.

    half record    RMQ_SYS_TRANS_HALF_TOPIC queue 0   the message, and which topic it is really for
    committed      its real topic and queue           the message, as consumers see it
    op record      RMQ_SYS_TRANS_OP_HALF_TOPIC        queue offsets of half records that are done
    put back       RMQ_SYS_TRANS_HALF_TOPIC queue 0   the half record again, further on
    discarded      TRANS_CHECK_MAX_TIME_TOPIC         the message whose outcome nobody could tell

To the log a half record is ordinary: the transaction bits of its sysFlag are 0, and only its topic
makes it half. Each copy follows from the stored record alone, without a clock: so a copy that may
have been stored before can be compared with what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    whole_number,
    without,
)
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.formats.record_layout import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    Shape,
)
from penstock.shared.messaging.system_topics import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from penstock.shared.names import MAX_PROPERTIES_BYTES

if TYPE_CHECKING:
    # imported where it is needed: a producer needs only the form of a half message
    from penstock.shared.formats.record import Record

# RocketMQ's names of properties.
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
# In op records, and Penstock's own: how these half records ended. RocketMQ reads only the tag and
# the body.
OUTCOME = "PENSTOCK_OUTCOME"

DONE_TAG = "d"
MAX_OP_CHARACTERS = 4096
# RocketMQ reads these properties as Java's ints and longs
_MAX_QUEUE_ID, _MAX_SECONDS = (1 << 31) - 1, 1 << 40


class Half(NamedTuple):
    """What a half record says besides its message."""

    topic: str
    queue_id: int
    group: str
    unique_key: str
    check_times: int  # how often its producer was asked before the record was put back
    immunity_s: int  # nobody is asked for this many seconds from its birth; -1: the broker's time
    first_offset: int  # in a record that was put back: the first one's queue offset; or -1


class HalfForm(NamedTuple):
    """How to send a message of this producer group as half.

    Nobody is asked about it before it is `immunity_s` seconds old; -1: as the broker is configured.
    """

    group: str
    immunity_s: int = -1

    @property
    def topic(self) -> str:
        return HALF_TOPIC

    @property
    def queue_id(self) -> int:
        return 0

    def properties(self, topic: str, queue_id: int) -> dict[str, str]:
        """The properties that a half message for this queue has besides its own."""
        found = half_properties(topic, queue_id, self.group)
        if self.immunity_s >= 0:
            found[CHECK_IMMUNITY] = str(self.immunity_s)
        return found


def half_properties(topic: str, queue_id: int, group: str) -> dict[str, str]:
    """The properties that a message has while it is half, besides its own. A RocketMQ broker also
    repeats its UNIQ_KEY there, as __transactionId__, and never reads that."""
    return {TRAN_MSG: "true", PGROUP: group, REAL_TOPIC: topic, REAL_QID: str(queue_id)}


def as_half(record: Record, group: str) -> Record:
    """The half record of a message that RocketMQ's client has marked as half. `group` is its
    producer's, for a message that names none."""
    found = decode_properties(record.properties)
    found |= half_properties(record.topic, record.queue_id, found.get(PGROUP, group))
    found[TRANSACTION_ID] = found.get(UNIQ_KEY, "")
    return replace(
        record,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=record.sys_flag & ~SYS_TRANSACTION_MASK,
        properties=encode_properties(found),
    )


def read_half(properties: bytes) -> Half:
    """Raises InvalidMessage for properties that are not a half record's."""
    found = decode_properties(properties)
    for name in (REAL_TOPIC, PGROUP, UNIQ_KEY):
        if name not in found:
            raise _no_half(f"it has no property {name}")
    queue_id = whole_number(found.get(REAL_QID, ""))
    if not 0 <= queue_id <= _MAX_QUEUE_ID:
        raise _no_half(f"{REAL_QID} is {found.get(REAL_QID)!r:.40}")
    immunity = whole_number(found.get(CHECK_IMMUNITY, ""))
    return Half(
        found[REAL_TOPIC],
        queue_id,
        found[PGROUP],
        found[UNIQ_KEY],
        max(0, whole_number(found.get(CHECK_TIMES, ""))),
        immunity if immunity <= _MAX_SECONDS else -1,
        whole_number(found.get(PREPARED_QUEUE_OFFSET, "")),
    )


def check_half(properties: bytes) -> Half:
    """Check what a producer sends as a half record. Raises InvalidMessage."""
    half = read_half(properties)
    found = decode_properties(properties)
    if found.get(TRAN_MSG, "").lower() != "true":
        raise _no_half(f"{TRAN_MSG} is not true")
    if found.get(DELAY, "0") != "0":
        raise _no_half("it has a delay too")
    return half


def committed(half: Record) -> Record:
    """The message that consumers see. Raises InvalidMessage where `half` is not a half record.

    It has the same properties as the half record, as on RocketMQ's disk.
    """
    meant = read_half(half.properties)
    return replace(
        _unstamped(half),
        topic=meant.topic,
        queue_id=meant.queue_id,
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_TRANSACTION_COMMIT,
        prepared_transaction_offset=half.physical_offset,
    )


def put_back(half: Record, check_times: int) -> Record:
    """The half record again, for the end of its queue. It says where the first one stood, and how
    often its producer was asked. RocketMQ's copy loses flag and reconsumeTimes."""
    meant = read_half(half.properties)
    first = meant.first_offset if meant.first_offset >= 0 else half.queue_offset
    changed = {CHECK_TIMES: str(check_times), PREPARED_QUEUE_OFFSET: str(first)}
    return replace(
        _unstamped(half),
        properties=_with(half.properties, changed),
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK,
        prepared_transaction_offset=0,
    )


def discarded(half: Record) -> Record:
    """The message in the topic for those whose outcome nobody could tell."""
    return replace(_unstamped(half), topic=TRANS_CHECK_MAX_TIME_TOPIC, queue_id=0)


def as_real(half: Record) -> Record:
    """The half record as the producer that is asked sees it: with its real topic and queue."""
    meant = read_half(half.properties)
    return replace(half, topic=meant.topic, queue_id=meant.queue_id)


def op_records(
    offsets: Iterable[int], outcome: str, unique_keys: Iterator[str], born_ms: int, host: bytes
) -> list[Record]:
    """Op records for these half records, in RocketMQ 5.1's form: several offsets in each.

    `host` is the broker's. Each op record takes one of the `unique_keys`.
    """
    from penstock.shared.formats.record import Record

    return [
        Record(
            OP_TOPIC,
            body,
            encode_properties({TAGS: DONE_TAG, UNIQ_KEY: next(unique_keys), OUTCOME: outcome}),
            born_timestamp_ms=born_ms,
            born_host=host,
        )
        for body in op_bodies(offsets)
    ]


def op_bodies(offsets: Iterable[int]) -> Iterator[bytes]:
    """`12,15,`: each offset with a comma, none longer than RocketMQ's limit."""
    body = ""
    for offset in offsets:
        text = f"{offset},"
        if len(body) + len(text) > MAX_OP_CHARACTERS:
            yield body.encode()
            body = ""
        body += text
    if body:
        yield body.encode()


def parse_op(body: bytes) -> tuple[int, ...]:
    """The queue offsets that an op record names: `12` before RocketMQ 5.1, `12,15,` since.

    What is not a number is skipped, as in RocketMQ.
    """
    found = (whole_number(each) for each in body.decode("latin-1").split(","))
    return tuple(offset for offset in found if offset >= 0)


def op_outcome(properties: bytes) -> str:
    """How the half records of an op record ended; "" in RocketMQ's own, which do not say."""
    return decode_properties(properties).get(OUTCOME, "")


def as_sent(record: Record, shape: Shape) -> Record:
    """The record with the room that a broker's records leave for what it stamps.

    The store may have got checksums since the half message was stored. If its properties leave no
    room for one, those that only the broker needs are dropped: otherwise nobody could end it.
    """
    properties = with_prop_crc_room(record.properties, shape.prop_crc)
    if len(properties) > MAX_PROPERTIES_BYTES:
        rest = without(record.properties, (TRAN_MSG, REAL_QID, TRANSACTION_ID))
        properties = with_prop_crc_room(rest, shape.prop_crc)
    return replace(record, store_host=bytes(shape.store_host_bytes), properties=properties)


def _unstamped(record: Record) -> Record:
    """The record without what a broker stamps, the checksum included."""
    return replace(
        record,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        store_host=bytes(8),
        properties=with_prop_crc_room(record.properties, False),
    )


def _with(properties: bytes, changed: dict[str, str]) -> bytes:
    """The properties, with these instead of others of the same names."""
    kept = without(with_prop_crc_room(properties, False), changed)
    return kept + encode_properties(changed)


def _no_half(why: str) -> InvalidMessage:
    return InvalidMessage(
        f"a record for {HALF_TOPIC} is no half message",
        why,
        'send it in a transaction: with producer.transaction("TOPIC") as transaction',
    )
