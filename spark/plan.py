"""What one query reads: options in, ranges of queue offsets out, fixed when the query is planned.

A plan is made on the driver, from what queues say about themselves and from the index of keys. It
reads no records except those that a bisection by time looks at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.shared.errors import ConfigError, TopicNotFound
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.next_steps import other_topics
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.offsets import ending, parse_assign, resolve, starting
from penstock.spark.reading.options import Options
from penstock.spark.reading.predicates import Predicate, holds, offset_range, wanted_texts
from penstock.spark.reading.queues import Queue, topics_of
from penstock.spark.reading.topics import named_topics, topic_filter
from penstock.spark.reading.views import View
from penstock.spark.times import span_of, within

SMALLEST_SPLIT_BYTES, LARGEST_SPLIT_BYTES = 8 << 20, 128 << 20


Partitions = list[tuple[QueueRange, ...]]


def plan(
    view: View,
    options: Options,
    predicates: Sequence[Predicate] = (),
    *,
    by_entries: bool = False,
) -> Partitions:
    """The partitions of what the options name; never an empty list. Raises TopicNotFound,
    ConfigError, GroupNotFound, OffsetOutOfRange."""
    queues = chosen(view, options)
    ranges = narrowed(bounds(view, queues, options), predicates)
    ranges = within(ranges, queues, span_of(predicates))
    if (keys := wanted_texts(predicates, "keys")) is not None:
        ranges = view.ranges_by_keys(ranges, keys)
    return split(ranges, queues, options, by_entries=by_entries)


def narrowed(ranges: Sequence[QueueRange], predicates: Sequence[Predicate]) -> list[QueueRange]:
    """What the filters on topic, queue and queue offset leave of the ranges."""
    if not predicates:
        return list(ranges)
    found = []
    for piece in ranges:
        if holds(predicates, {"topic": piece.topic, "queue_id": piece.queue_id}):
            start, stop = offset_range(predicates, piece.start, piece.stop)
            found.append(piece._replace(start=start, stop=stop))
    return found


def bounds(view: View, queues: Sequence[Queue], options: Options) -> list[QueueRange]:
    """The range that is read from each queue."""
    now_ms, strict = int(time.time() * 1000), options.fail_on_data_loss
    is_wanted = topic_filter(options)
    assigned = parse_assign(options.assign) if options.assign else None

    def is_empty(topic: str, queue_id: int) -> bool:
        is_read = is_wanted(topic) if assigned is None else queue_id in assigned.get(topic, ())
        return is_read and queue_id < view.known_topics()(topic)

    starts, stops = (
        resolve(end(options), queues, view.group_offsets, is_empty, now_ms, strict=strict)
        for end in (starting, ending)
    )
    return [
        QueueRange(queue.topic, queue.queue_id, start, max(start, stop))
        for queue, start, stop in zip(queues, starts, stops, strict=True)
    ]


def split(
    ranges: Sequence[QueueRange],
    queues: Sequence[Queue],
    options: Options,
    *,
    by_entries: bool = False,
) -> Partitions:
    """Cut large ranges, and let small adjacent ones share a partition. Never an empty list.
    `by_entries`: only the queue entries of the messages are read."""
    by_name = {(queue.topic, queue.queue_id): queue for queue in queues}
    wanted = [piece for piece in ranges if piece.start < piece.stop]
    sizes_bytes = [
        CQ_ENTRY_BYTES * (piece.stop - piece.start)
        if by_entries
        else by_name[piece.topic, piece.queue_id].estimate_bytes(piece.start, piece.stop)
        for piece in wanted
    ]
    total = sum(sizes_bytes)
    split_bytes = options.split_bytes or min(
        max(total // (2 * (os.cpu_count() or 1)), SMALLEST_SPLIT_BYTES), LARGEST_SPLIT_BYTES
    )
    if options.min_partitions:
        split_bytes = max(min(split_bytes, total // options.min_partitions), 1)
    most_records = options.max_records_per_partition or 1 << 62
    found = _partitions(wanted, sizes_bytes, split_bytes, most_records)
    least = min(options.min_partitions, sum(piece.stop - piece.start for piece in wanted))
    # messages are not split, and their sizes differ between queues, so there may be too few parts
    while len(found) < least and split_bytes:
        split_bytes = split_bytes * len(found) // least
        found = _partitions(wanted, sizes_bytes, split_bytes, most_records)
    return found


def _partitions(
    wanted: Sequence[QueueRange], sizes_bytes: Sequence[int], split_bytes: int, most_records: int
) -> Partitions:
    partitions: Partitions = []
    held: list[QueueRange] = []
    held_bytes = held_records = 0
    for whole, size_bytes in zip(wanted, sizes_bytes, strict=True):
        for piece in _cut(whole, -(-size_bytes // max(split_bytes, 1)), most_records):
            records = piece.stop - piece.start
            piece_bytes = size_bytes * records // (whole.stop - whole.start)
            full = held_bytes + piece_bytes > split_bytes or held_records + records > most_records
            if held and full:
                partitions.append(tuple(held))
                held, held_bytes, held_records = [], 0, 0
            held.append(piece)
            held_bytes += piece_bytes
            held_records += records
    return [*partitions, tuple(held)] if held else partitions or [()]


def _cut(whole: QueueRange, pieces: int, most_records: int) -> Iterator[QueueRange]:
    """At least this many pieces of about equal size, as far as there are records. None has more
    records than allowed."""
    count = whole.stop - whole.start
    pieces = min(max(pieces, -(-count // most_records)), count)
    ends = [whole.start + count * number // pieces for number in range(pieces + 1)]
    for start, stop in pairwise(ends):
        yield whole._replace(start=start, stop=stop)


def chosen(view: View, options: Options, *, lenient: bool = False) -> list[Queue]:
    """The queues that `subscribe`, `subscribePattern` or `assign` name; without these options, all
    but those of the broker's own topics.

    A topic without a message has no queue yet. Unless `lenient`, raises TopicNotFound or
    ConfigError for what does not exist.
    """
    queues = view.queues(topic_filter(options))
    # as with Kafka's source, a pattern that matches nothing yet is not an error
    names = named_topics(options)
    found = topics_of(queues)
    if not lenient and (missing := [name for name in names if name not in found]):
        exists = view.known_topics()
        if missing := [name for name in missing if not exists(name)]:
            there = topics_of(view.queues(lambda _: True))
            raise TopicNotFound(
                "there is no topic of this name in the store",
                ", ".join(missing),
                other_topics(missing[0], there),
            )
    if not options.assign:
        return queues
    assigned = parse_assign(options.assign)
    named = {(topic, queue_id) for topic, ids in assigned.items() for queue_id in ids}
    absent = sorted(named - {(queue.topic, queue.queue_id) for queue in queues})
    if absent and not lenient:
        exists = view.known_topics()
        if absent := [(topic, queue_id) for topic, queue_id in absent if not exists(topic)]:
            raise ConfigError(
                "assign names queues that have no messages",
                ", ".join(f"{topic}/{queue_id}" for topic, queue_id in absent),
                "leave them out",
            )
    return [queue for queue in queues if (queue.topic, queue.queue_id) in named]
