"""The record of a message that is to come again, or has come too often: RocketMQ's broker code 36.

    times a group has given it back < maximum   -> %RETRY%group, after the delay of a level, in a
                                                   queue by its first id
    otherwise, or at level -1                   -> %DLQ%group, queue 0, at once
    its properties leave no room for a retry's  -> the same, and RETRY_REASON says so

It is another record of the same message: body, hosts, times and UNIQ_KEY stay. ORIGIN_MESSAGE_ID is
the first record's id and RETRY_TOPIC its topic, however often the message comes. The broker
recognises a record that is sent twice by all of its bytes, and only if it has a UNIQ_KEY. So
nothing here may depend on a clock, and a message without a key gets its first id as one.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC, PROP_CRC_BYTES, crc32
from penstock.shared.messaging.delayed import TIMER_PROPERTIES
from penstock.shared.messaging.half import TRAN_MSG
from penstock.shared.messaging.system_topics import dlq_topic, retry_topic
from penstock.shared.names import MAX_PROPERTIES_BYTES

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# Why a handler last gave the message back, and which member's it was; Penstock's own.
RETRY_REASON = "RETRY_REASON"
RETRY_MEMBER = "RETRY_MEMBER"
MAX_REASON_CHARACTERS = 512

# The records before the next retry add this much to its properties at most, next to the name of its
# topic: REAL_TOPIC, REAL_QID, the scheduler's times, and a checksum.
_ROOM_FOR_DELAY = 200
_NO_ROOM = "its properties leave no room for those of a retry"

# A record has four bytes for the count, and a client may claim any number.
_MOST_TIMES = (1 << 31) - 1
# The level of the first retry. Each further one has the next level.
FIRST_LEVEL = 3
NEVER_AGAIN = -1

# Properties about the way so far; the next record must not repeat them.
_WAITED = frozenset((REAL_TOPIC, REAL_QID))
_OF_ITS_WAY = _WAITED.union((PROP_CRC, DELAY, TRAN_MSG, RETRY_MEMBER), TIMER_PROPERTIES)


def is_spent(times: int, max_times: int, level: int = 0) -> bool:
    """Whether a message that has come this often becomes a dead letter when it fails again."""
    return times >= max_times or level < 0


def retry_level(times: int, level: int = 0) -> int:
    """The delay level of the next retry; with `level` 0 RocketMQ's rule decides."""
    return min(level or FIRST_LEVEL + times, len(DELAY_LEVELS_MS))


def retried(
    record: Record,
    group: str,
    *,
    max_times: int,
    level: int = 0,
    retry_queues: int = 1,
    times: int = -1,
    reason: str = "",
    member: str = "",
) -> Record:
    """The record to store for a message that its group could not handle, with DELAY for its level.

    `record` is as it was read; `retry_queues` is the number of queues that the group has set for
    its retries; `times` is how often the message has come, unless the record says it; `member`
    gives it back. A record with a DELAY is not stored in its topic as it is: see `delayed.py`.
    """
    times = record.reconsume_times if times < 0 else times
    before = decode_properties(record.properties)
    first_id = before.get(ORIGIN_MESSAGE_ID) or offset_message_id(
        record.store_host, record.physical_offset
    )
    kept = {k: v for k, v in before.items() if k not in _OF_ITS_WAY}
    kept.setdefault(RETRY_TOPIC, record.topic)
    kept.setdefault(UNIQ_KEY, first_id)
    kept |= {WAIT: "false", ORIGIN_MESSAGE_ID: first_id}
    if told := printable(reason):
        kept[RETRY_REASON] = told
    if who := printable(member):
        kept[RETRY_MEMBER] = who
    topic, queue_id, raw = retry_topic(group), crc32(first_id.encode()) % retry_queues, None
    if not is_spent(times, max_times, level):
        most = MAX_PROPERTIES_BYTES - _ROOM_FOR_DELAY - len(topic.encode())
        raw = _fitting(kept | {DELAY: str(retry_level(times, level))}, most)
        if raw is None:
            kept[RETRY_REASON] = printable(f"{_NO_ROOM}; {reason}" if reason else _NO_ROOM)
    if raw is None:
        # A dead letter does not wait, so it may name where it last waited for, as RocketMQ's do.
        dead = kept | {k: v for k, v in before.items() if k in _WAITED} | {DELAY: "0"}
        topic, queue_id, raw = dlq_topic(group), 0, _of_dead_letter(dead, record)
    return replace(
        record,
        topic=topic,
        queue_id=queue_id,
        properties=raw,
        reconsume_times=min(times + 1, _MOST_TIMES),
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        prepared_transaction_offset=0,
    )


def resent(record: Record, group: str) -> Record:
    """A dead letter, or any message, to be given once more to its group, and to no other, as if it
    had never failed. Its own topic, first id and UNIQ_KEY stay."""
    kept = decode_properties(record.properties)
    for name in (*_OF_ITS_WAY, RETRY_REASON):
        kept.pop(name, None)
    kept.setdefault(RETRY_TOPIC, record.topic)
    kept.setdefault(ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
    kept.setdefault(UNIQ_KEY, kept[ORIGIN_MESSAGE_ID])
    return replace(
        record,
        topic=retry_topic(group),
        queue_id=0,
        properties=encode_properties(kept),
        reconsume_times=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        prepared_transaction_offset=0,
    )


def shown_topic(topic: str, properties: dict[str, str], group: str) -> str:
    """The topic that a consumer is shown: for its group's retries, the one they came from."""
    return properties.get(RETRY_TOPIC, topic) if topic == retry_topic(group) else topic


def printable(reason: str) -> str:
    """The reason in a form that fits a property: one short line without the separators."""
    line = " ".join(reason.replace("\x01", " ").replace("\x02", " ").split())
    line = line.encode("utf-8", "replace").decode()
    return line if len(line) <= MAX_REASON_CHARACTERS else line[: MAX_REASON_CHARACTERS - 3] + "..."


def _fitting(properties: dict[str, str], most_bytes: int) -> bytes | None:
    """Encoded; if there is no room, without reason and member. None if even that is too long."""
    raw = encode_properties(properties)
    if len(raw) > most_bytes:
        told = RETRY_REASON, RETRY_MEMBER
        raw = encode_properties({k: v for k, v in properties.items() if k not in told})
    return raw if len(raw) <= most_bytes else None


def _of_dead_letter(kept: dict[str, str], record: Record) -> bytes:
    """A dead letter's properties, as far as they fit. The sender's longest are left out first, and
    the reason names them: a message that cannot be stored would come again for ever."""
    most = MAX_PROPERTIES_BYTES - PROP_CRC_BYTES
    if (whole := _fitting(kept, most)) is not None:
        return whole
    first_id = offset_message_id(record.store_host, record.physical_offset)
    needed = {RETRY_TOPIC: record.topic, ORIGIN_MESSAGE_ID: first_id, UNIQ_KEY: first_id}
    left_out: list[str] = []
    while len(raw := encode_properties(needed | kept)) > most:
        longest = max(kept.keys() - {RETRY_REASON}, key=lambda each: (len(kept[each]), each))
        left_out.append(f"{longest[:40]} ({len(kept.pop(longest))} characters)")
        kept[RETRY_REASON] = printable(f"{_NO_ROOM}; left out: {', '.join(left_out)}")
    return raw
