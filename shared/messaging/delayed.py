"""Delayed messages, after RocketMQ: the form in which they wait, and what is delivered of them.

    by level    SCHEDULE_TOPIC_XXXX, queue level - 1, with DELAY                     (1 ... 18)
    any time    rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS                      (40 days)
    recall      the same place, with TIMER_DEL_UNIQKEY: the message of that key is not delivered

Both name their destination in REAL_TOPIC and REAL_QID. When the time has come, a copy goes there.
The copy is made from the stored record alone, so it has the same bytes whenever it is made, and a
broker that is not sure whether it was stored can look for it. No clocks, no I/O.

RocketMQ counts a relative delay from the time at which it stores the message, and so does
`timer_due_ms`: if the sender's clock is slow, its message does not come too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from penstock.shared.formats.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    decode_properties,
    encode_properties,
    find_property,
    whole_number,
)
from penstock.shared.messaging.system_topics import TIMER_TOPIC

if TYPE_CHECKING:
    from penstock.shared.formats.record import Record

TIMER_OUT_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC = "TIMER_OUT_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
TIMER_DELIVER_MS, TIMER_ROLL_TIMES = "TIMER_DELIVER_MS", "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_PROPERTIES = frozenset(
    {TIMER_OUT_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_ROLL_TIMES}
    | {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", TIMER_DEL_UNIQKEY}
)
MAX_LEVEL = len(DELAY_LEVELS_MS)
# RocketMQ's timerMaxDelaySec is 3 days; its cloud service takes 40.
MAX_DELAY_MS = 40 * 24 * 3_600_000
# Value of the position `recalled` while a recall is being stored: its offset is not known yet.
RECALL_COMING = 1 << 62
# Clients' clocks may be ahead of the broker's by this much.
_CLOCK_SLACK_MS = 60_000

_REAL_TOPIC, _REAL_QID = REAL_TOPIC.encode(), REAL_QID.encode()
_OUT, _ROLLED = TIMER_OUT_MS.encode(), TIMER_ROLL_TIMES.encode()
_DELAY_MS, _DELAY_SEC = TIMER_DELAY_MS.encode(), TIMER_DELAY_SEC.encode()
_DELETE, _DELAY = TIMER_DEL_UNIQKEY.encode(), DELAY.encode()


class Delay(NamedTuple):
    """When a message is due: by `level`, or at `out_ms`, and in any case `delay_ms` after it is
    stored, if that is not 0. With `recalls` the record is not a message but takes one back."""

    level: int = 0
    out_ms: int = 0
    delay_ms: int = 0
    recalls: str = ""

    @property
    def topic(self) -> str:
        return SCHEDULE_TOPIC if self.level else TIMER_TOPIC

    @property
    def queue_id(self) -> int:
        return self.level - 1 if self.level else 0

    def properties(self, topic: str, queue_id: int) -> dict[str, str]:
        """The properties that a delayed message for this queue has besides its own."""
        real = {REAL_TOPIC: topic, REAL_QID: str(queue_id)}
        if self.level:
            return {DELAY: str(self.level)} | real
        found = {TIMER_OUT_MS: str(self.out_ms)} | real
        if self.delay_ms:
            found[TIMER_DELAY_MS] = str(self.delay_ms)
        if self.recalls:
            found[TIMER_DEL_UNIQKEY] = recall_key(topic, self.recalls)
        return found


def recall_key(topic: str, unique_key: str) -> str:
    """The name by which a recall names its message."""
    return f"{topic}+{unique_key}"


def delayed(record: Record, delay: Delay | None = None) -> Record:
    """The record in its waiting form. Without a `delay` the level is that of its DELAY; if that
    names no level the message does not wait, and the record is returned as it is."""
    properties = decode_properties(record.properties)
    if delay is None:
        level = whole_number(properties.get(DELAY, ""))
        if level <= 0:
            return record
        delay = Delay(min(level, MAX_LEVEL))
    kept = {k: v for k, v in properties.items() if k != DELAY and k not in TIMER_PROPERTIES}
    kept |= delay.properties(record.topic, record.queue_id)
    return replace(
        record, topic=delay.topic, queue_id=delay.queue_id, properties=encode_properties(kept)
    )


def real_place(properties: bytes) -> tuple[bytes, int] | None:
    """The topic and queue that raw properties name; None where they name none."""
    topic, queue = find_property(properties, _REAL_TOPIC), find_property(properties, _REAL_QID)
    if not topic or not queue.isdigit() or len(queue) > 9:
        return None
    return topic, int(queue)


def timer_due_ms(properties: bytes, stored_ms: int) -> int:
    """When a message of the wheel topic is due; -1 where its properties do not say it."""
    out = find_property(properties, _OUT)
    if not _is_number(out):
        return -1
    due_ms = int(out)
    if find_property(properties, _ROLLED):
        return due_ms  # a message that was rolled: what it says is final
    for name, unit_ms in ((_DELAY_SEC, 1000), (_DELAY_MS, 1)):
        relative = find_property(properties, name)
        if relative:
            return max(due_ms, stored_ms + int(relative) * unit_ms) if _is_number(relative) else -1
    return due_ms


def recalled_key(properties: bytes) -> bytes:
    """The key of the message that a record of the wheel topic takes back; b"" if it takes none."""
    return find_property(properties, _DELETE)


def check_level(properties: bytes, queue_id: int) -> tuple[bytes, int]:
    """The destination of a record for SCHEDULE_TOPIC_XXXX. Raises InvalidMessage."""
    level = find_property(properties, _DELAY)
    if level != str(queue_id + 1).encode():
        what = f"a record for queue {queue_id} of {SCHEDULE_TOPIC} is not of delay level "
        raise InvalidMessage(what + str(queue_id + 1), f"DELAY={level.decode('utf-8', 'replace')}")
    return _place(properties)


def check_timer(properties: bytes, now_ms: int) -> tuple[bytes, int]:
    """The destination of a record for the wheel topic. Raises InvalidMessage."""
    due_ms = timer_due_ms(properties, now_ms)
    if due_ms < 0:
        what = "a record for the wheel topic does not say when it is due"
        raise InvalidMessage(what, None, "send it with deliver_at= or delay=")
    if due_ms > now_ms + MAX_DELAY_MS + _CLOCK_SLACK_MS:
        raise too_late(due_ms - now_ms)
    return _place(properties)


def too_late(delay_ms: int) -> InvalidMessage:
    """The error for a delay beyond the maximum."""
    return InvalidMessage(
        "the message is to be delivered later than 40 days from now",
        f"{delay_ms / 86_400_000:.1f} days",
        "send it nearer to its time",
    )


def _place(properties: bytes) -> tuple[bytes, int]:
    place = real_place(properties)
    if place is None:
        raise InvalidMessage(
            "a delayed record does not say which queue it is for", f"{REAL_TOPIC}, {REAL_QID}"
        )
    return place


def _is_number(raw: bytes) -> bool:
    return raw.isdigit() and len(raw) < 16
