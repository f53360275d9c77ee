"""What became of one message, from its records. Pure functions.

    delayed  ->  its copy                   the same place, and as often given back
    half     ->  committed, put back, or discarded
    any      ->  retry -> retry -> ... -> dead letter       a record each; ORIGIN_MESSAGE_ID and
                                                            RETRY_TOPIC say where they are from

All of them have one UNIQ_KEY, by which they are found. Only some records name the place of the
record they were made from, so which copy belongs to which record follows from what both say. Where
that is not certain it stays open: nothing here is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, delay_due_ms
from penstock.shared.formats.properties import (
    DELAY,
    REAL_TOPIC,
    UNIQ_KEY,
    decode_properties,
    whole_number,
)
from penstock.shared.formats.record import Record
from penstock.shared.messaging.delayed import (
    TIMER_DEL_UNIQKEY,
    TIMER_ROLL_TIMES,
    real_place,
    recall_key,
    timer_due_ms,
)
from penstock.shared.messaging.half import CHECK_TIMES, PGROUP, PREPARED_QUEUE_OFFSET
from penstock.shared.messaging.retried import (
    ORIGIN_MESSAGE_ID,
    RETRY_MEMBER,
    RETRY_REASON,
    RETRY_TOPIC,
)
from penstock.shared.messaging.system_topics import (
    HALF_TOPIC,
    QUEUES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from penstock.shared.names import DLQ_PREFIX, RETRY_PREFIX

_ENQUEUED = "TIMER_ENQUEUE_MS"


class Kind(StrEnum):
    """What a record is on its message's way."""

    MESSAGE = "message"
    DELAYED = "delayed"
    RECALL = "recall"
    HALF = "half message"
    DISCARDED = "discarded"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


class Outcome(StrEnum):
    """What became of a record that waits: a delayed one, or a half message."""

    WAITING = "waiting"  # delayed, and not due yet
    OVERDUE = "overdue"  # due, but no copy of it is found
    DELIVERED = "delivered"
    RECALLED = "recalled"
    PUT_AGAIN = "put again"  # a later record replaces it
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"
    ENDED = "ended"  # it has an outcome, which was not kept
    UNKNOWN = "unknown"


class Way(msgspec.Struct):
    """One record, and what is known of it besides its place. Times are ms since 1970.

    `linked` sets `outcome`, and `led_to`: the log offset of the record that came of this one.
    """

    record: Record
    kind: Kind
    properties: dict[str, str]
    due_ms: int | None = None
    real_topic: str = ""
    real_queue: int = -1
    outcome: Outcome | None = None
    led_to: int | None = None

    @property
    def at(self) -> int:
        """Its log offset."""
        return self.record.physical_offset

    @property
    def waits(self) -> bool:
        """Whether it is in a topic that no group consumes."""
        return self.record.topic in QUEUES


def unique_key(record: Record) -> str:
    """The key by which all records of its message are found; "" where it has none."""
    return decode_properties(record.properties).get(UNIQ_KEY, "")


def origin_id(record: Record) -> str:
    """The id of the first record, which a retry or a dead letter names; else ""."""
    return decode_properties(record.properties).get(ORIGIN_MESSAGE_ID, "")


def way_of(record: Record, due_ms: int | None = None) -> Way:
    """What a record is. `due_ms` is when it is due, if a queue's entry says so; otherwise its
    properties do, by RocketMQ's usual delay levels."""
    properties = decode_properties(record.properties)
    way = Way(record, _kind(record.topic, properties), properties)
    if way.kind in (Kind.DELAYED, Kind.RECALL, Kind.HALF):
        place = real_place(record.properties)
        if place is not None:
            way.real_topic, way.real_queue = place[0].decode("utf-8", "replace"), place[1]
    if way.kind is Kind.DELAYED:
        way.due_ms = _due_ms(record, properties) if due_ms is None else due_ms
    return way


def _kind(topic: str, properties: dict[str, str]) -> Kind:
    if topic == TIMER_TOPIC:
        return Kind.RECALL if TIMER_DEL_UNIQKEY in properties else Kind.DELAYED
    for prefix, kind in ((RETRY_PREFIX, Kind.RETRY), (DLQ_PREFIX, Kind.DEAD_LETTER)):
        if topic.startswith(prefix):
            return kind
    known = {
        SCHEDULE_TOPIC: Kind.DELAYED,
        HALF_TOPIC: Kind.HALF,
        TRANS_CHECK_MAX_TIME_TOPIC: Kind.DISCARDED,
    }
    return known.get(topic, Kind.MESSAGE)


def _due_ms(record: Record, properties: dict[str, str]) -> int | None:
    if record.topic == TIMER_TOPIC:
        due_ms = timer_due_ms(record.properties, record.store_timestamp_ms)
        return None if due_ms < 0 else due_ms
    level = whole_number(properties.get(DELAY, ""))
    if not 0 < level <= len(DELAY_LEVELS_MS):
        return None
    return delay_due_ms(level, record.store_timestamp_ms)


def linked(found: Iterable[Way], now_ms: int) -> list[Way]:
    """Everything that was found of one message, in log order, with the outcome of what waits.

    If no record ends a half message, its outcome is left None: its op record says it.
    """
    ways = sorted(found, key=lambda way: way.at)
    for way in ways:
        if way.kind is Kind.HALF:
            _link_half(way, ways)
    _link_delayed(ways, now_ms)
    return ways


def _link_half(half: Way, ways: Sequence[Way]) -> None:
    first = half.properties.get(PREPARED_QUEUE_OFFSET, str(half.record.queue_offset))
    for way in ways:
        if way.at <= half.at:
            continue
        if way.record.prepared_transaction_offset == half.at:
            half.outcome = Outcome.COMMITTED
        elif way.kind is Kind.DISCARDED:
            half.outcome = Outcome.DISCARDED
        elif way.kind is Kind.HALF and way.properties.get(PREPARED_QUEUE_OFFSET) == first:
            half.outcome = Outcome.PUT_AGAIN
        else:
            continue
        half.led_to = way.at
        return


def _link_delayed(ways: Sequence[Way], now_ms: int) -> None:
    """Link each delayed record with its copy. Several may wait for one place and the same count: a
    claim that was lost with its commit leads to that. Then only what is certain is told."""
    groups: dict[tuple[str, int, int], list[Way]] = {}
    for way in ways:
        if way.kind is Kind.DELAYED:
            name = way.real_topic, way.real_queue, way.record.reconsume_times
            groups.setdefault(name, []).append(way)
    for (topic, queue_id, times), waiting in groups.items():
        copies = [
            way
            for way in ways
            if (way.record.topic, way.record.queue_id) == (topic, queue_id)
            and way.record.reconsume_times == times
            and way.at > waiting[0].at
            # a message that was sent there directly has not waited
            and REAL_TOPIC in way.properties
        ]
        _pair(waiting, copies)
        for way in waiting:
            if way.outcome is None:
                way.outcome = _not_delivered(way, ways, bool(copies), now_ms)


def _pair(waiting: list[Way], copies: list[Way]) -> None:
    """Say which copy belongs to which record. One that stays without an outcome has no copy, or it
    is not certain which."""
    left = []
    for way in waiting:
        again = _rolled(way, waiting)
        if again is not None:
            way.outcome, way.led_to = Outcome.PUT_AGAIN, again.at
        else:
            left.append(way)
    for way in list(left):
        if way.record.topic != TIMER_TOPIC:
            continue
        stamp = str(way.record.store_timestamp_ms)
        own = [copy for copy in copies if copy.properties.get(_ENQUEUED) == stamp]
        if len(own) == 1:
            way.outcome, way.led_to = Outcome.DELIVERED, own[0].at
            copies.remove(own[0])
            left.remove(way)
    if len(copies) >= len(left):
        for way, copy in zip(sorted(left, key=lambda w: w.due_ms or 0), copies, strict=False):
            way.outcome, way.led_to = Outcome.DELIVERED, copy.at
        copies.clear()


def _rolled(way: Way, waiting: list[Way]) -> Way | None:
    """The record that replaced a timer's record because its segment was about to expire."""
    if way.record.topic != TIMER_TOPIC:
        return None
    times = max(0, whole_number(way.properties.get(TIMER_ROLL_TIMES, "")))
    return next(
        (
            each
            for each in waiting
            if each.at > way.at
            and each.due_ms == way.due_ms
            and each.properties.get(TIMER_ROLL_TIMES) == str(times + 1)
        ),
        None,
    )


def _not_delivered(way: Way, ways: Sequence[Way], is_unsure: bool, now_ms: int) -> Outcome:
    if is_unsure or way.due_ms is None:
        return Outcome.UNKNOWN
    own = way.properties.get(UNIQ_KEY, "")
    recalls = [each for each in ways if each.kind is Kind.RECALL and each.at > way.at]
    # RocketMQ names the message by topic and key, or by the key alone
    named = {each.properties[TIMER_DEL_UNIQKEY] for each in recalls}
    if way.record.topic == TIMER_TOPIC and named & {own, recall_key(way.real_topic, own)}:
        return Outcome.RECALLED
    return Outcome.WAITING if way.due_ms > now_ms else Outcome.OVERDUE


def facts(way: Way) -> dict[str, str | int | None]:
    """What a record says of its message's way, and nothing else; None for what it does not say."""
    found: dict[str, str | int | None] = {}
    if way.real_topic:
        found |= {"for_topic": way.real_topic, "for_queue": way.real_queue}
    if way.kind is Kind.HALF:
        found |= {"producer_group": way.properties.get(PGROUP)}
        found |= {"checks": max(0, whole_number(way.properties.get(CHECK_TIMES, "")))}
    if way.kind in (Kind.RETRY, Kind.DEAD_LETTER) or way.record.reconsume_times:
        found |= {
            "reconsume_times": way.record.reconsume_times,
            "reason": way.properties.get(RETRY_REASON),
            "member": way.properties.get(RETRY_MEMBER),
            "origin_topic": way.properties.get(RETRY_TOPIC),
            "origin_message_id": way.properties.get(ORIGIN_MESSAGE_ID),
        }
    return found
