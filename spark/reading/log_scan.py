"""Finds messages by a walk through the commit log, for a store that has no consume queues.

Decides which of the log's records are messages that a queue would name. The piece before a cut must
end exactly there; otherwise the cut was inside a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.arrow.decode import Batch
from penstock.maintenance.cuts import PART_BYTES, cuts_of
from penstock.shared.errors import ConfigError, OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_outline import Outline, outline
from penstock.shared.next_steps import rebuild, repair, verify
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.reading.offsets import (
    EARLIEST,
    GROUP,
    LATEST,
    parse_assign,
    parse_json,
    parse_time,
)
from penstock.spark.reading.options import Mode, Options
from penstock.spark.reading.predicates import Predicate
from penstock.spark.reading.rows import How, Rows
from penstock.spark.reading.topics import is_wanted, named_topics
from penstock.spark.times import ANY_TIME, is_within, span_of

BATCH_BYTES = 4 << 20


class LogChoice(NamedTuple):
    """Which messages of the log a query is about, as plain values, because they go to the tasks."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: frozenset[tuple[str, int]] | None = None  # those of `assign`, perhaps an empty set
    starts: Mapping[str, Mapping[str, int]] = {}
    stops: Mapping[str, Mapping[str, int]] = {}
    start_ms: int = -1
    stop_ms: int = -1

    def takes(self, record: Outline) -> bool:
        if not record.is_queued:
            return False
        topic, queue_id = record.topic.decode(), record.queue_id
        if not is_wanted(topic, self.topics, self.pattern):
            return False
        if self.queues is not None and (topic, queue_id) not in self.queues:
            return False
        low = self.starts.get(topic, {}).get(str(queue_id), EARLIEST)
        high = self.stops.get(topic, {}).get(str(queue_id), LATEST)
        if low == LATEST or high == EARLIEST or record.queue_offset < low:
            return False
        if high != LATEST and record.queue_offset >= high:
            return False
        stored_ms = record.store_timestamp_ms
        return stored_ms >= self.start_ms and (self.stop_ms < 0 or stored_ms < self.stop_ms)


class LogRange(NamedTuple):
    """The records that begin in [start, stop) of the log."""

    start: int
    stop: int
    choice: LogChoice = LogChoice()


def log_choice(options: Options, now_ms: int) -> LogChoice:
    """The choice that the options make. Raises ConfigError, also for options that need queues."""
    # a time takes precedence over an offset
    default = Options()
    starting = (default if options.starting_timestamp else options).starting_offsets
    ending = (default if options.ending_timestamp else options).ending_offsets
    unknown = {
        "startingOffsetsByTimestamp": options.starting_offsets_by_timestamp,
        "endingOffsetsByTimestamp": options.ending_offsets_by_timestamp,
        "startingOffsets": starting.startswith(GROUP),
        "endingOffsets": ending.startswith(GROUP),
    }
    for option, given in unknown.items():
        if given:
            raise ConfigError(
                f"{option} needs consume queues, and this store has none",
                given if isinstance(given, str) else getattr(options, _field(option)),
                rebuild(options.path),
            )
    queues = None
    if options.assign:
        assigned = parse_assign(options.assign).items()
        queues = frozenset((topic, queue_id) for topic, ids in assigned for queue_id in ids)
    start_ms, stop_ms = (
        parse_time(name, text, now_ms) if text else -1
        for name, text in (
            ("startingTimestamp", options.starting_timestamp),
            ("endingTimestamp", options.ending_timestamp),
        )
    )
    return LogChoice(
        tuple(named_topics(options)),
        options.subscribe_pattern,
        queues,
        _named(starting, "startingOffsets", "earliest"),
        _named(ending, "endingOffsets", "latest"),
        start_ms,
        stop_ms,
    )


def _field(option: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), option)


def _named(text: str, option: str, whole: str) -> Mapping[str, Mapping[str, int]]:
    if text.strip().lower() == whole:
        return {}
    if text.strip().lower() in ("earliest", "latest"):
        raise ConfigError(
            f"with {option} {text} there is nothing to read", None, f"leave it out: it is {whole}"
        )
    return parse_json(text, option)


def plan_log(
    store: StoreDirectory, options: Options, now_ms: int, predicates: Sequence[Predicate] = ()
) -> list[tuple[LogRange, ...]]:
    """Pieces of about splitBytes, cut where records begin, without those of times that are not
    read. Never an empty list."""
    choice = log_choice(options, now_ms)
    size = sum(segment.size for segment in store.segments)
    step = options.split_bytes or min(PART_BYTES, max(size // max(options.min_partitions, 1), 1))
    starts = list(cuts_of(store, step))
    ends = [*starts[1:], 1 << 62]
    parts: list[tuple[LogRange, ...]] = [
        (LogRange(at, end, choice),) for at, end in zip(starts, ends, strict=True)
    ]
    span = span_of(predicates, choice.start_ms, choice.stop_ms)
    if span != ANY_TIME:
        times = [_stored_ms(store, at) for at in starts]
        around = zip(times, [*times[1:], None], strict=True)
        parts = [part for part, each in zip(parts, around, strict=True) if is_within(span, *each)]
    return parts or [()]


def _stored_ms(store: StoreDirectory, at: int) -> int | None:
    """When the record that begins there was stored; None if there is no intact one."""
    try:
        return store.record_at(at).store_timestamp_ms
    except (OffsetOutOfRange, StoreDamaged):
        return None


def read_log(
    store: StoreDirectory, piece: LogRange, columns: Sequence[str], how: How
) -> Iterator[list[pa.Array]]:
    """The requested columns, batch by batch. Raises StoreDamaged."""
    rows = Rows(columns, how)
    held: dict[tuple[bytes, int], list[tuple[int, Outline, memoryview]]] = {}
    held_bytes = 0
    for at, record in _records(store, piece, how):
        if isinstance(record, str):
            yield from rows.reported({"physical_offset": pa.array([at])}, record)
            continue
        found = outline(record)
        if not piece.choice.takes(found):
            continue
        held.setdefault((found.topic, found.queue_id), []).append((at, found, record))
        held_bytes += len(record)
        if held_bytes >= BATCH_BYTES:
            yield from _flushed(store, rows, held)
            held, held_bytes = {}, 0
    yield from _flushed(store, rows, held)


def _records(
    store: StoreDirectory, piece: LogRange, how: How
) -> Iterator[tuple[int, memoryview | str]]:
    """Each record that begins in the piece, and damage as text if it is to be reported."""
    torn: tuple[int, str] | None = None
    for at, found, size, record, reason in store.scan_log(piece.start):
        if found is Kind.END:
            # A running broker, or one that died, may leave half a record, which a start cuts off.
            if torn is not None and not store.is_unclean:
                yield from _damaged(store, *torn, how)
            return
        if torn is not None:
            yield from _damaged(store, *torn, how)
            torn = None
        if at >= piece.stop:
            return
        if found is Kind.RECORD and at + size > piece.stop:
            raise StoreDamaged(
                "a split of the log begins inside a record",
                f"{piece.stop}, in the record of {size} bytes at {at}",
                'the body holds a copy of a record; read in one piece: .option("splitBytes", '
                f"{sum(segment.size for segment in store.segments) + 1})",
            )
        if found is Kind.DAMAGED:
            torn = at, reason
        elif found is Kind.RECORD:
            yield at, record


def _damaged(
    store: StoreDirectory, at: int, reason: str, how: How
) -> Iterator[tuple[int, memoryview | str]]:
    segment = store.segment_of(at)
    error = StoreDamaged(
        "a part of the log holds no records",
        f"{reason} at {at} ({segment.path}, byte {at - segment.base})",
        f"{verify(store.paths.root)}; mend it: {repair(store.paths.root)}",
    )
    if how.mode is Mode.FAILFAST:
        raise error
    if how.mode is Mode.PERMISSIVE:
        yield at, str(error)


def _flushed(
    store: StoreDirectory,
    rows: Rows,
    held: Mapping[tuple[bytes, int], Sequence[tuple[int, Outline, memoryview]]],
) -> Iterator[list[pa.Array]]:
    def explain(batch: Batch, index: int) -> StoreDamaged:
        return StoreDamaged(
            "a record of the log cannot be read",
            f"at {batch.physical_offsets[index]}",
            verify(store.paths.root),
        )

    for (topic, queue_id), found in held.items():
        sizes = np.array([len(record) for _, _, record in found], np.int64)
        named = Batch(
            topic.decode(),
            queue_id,
            np.array([fields.queue_offset for _, fields, _ in found], np.int64),
            np.array([at for at, _, _ in found], np.int64),
            sizes,
            b"".join(record for _, _, record in found),
            np.cumsum(sizes) - sizes,
        )
        batch = rows.candidates(named)
        if len(batch.queue_offsets):
            yield from rows.rows(batch, explain)
