"""Reads a range of a queue: its entries, then the records they name, in batches of bounded size.

Records of one queue lie between those of others in the log. Neighbours with little between them are
fetched by one read, so a queue that has the log to itself is read in large pieces. It
yields the columns that were asked for as Arrow arrays, so it runs and is tested without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.next_steps import verify
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.decode import Batch, RecordMismatch, entry_columns, record_columns
from penstock.spark.gather import Integers
from penstock.spark.plan import QueueRange

BATCH_BYTES = 4 << 20  # of log: what one batch holds in memory, and then once more as columns
ENTRIES_AT_ONCE = 1 << 16
# Reading bytes nobody wants is cheaper than another call as long as they are this few
WIDEST_GAP_BYTES = 8 << 10


def read_range(
    store: StoreDirectory, piece: QueueRange, columns: Sequence[str]
) -> Iterator[list[pa.Array]]:
    """The columns asked for, batch after batch. Raises StoreDamaged, OffsetOutOfRange."""
    files = FileCache()
    path = store.paths.queue(piece.topic, piece.queue_id)
    queue = QueueFiles(files, path, piece.topic, piece.queue_id, store.log_start)
    try:
        for start in range(piece.start, piece.stop, ENTRIES_AT_ONCE):
            table = queue.entries(start, min(start + ENTRIES_AT_ONCE, piece.stop))
            named = _named_by(queue, table, start)
            in_entries = entry_columns(named)
            if all(name in in_entries for name in columns):
                yield [in_entries[name]() for name in columns]
                continue
            for batch in _read_batches(store, queue, named):
                try:
                    made = record_columns(batch)
                    arrays = [made[name]() for name in columns]
                except RecordMismatch as misfit:
                    raise _damage(store, queue, batch, misfit.index) from misfit
                yield arrays
    finally:
        files.close()


def _named_by(queue: QueueFiles, table: npt.NDArray[np.void], start: int) -> Batch:
    """What the entries say, without blanks. Raises StoreDamaged for an entry that names nothing."""
    slots = np.flatnonzero(table["size"] != BLANK_SIZE)
    offsets, sizes = table["offset"][slots], table["size"][slots]
    bad = np.flatnonzero((offsets < 0) | (sizes < SMALLEST_RECORD_BYTES))
    if len(bad):
        file, at = queue.place(start + int(slots[bad[0]]))
        raise StoreDamaged(
            f"a consume queue entry names a record of less than {SMALLEST_RECORD_BYTES} bytes",
            f"{sizes[bad[0]]} bytes at {offsets[bad[0]]} ({file}, byte {at})",
            verify(file),
        )
    return Batch(
        queue.topic,
        queue.queue_id,
        start + slots.astype(np.int64),
        offsets.astype(np.int64),
        sizes.astype(np.int64),
    )


def _read_batches(store: StoreDirectory, queue: QueueFiles, named: Batch) -> Iterator[Batch]:
    """The named records with their bytes, a few MiB at a time."""
    if not len(named.queue_offsets):
        return
    offsets, sizes = named.physical_offsets, named.sizes_bytes
    segments = _segments_of(store, queue, named)
    gaps = offsets[1:] - (offsets + sizes)[:-1]
    joined = np.zeros(len(offsets), bool)  # to the record before: one read fetches both
    joined[1:] = (gaps >= 0) & (gaps <= WIDEST_GAP_BYTES) & (segments[1:] == segments[:-1])
    costs_bytes = sizes.copy()
    costs_bytes[1:] += np.where(joined[1:], gaps, 0)
    cuts = np.flatnonzero(np.diff(np.cumsum(costs_bytes) // BATCH_BYTES)) + 1
    for first, end in pairwise((0, *cuts.tolist(), len(offsets))):
        heads = np.flatnonzero(~joined[first:end]) + first
        runs = [first, *heads[heads > first].tolist(), end]
        parts = []
        starts = np.empty(end - first, np.int64)
        filled_bytes = 0
        for head, stop in pairwise(runs):
            position = int(offsets[head])
            size = int(offsets[stop - 1] + sizes[stop - 1]) - position
            starts[head - first : stop - first] = offsets[head:stop] - position + filled_bytes
            parts.append(store.read_log(position, size))
            filled_bytes += size
        yield named._replace(
            queue_offsets=named.queue_offsets[first:end],
            physical_offsets=offsets[first:end],
            sizes_bytes=sizes[first:end],
            raw=parts[0] if len(parts) == 1 else b"".join(parts),
            starts=starts,
        )


def _segments_of(store: StoreDirectory, queue: QueueFiles, named: Batch) -> Integers:
    """The index of the segment that holds each record whole. Raises StoreDamaged otherwise."""
    offsets = named.physical_offsets
    ends = np.array([segment.end for segment in store.segments], np.int64)
    indexes = np.searchsorted([segment.base for segment in store.segments], offsets, "right") - 1
    if len(offsets) and int(offsets.min()) < store.log_start:
        raise OffsetOutOfRange(
            "messages that were to be read have expired meanwhile",
            f"log offset {int(offsets.min())}; the log starts at {store.log_start}",
            "read again",
        )
    outside = np.flatnonzero(offsets + named.sizes_bytes > ends[indexes])
    if len(outside):
        worst = int(outside[0])
        file, at = queue.place(int(named.queue_offsets[worst]))
        raise StoreDamaged(
            "a consume queue entry names a record outside the log's segments",
            f"{named.sizes_bytes[worst]} bytes at {offsets[worst]} ({file}, byte {at})",
            verify(store.paths.root),
        )
    return indexes


def _damage(store: StoreDirectory, queue: QueueFiles, batch: Batch, index: int) -> StoreDamaged:
    """What is wrong with the batch's record, with the places of the record and of its entry."""
    position, size = int(batch.physical_offsets[index]), int(batch.sizes_bytes[index])
    start = int(batch.starts[index])
    found, length, reason = examine(batch.raw, start, start + size, position=position)
    if found is Kind.RECORD and length != size:
        reason = f"record of {length} bytes where its entry says {size}"
    elif found is Kind.RECORD:
        reason = "record of another queue or queue offset"
    segment = store.segment_of(position)
    queue_offset = int(batch.queue_offsets[index])
    entry_file, entry_at = queue.place(queue_offset)
    return StoreDamaged(
        f"message {queue_offset} of {queue.topic}/{queue.queue_id} is not where its entry says",
        f"{reason or found.name.lower()} at {position} "
        f"({segment.path}, byte {position - segment.base}; entry: {entry_file}, byte {entry_at})",
        verify(store.paths.root),
    )
