"""What a task of an archive job does: a range of a store's queues becomes Parquet files.

A task writes one zstd-compressed file for each topic and day, ordered by queue and offset. The day
is the UTC date of the store time. A file grows in staging, under a name that no other attempt at
the same task has, and is durable when the task is done.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.client.arrow.columns import SCHEMA as ALL_COLUMNS
from penstock.client.arrow.property_columns import Integers
from penstock.shared.files.durable import make_directory, sync_tree
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.jobs.manifest import ArchiveFile, Stretch, digest_of, file_path
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Mode
from penstock.spark.reading.rows import How
from penstock.spark.scan import read_range

# topic and day are in a file's path
SCHEMA = pa.schema([field for field in ALL_COLUMNS if field.name != "topic"])
# The approximate size of a row group before compression.
GROUP_BYTES = 32 << 20
DAY_US = 86_400_000_000
# the day of a time outside Spark's range: Hive's name for a null partition
NO_DAY = "__HIVE_DEFAULT_PARTITION__"


class Task(msgspec.Struct, frozen=True):
    """Ranges of queues, and where their files grow: ARCHIVE/_penstock/staging."""

    store: str
    staging: str
    run: int
    part: int
    ranges: list[QueueRange]
    drop_damaged: bool


class Written(msgspec.Struct, frozen=True):
    """A file in staging, and the log offset of the last message of each of its queues."""

    staged: str
    file: ArchiveFile
    positions: dict[int, int]


def archive_part(raw: bytes) -> bytes:
    """One task, in a worker. Raises StoreDamaged, OffsetOutOfRange, OSError."""
    task = msgspec.msgpack.decode(raw, type=Task)
    place = Path(task.staging) / f"{task.part:05d}-{uuid.uuid4().hex}"
    make_directory(place)
    how = How(mode=Mode.DROPMALFORMED if task.drop_damaged else Mode.FAILFAST)
    done: list[Written] = []
    files: dict[str, _File] = {}
    topic = ""
    with StoreDirectory(task.store) as store:
        for piece in task.ranges:
            if piece.topic != topic:
                done += [file.finish() for file in files.values()]
                files, topic = {}, piece.topic
            for arrays in read_range(store, piece, SCHEMA.names, how):
                for day, batch in _by_day(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)):
                    if day not in files:
                        path = file_path(topic, day, task.run, task.part)
                        staged = place / f"{len(done) + len(files):05d}.parquet"
                        files[day] = _File(staged, path, topic, day)
                    files[day].add(batch)
    done += [file.finish() for file in files.values()]
    sync_tree(place)
    return msgspec.msgpack.encode(done)


def stretches_of(queue_ids: Integers, offsets: Integers) -> list[Stretch]:
    """The rows as stretches of consecutive offsets, in their order."""
    if not len(offsets):
        return []
    breaks = (np.diff(offsets) != 1) | (np.diff(queue_ids) != 0)
    heads = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    tails = np.concatenate((heads[1:], [len(offsets)])) - 1
    ids, starts, stops = queue_ids[heads], offsets[heads], offsets[tails] + 1
    return list(zip(ids.tolist(), starts.tolist(), stops.tolist(), strict=True))


class _File:
    """A Parquet file that grows."""

    def __init__(self, staged: Path, path: str, topic: str, day: str) -> None:
        self._staged, self._path, self._topic, self._day = staged, path, topic, day
        self._writer = pq.ParquetWriter(staged, SCHEMA, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._rows = 0
        self._stretches: list[Stretch] = []
        self._positions: dict[int, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        ids, offsets = batch["queue_id"].to_numpy(), batch["queue_offset"].to_numpy()
        for stretch in stretches_of(ids, offsets):
            _extend(self._stretches, stretch)
        # a batch is of one queue
        self._positions[int(ids[-1])] = batch["physical_offset"][-1].as_py()
        self._rows += batch.num_rows
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._write()

    def finish(self) -> Written:
        """Complete the file; it is not synced yet."""
        self._write()
        self._writer.close()
        file = ArchiveFile(
            self._path,
            self._topic,
            self._day,
            self._rows,
            self._staged.stat().st_size,
            digest_of(self._staged),
            self._stretches,
        )
        return Written(str(self._staged), file, self._positions)

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=1 << 30)
        self._held, self._held_bytes = [], 0


def _extend(stretches: list[Stretch], stretch: Stretch) -> None:
    """Append it, joined to the last stretch if it continues that."""
    if stretches and stretches[-1][0] == stretch[0] and stretches[-1][2] == stretch[1]:
        stretch = (stretch[0], stretches.pop()[1], stretch[2])
    stretches.append(stretch)


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch in runs of one day each, in order. If the clock was set back, a day may come
    again."""
    times = batch["store_timestamp"]
    days = times.cast(pa.int64()).fill_null(-(1 << 62)).to_numpy() // DAY_US
    cuts: Sequence[int] = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        first = times[start].as_py()
        # %Y does not pad a year before 1000 with zeros, and Spark cannot read such a day
        day = NO_DAY if first is None else first.date().isoformat()
        yield day, batch.slice(start, stop - start)
