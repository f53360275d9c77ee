"""Puts together what happened to a message: its records, what came of each, and who reads them.

    key or id -> records with it, in every topic -> by unique key, all records of each message

A group's state is its offset compared with the message's. The member that had it is known from a
retry, which is a record of its own, and from the last claims of its queue, which the coordinator
keeps as long as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.cli.trace.sources import Groups, Source
from penstock.shared.errors import FilterError, PenstockError
from penstock.shared.filters.message_filter import parse_filter
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import KEYS, TAGS
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.messaging.half import op_outcome, parse_op
from penstock.shared.messaging.retried import RETRY_TOPIC
from penstock.shared.messaging.system_topics import QUEUES, dlq_topic, retry_topic
from penstock.shared.messaging.traced import (
    Kind,
    Outcome,
    Way,
    facts,
    linked,
    unique_key,
    way_of,
)
from penstock.shared.wire.group_messages import (
    ClaimSpan,
    GroupInfo,
    QueueInfo,
    SubscriptionData,
)

_ENDED = {"commit": Outcome.COMMITTED, "rollback": Outcome.ROLLED_BACK}


class Had(msgspec.Struct):
    """A member that had the queue while the group's offset passed the message. Times are ms since
    1970; None is unknown. `until_ms` is also None if the member still has the queue, as `lasts`
    says."""

    member: str
    since_ms: int | None
    until_ms: int | None
    lasts: bool


class Reader(msgspec.Struct):
    """A group that reads the record's queue. None is unknown.

    `before` is how many messages come first, `held_ms` how long `member` has had the queue.
    """

    group: str
    state: str
    offset: int | None = None
    before: int | None = None
    member: str | None = None
    held_ms: int | None = None
    seen_ms_ago: int | None = None
    # the log offset of the record by which the group gave it back, and so must have had it
    given_back_as: int | None = None
    # who had a message that the group's offset has passed; empty if unknown
    had: list[Had] = []


class Stop(msgspec.Struct):
    """One record of the message. Times are ms since 1970; None is unknown, or does not apply."""

    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    message_id: str
    stored_ms: int
    file: str | None
    file_offset: int | None
    disk: str | None
    readable: bool | None
    due_ms: int | None
    outcome: str | None
    led_to: int | None
    says: dict[str, str | int | None]
    groups: list[Reader] | None


class Story(msgspec.Struct):
    """One message and all its records, in the order in which they were stored."""

    unique_key: str | None
    topic: str
    keys: str | None
    tags: str | None
    born_ms: int
    records: list[Stop]


Moved = Callable[[int, int], None]


def stories(source: Source, text: str, topic: str | None, now_ms: int, moved: Moved) -> list[Story]:
    """Every message that has this key, this unique key or this id, oldest first."""
    topics = sorted(source.topics() if topic is None else _topics_of(source, topic))
    seed = source.by_id(text)
    found = [] if seed is None else [seed]
    for number, name in enumerate(topics):
        found += source.find(name, text)
        moved(number + 1, len(topics))
    told = []
    for own in dict.fromkeys(map(_name, found)):
        records = {each.physical_offset: each for each in found if _name(each) == own}
        # if the text is the unique key, all records have been found already
        for name in topics if own != text else ():
            records |= {each.physical_offset: each for each in source.find(name, own)}
        ways = [way_of(each, source.place(each).due_ms) for each in records.values()]
        # a recall is found by the key of the message it recalls, and is not a message itself
        if all(way.kind is Kind.RECALL for way in ways):
            continue
        ways = linked((w for w in ways if _name(w.record) == own or w.kind is Kind.RECALL), now_ms)
        if topic is None or any(topic in _names_of(way) for way in ways):
            told.append(_told(source, ways))
    return sorted(told, key=lambda story: story.records[0].physical_offset)


def _name(record: Record) -> str:
    """The key by which a message's records are found: its UNIQ_KEY, or without one its id, which a
    copy of a delayed record has as UNIQ_KEY."""
    return unique_key(record) or offset_message_id(record.store_host, record.physical_offset)


def _topics_of(source: Source, topic: str) -> set[str]:
    groups = source.groups().infos
    return {topic, *QUEUES} | {make(group) for group in groups for make in (retry_topic, dlq_topic)}


def _names_of(way: Way) -> set[str]:
    """The topics that it is in, or meant for."""
    return {way.record.topic, way.real_topic, way.properties.get(RETRY_TOPIC, "")}


def _told(source: Source, ways: Sequence[Way]) -> Story:
    for way in ways:
        if way.kind is Kind.HALF and way.outcome is None:
            way.outcome = _by_its_mark(source, way.record)
    first = next((way for way in ways if way.kind is not Kind.RECALL), ways[0])
    topic = first.properties.get(RETRY_TOPIC) or first.real_topic or first.record.topic
    return Story(
        unique_key(first.record) or None,
        topic,
        first.properties.get(KEYS),
        first.properties.get(TAGS),
        first.record.born_timestamp_ms,
        [_stop(source, way, ways) for way in ways],
    )


def _by_its_mark(source: Source, half: Record) -> Outcome:
    try:
        for mark in source.finder.marks_after(half):
            is_later = mark.physical_offset > half.physical_offset
            if is_later and half.queue_offset in parse_op(mark.body):
                return _ENDED.get(op_outcome(mark.properties), Outcome.ENDED)
    except PenstockError:  # the marks cannot be read, so the outcome is unknown
        return Outcome.UNKNOWN
    return Outcome.OPEN


def _stop(source: Source, way: Way, ways: Sequence[Way]) -> Stop:
    record, place = way.record, source.place(way.record)
    return Stop(
        way.kind.value,
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.total_size,
        offset_message_id(record.store_host, record.physical_offset),
        record.store_timestamp_ms,
        place.file,
        place.file_offset,
        place.disk,
        False if way.waits else place.readable,
        way.due_ms,
        None if way.outcome is None else way.outcome.value,
        way.led_to,
        facts(way),
        None if way.waits else [_with_retry(each, way, ways) for each in _readers(source, way)],
    )


def _with_retry(reader: Reader, way: Way, ways: Sequence[Way]) -> Reader:
    """The reader, completed by the record with which the group gave this one back, if any."""
    places = {retry_topic(reader.group), dlq_topic(reader.group)}
    times = way.record.reconsume_times + 1
    for each in ways:
        is_its_own = each.real_topic in places or each.record.topic in places
        if each.at > way.at and is_its_own and each.record.reconsume_times == times:
            reader.given_back_as = each.at
            # what a member had in hand was not filtered
            if reader.state == "acknowledged or filtered":
                reader.state = "acknowledged"
            break
    return reader


def _readers(source: Source, way: Way) -> Iterator[Reader]:
    return readers(way.record, source.groups())


def readers(record: Record, groups: Groups) -> Iterator[Reader]:
    """Groups that have an offset or a claim on the record's queue, or subscribe to its topic."""
    for name, info in sorted(groups.infos.items()):
        queue = next(
            (
                each
                for each in info.queues
                if (each.topic, each.queue_id) == (record.topic, record.queue_id)
            ),
            None,
        )
        wanted = [
            each
            for member in info.members
            for each in member.subscriptions
            if each.topic == record.topic
        ]
        if queue is not None or wanted:
            yield _reader(name, info, record, queue, wanted)


def _reader(
    group: str,
    info: GroupInfo,
    record: Record,
    queue: QueueInfo | None,
    wanted: Sequence[SubscriptionData],
) -> Reader:
    if any(member.model == "broadcasting" for member in info.members):
        return Reader(group, "broadcasting")  # each member keeps its own place
    if queue is None or queue.offset < 0 and not queue.owner:
        return Reader(group, "unknown")
    found = Reader(group, "waiting", offset=queue.offset if queue.offset >= 0 else None)
    if queue.owner:
        found.member = queue.owner
        found.held_ms = queue.owned_ms if queue.owned_ms >= 0 else None
        seen = (each.seen_ms_ago for each in info.members if each.client_id == queue.owner)
        found.seen_ms_ago = next(seen, None)
    if queue.offset > record.queue_offset:
        found.state = _past(record, wanted)
        spans = [each for each in queue.spans if each.first <= record.queue_offset < each.next]
        found.had = [_had(each) for each in spans]
        return found
    if queue.offset >= 0:
        found.before = record.queue_offset - max(queue.offset, queue.min_offset)
    if queue.owner:
        found.state = "with a member"
    return found


def _had(span: ClaimSpan) -> Had:
    since_ms, until_ms = (at if at >= 0 else None for at in (span.since_ms, span.until_ms))
    return Had(span.owner, since_ms, until_ms, span.lasts)


def _past(record: Record, wanted: Iterable[SubscriptionData]) -> str:
    """The state of a message that the group's offset has passed. What the group subscribes to is
    known only while it has members."""
    verdicts: set[bool | None] = set()
    raw = memoryview(encode_record(record))
    for each in wanted:
        try:
            chosen = parse_filter(each.expression_type, each.expression)
        except FilterError:
            verdicts.add(None)
            continue
        verdicts.add(chosen is None or chosen.matches(raw))
    words: dict[Any, str] = {True: "acknowledged", False: "filtered"}
    verdict = verdicts.pop() if len(verdicts) == 1 else None
    return words.get(verdict, "acknowledged or filtered")
