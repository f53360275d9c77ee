"""A store's messages as Parquet, by topic and day: what is new since the last run, each once.

    plan      each queue from where the archive ends to where the store is on disk
    tasks     a range of queues each -> files in staging
    driver    files to their places -> the run's list, last -> how far, for the store's cleaner

A run that is killed at any step leaves files that no list names; the next run removes them and
archives their messages again. Messages that no flush covers yet are left for the next run, because
a power failure could take them back. `manifest` owns an archive's contents; this file also reads an
archive back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.shared.errors import ConfigError, OffsetOutOfRange, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.formats.properties import decode_properties, is_tombstone
from penstock.shared.layout import StorePaths
from penstock.shared.log.archived import Archived, load_archived, save_archived
from penstock.shared.messaging.system_topics import WORTH_KEEPING
from penstock.shared.next_steps import quoted
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.jobs.archive_files import Task, Written, archive_part
from penstock.spark.jobs.manifest import (
    VERSION,
    ArchivedQueue,
    ArchiveFile,
    Manifest,
    Run,
    archive_to_write,
)
from penstock.spark.jobs.messages import costs_of
from penstock.spark.jobs.parts import Progress, run_parts
from penstock.spark.plan import chosen, split
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.durable import Durable, durable_end
from penstock.spark.reading.options import Options
from penstock.spark.reading.queues import Queue
from penstock.spark.reading.views import StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[str, int]


class ArchiveDone(msgspec.Struct, frozen=True):
    """What a run has added. `archived_to` is the log offset below which the archive has all
    messages; -1 if unknown, as with only some topics, or with a RocketMQ that is running."""

    archive: str
    run: int
    messages: int
    files: int
    bytes: int
    queues: int
    lost: int
    expired: int
    archived_to: int


def archive_store(
    spark: SparkSession | None,
    directory: Path | str,
    archive: Path | str,
    *,
    topics: Sequence[str] = (),
    accept_gaps: bool = False,
    drop_damaged: bool = False,
    split_bytes: int = 0,
    progress: Progress | None = None,
) -> ArchiveDone:
    """Add to `archive` what the store in `directory` has beyond it; durable on return.

    The store may be running; only penstock/archived.json is written there. Without `topics` all are
    archived, and those of the broker's own that are worth keeping. With `accept_gaps` it goes on if
    messages have expired before they were archived; `drop_damaged` leaves out records that cannot
    be read. All workers must see the archive's directory under this path. Without `spark` there are
    no workers.

    Raises OffsetOutOfRange for messages that are gone, ConfigError for an archive of other queues
    and for a store without queues, TopicNotFound, StoreLocked, StoreDamaged, OSError; then the
    archive is unchanged.
    """
    root, place = str(Path(directory).absolute()), Path(archive).absolute()
    paths = StorePaths(root)
    # read before the queues are listed, so that below it they are complete
    durable = durable_end(paths)
    with StoreView(root) as view, archive_to_write(place) as manifest:
        view.check_queues("an archive")
        options = Options(path=root, subscribe=",".join(topics), split_bytes=split_bytes)
        queues = chosen(view, options)
        if not topics:
            queues = [*queues, *view.queues(WORTH_KEEPING.__contains__)]
        ranges, expired = _new_ranges(view.store, queues, durable, manifest, accept_gaps)
        # only after planning: if a run's list is lost, the files that it names must not be lost too
        manifest.clear()
        parts = [part for part in split(ranges, queues, options) if part]
        staging, number = str(manifest.staging), manifest.next_number
        encoded = [
            msgspec.msgpack.encode(Task(root, staging, number, at, list(part), drop_damaged))
            for at, part in enumerate(parts)
        ]
        results = run_parts(spark, archive_part, encoded, costs_of(parts, queues), progress)
        crash_point("archive.written")
        written = [
            each for raw in results for each in msgspec.msgpack.decode(raw, type=list[Written])
        ]
        run = _run_of(number, written, ranges)
        if ranges:
            for each in written:
                manifest.place(Path(each.staged), each.file.path)
            manifest.add(run)
        archived_to = -1 if topics else _archived_to(durable, queues)
        if archived_to >= 0 and paths.own.is_dir() and _is_kept_for(paths, place):
            save_archived(paths, Archived(log_offset=archived_to, archive=str(place)))
        return _done(manifest, run, expired, archived_to)


def _is_kept_for(paths: StorePaths, place: Path) -> bool:
    """Whether this archive decides what may expire. The first archive to do so keeps that role: if
    a second one, say a trial, decided, the first would find messages gone."""
    try:
        known = load_archived(paths)
    except StoreDamaged:  # nothing expires by this file until it is written again
        return True
    return known is None or known.archive == str(place)


def read_archive(spark: SparkSession, archive: Path | str) -> DataFrame:
    """All messages of an archive, each once: the source's columns, and `day`, the date of storing.

    Only files that a run names are read. Raises ConfigError if there is no archive.
    """
    manifest = Manifest(Path(archive).absolute())
    return frame_of(spark, manifest.root, manifest.files)


def frame_of(spark: SparkSession, root: Path, files: Iterable[ArchiveFile]) -> DataFrame:
    """The messages of some files."""
    from pyspark.sql.types import DateType, StructField, StructType

    from penstock.spark.source import COLUMNS

    fields = [StructField(name, kind) for name, kind in COLUMNS.items() if name != "topic"]
    partitions = [StructField("topic", COLUMNS["topic"]), StructField("day", DateType())]
    schema = StructType([*fields, *partitions])
    named = [str(root / file.path) for file in files]
    if not named:
        found = spark.createDataFrame([], schema)
    else:
        found = spark.read.schema(schema).option("basePath", str(root)).parquet(*named)
    return found.select(*COLUMNS, "day")


def _new_ranges(
    store: StoreDirectory,
    queues: Sequence[Queue],
    durable: Durable,
    manifest: Manifest,
    accept_gaps: bool,
) -> tuple[list[QueueRange], int]:
    """The ranges that the archive does not have yet, and how many messages expired before that."""
    known = manifest.last_of()
    ranges, expired = [], 0
    for queue in queues:
        stop = queue.durable_offset(durable.end)
        start = queue.min_offset
        had = known.get((queue.topic, queue.queue_id))
        is_recovering = durable.end is not None and not durable.settled
        if had is not None and is_recovering and queue.max_offset < had.stop:
            continue  # a start rebuilds the queue's end, and nothing new comes before it
        if had is not None:
            _check_same(store, queue, had, manifest.root)
            start = max(start, had.stop)
            if start > had.stop and not accept_gaps:
                raise OffsetOutOfRange(
                    "messages have expired before they were archived",
                    f"{queue.topic}/{queue.queue_id} from {had.stop} to {queue.min_offset}",
                    "to go on with what there is: --accept-gaps. To keep it from happening: "
                    "penstock up --set expire_archived_only=true",
                )
            expired += start - had.stop
        if start < stop:
            ranges.append(QueueRange(queue.topic, queue.queue_id, start, stop))
    return ranges, expired


def _check_same(store: StoreDirectory, queue: Queue, had: ArchivedQueue, root: Path) -> None:
    """Raise ConfigError if the queue is not the one that the archive has under this name."""
    is_other = queue.max_offset < had.stop
    if had.position >= 0 and queue.min_offset < had.stop <= queue.max_offset:
        position = queue.position(had.stop - 1)
        # a repair may have put a tombstone for a lost message elsewhere
        is_other = position != had.position and not _is_tombstone_at(store, position)
    if is_other:
        raise ConfigError(
            "the archive has messages of another queue of this name",
            f"{queue.topic}/{queue.queue_id}, which was archived up to {had.stop}",
            "its topic was created again, or it is another store's: archive into a new directory "
            f"beside {quoted(root)}",
        )


def _is_tombstone_at(store: StoreDirectory, position: int) -> bool:
    try:
        return is_tombstone(decode_properties(store.record_at(position).properties))
    except (StoreDamaged, OffsetOutOfRange):  # no record there: it is another queue's entry
        return False


def _run_of(number: int, written: Sequence[Written], ranges: Sequence[QueueRange]) -> Run:
    stretches: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    positions: dict[Key, int] = {}
    for each in written:
        for queue_id, start, stop in each.file.stretches:
            stretches[each.file.topic, queue_id].append((start, stop))
        for queue_id, position in each.positions.items():
            key = each.file.topic, queue_id
            positions[key] = max(position, positions.get(key, -1))
    queues = []
    for piece in ranges:
        key = piece.topic, piece.queue_id
        holes = holes_in(stretches[key], piece.start, piece.stop)
        is_lost = bool(holes) and holes[-1][1] == piece.stop
        position = -1 if is_lost else positions[key]
        queues.append(ArchivedQueue(*piece, position, holes))
    files = [each.file for each in written]
    return Run(VERSION, number, files, queues)


def _done(manifest: Manifest, run: Run, expired: int, archived_to: int) -> ArchiveDone:
    return ArchiveDone(
        str(manifest.root),
        len(manifest.runs),
        sum(file.rows for file in run.files),
        len(run.files),
        sum(file.size_bytes for file in run.files),
        len(run.queues),
        sum(stop - start for queue in run.queues for start, stop in queue.holes),
        expired,
        archived_to,
    )


def holes_in(stretches: Iterable[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of [start, stop) that no stretch covers."""
    found = []
    for first, end in sorted(stretches):
        if first > start:
            found.append((start, first))
        start = max(start, end)
    return [*found, (start, stop)] if start < stop else found


def _archived_to(durable: Durable, queues: Sequence[Queue]) -> int:
    """The log offset below which the archive has everything. -1 if unknown, as with a running
    RocketMQ, which may not have dispatched all, or with a store before its recovery."""
    if not durable.settled:
        return -1
    if durable.end is not None:
        return durable.end
    filled = [queue for queue in queues if queue.min_offset < queue.max_offset]
    return max((queue.position(queue.max_offset - 1) + 1 for queue in filled), default=-1)
