"""What one query reads: options in, ranges of queue offsets out, fixed when the query is planned.

Owns the options of the data source and their defaults. No record is read and
Spark is not imported: a plan is made on the driver's side, from queue files alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.shared.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from penstock.shared.next_steps import did_you_mean, other_topics
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory

EARLIEST, LATEST = -2, -1  # as numbers in the offsets options
SMALLEST_SPLIT_BYTES, LARGEST_SPLIT_BYTES = 8 << 20, 128 << 20
SAMPLE_ENTRIES = 512
LIGHT_QUEUE_PREFIX = "%LMQ%"


class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The options of `spark.read.format("penstock")`; Spark compares their names without case."""

    path: str = ""
    subscribe: str = ""  # topics between commas; all topics without
    columns: str = ""  # column names between commas; all columns without
    starting_offsets: str = "earliest"  # earliest, latest, {"topic": {"0": 17, "1": -2}}
    ending_offsets: str = "latest"
    max_records_per_partition: int = 0  # 0: no limit but the bytes
    split_bytes: int = 0  # 0: so that every core gets work


class QueueRange(NamedTuple):
    """The messages [start, stop) of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises ConfigError for a name or value that is not ours."""
    names = {name.lower(): name for name in Options.__struct_encode_fields__}
    unknown = sorted(name for name in given if name.lower() not in names)
    if unknown:
        raise ConfigError(
            "the data source has no such option",
            ", ".join(unknown),
            did_you_mean(unknown[0], names.values()),
        )
    renamed = {names[name.lower()]: value for name, value in given.items()}
    try:
        options = msgspec.convert(renamed, Options, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "the value of an option cannot be read",
            error,
            'numbers are written as in .option("splitBytes", 67108864)',
        ) from error
    if not options.path:
        raise ConfigError(
            "no store directory is named", None, 'name it: .option("path", "/var/lib/store")'
        )
    if options.max_records_per_partition < 0 or options.split_bytes < 0:
        raise ConfigError(
            "a limit of a partition is below 0",
            f"{options.max_records_per_partition} records, {options.split_bytes} bytes",
        )
    return options


def plan(store: StoreDirectory, options: Options) -> list[tuple[QueueRange, ...]]:
    """The partitions: large queues are cut, small neighbours share one. Never empty."""
    queues = _subscribed(store, options.subscribe)
    starts = _offsets(options.starting_offsets, queues, "startingOffsets", EARLIEST)
    stops = _offsets(options.ending_offsets, queues, "endingOffsets", LATEST)
    wanted = []
    for queue, start, stop in zip(queues, starts, stops, strict=True):
        if start < stop:
            wanted.append((QueueRange(queue.topic, queue.queue_id, start, stop), queue))
    sizes_bytes = [_estimate_bytes(queue, piece) for piece, queue in wanted]
    split_bytes = options.split_bytes or min(
        max(sum(sizes_bytes) // (2 * (os.cpu_count() or 1)), SMALLEST_SPLIT_BYTES),
        LARGEST_SPLIT_BYTES,
    )
    most_records = options.max_records_per_partition or 1 << 62
    partitions: list[tuple[QueueRange, ...]] = []
    held: list[QueueRange] = []
    held_bytes = held_records = 0
    for (whole, _), size_bytes in zip(wanted, sizes_bytes, strict=True):
        for piece in _cut(whole, max(-(-size_bytes // split_bytes), 1), most_records):
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
    """At least this many pieces of about equal size, none of more records than allowed."""
    count = whole.stop - whole.start
    step = min(-(-count // pieces), most_records)
    for start in range(whole.start, whole.stop, step):
        yield whole._replace(start=start, stop=min(start + step, whole.stop))


def _estimate_bytes(queue: QueueFiles, piece: QueueRange) -> int:
    """The records' bytes, from the sizes at both ends: a queue may have very many entries."""
    head = queue.entries(piece.start, min(piece.start + SAMPLE_ENTRIES, piece.stop))["size"]
    tail = queue.entries(max(piece.stop - SAMPLE_ENTRIES, piece.start), piece.stop)["size"]
    return int((head.mean() + tail.mean()) / 2 * (piece.stop - piece.start))


def _subscribed(store: StoreDirectory, subscribe: str) -> list[QueueFiles]:
    """The queues of the topics named. Raises TopicNotFound."""
    # entries of light queues name messages of other topics, which are read there
    queues = [queue for queue in store.queues() if not queue.topic.startswith(LIGHT_QUEUE_PREFIX)]
    there = sorted({queue.topic for queue in queues})
    topics = [name.strip() for name in subscribe.split(",") if name.strip()]
    missing = [name for name in topics if name not in there]
    if missing:
        raise TopicNotFound(
            "the store has no queue of a subscribed topic",
            ", ".join(missing),
            other_topics(missing[0], there),
        )
    return [queue for queue in queues if not topics or queue.topic in topics]


def _offsets(text: str, queues: Sequence[QueueFiles], option: str, otherwise: int) -> list[int]:
    """One offset for each queue. Raises ConfigError, OffsetOutOfRange."""
    named: dict[str, dict[str, int]] = {}
    if text.strip().lower() in ("earliest", "latest"):
        otherwise = EARLIEST if text.strip().lower() == "earliest" else LATEST
    else:
        named = _parse_offsets(text, option)
    known = {(queue.topic, str(queue.queue_id)) for queue in queues}
    strange = [f"{t}/{q}" for t, by_queue in named.items() for q in by_queue if (t, q) not in known]
    if strange:
        raise ConfigError(
            f"{option} names queues that are not read",
            ", ".join(strange),
            "name those of `subscribe` that the store has",
        )
    found = []
    for queue in queues:
        offset = named.get(queue.topic, {}).get(str(queue.queue_id), otherwise)
        lowest, highest = queue.min_offset, queue.max_offset
        offset = {EARLIEST: lowest, LATEST: highest}.get(offset, offset)
        if not lowest <= offset <= highest:
            raise OffsetOutOfRange(
                f"{option} lies outside the queue",
                f"{queue.topic}/{queue.queue_id} at {offset}",
                f"it has {lowest} to {highest}; -2 is the earliest, -1 the latest",
            )
        found.append(offset)
    return found


def _parse_offsets(text: str, option: str) -> dict[str, dict[str, int]]:
    try:
        parsed: Any = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{option} cannot be read",
            f"{text}: {error}",
            'write earliest, latest, or JSON like {"topic": {"0": 17}}',
        ) from error
    return dict(parsed)
