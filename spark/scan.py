"""Reads a range of a queue: its entries, then the records they name, in batches of bounded size.

Records of one queue lie between those of others in the log. Records with little between them are
fetched by one read, so a queue that has the log to itself is read in large pieces. The requested
columns come as Arrow arrays, so this runs and is tested without Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.arrow.decode import Batch
from penstock.client.arrow.property_columns import Integers
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.next_steps import verify
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.log_pass import LogPass
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Mode
from penstock.spark.reading.rows import Explain, How, Rows

BATCH_BYTES = 4 << 20  # of log; a batch is in memory as records, and once more as columns
ENTRIES_AT_ONCE = 1 << 16
# Up to this many unwanted bytes are cheaper to read than another call
WIDEST_GAP_BYTES = 8 << 10
# A single read of this size is announced to the disk ahead
EXPECTED_BYTES = 256 << 10
_PLAIN = How()


def read_range(
    store: StoreDirectory, piece: QueueRange, columns: Sequence[str], how: How = _PLAIN
) -> Iterator[list[pa.Array]]:
    """The requested columns, batch by batch. Raises StoreDamaged, OffsetOutOfRange."""
    files = FileCache()
    path = store.paths.queue(piece.topic, piece.queue_id)
    queue = QueueFiles(files, path, piece.topic, piece.queue_id, store.log_start)
    try:
        first, end = held_range(queue, piece, how)
        scan = Scan(store, {(piece.topic, piece.queue_id): queue}, Rows(columns, how))
        for start in range(first, end, ENTRIES_AT_ONCE):
            yield from scan.rows_of(*named_by(queue, start, min(start + ENTRIES_AT_ONCE, end)))
    finally:
        files.close()


def held_range(queue: QueueFiles, piece: QueueRange, how: How) -> tuple[int, int]:
    """The range that is read."""
    if how.fail_on_data_loss:
        return piece.start, piece.stop
    # since the plan, the store may have lost its oldest files, or its newest
    return max(piece.start, queue.first_slot), min(piece.stop, queue.max_offset)


def named_by(queue: QueueFiles, start: int, stop: int) -> tuple[Batch, Integers]:
    """What these entries name, and their tags codes."""
    table = queue.entries(start, stop)
    slots = np.flatnonzero(table["size"] != BLANK_SIZE)
    named = Batch(
        queue.topic,
        queue.queue_id,
        start + slots.astype(np.int64),
        table["offset"][slots].astype(np.int64),
        table["size"][slots].astype(np.int64),
    )
    return named, table["tags_code"][slots].astype(np.int64)


class Scan:
    """One task's reading of queues: from queue entries to rows."""

    def __init__(
        self,
        store: StoreDirectory,
        queues: Mapping[tuple[str, int], QueueFiles],
        rows: Rows,
        log: StoreDirectory | LogPass | None = None,
        batch_bytes: int = 0,
    ) -> None:
        """`log` reads the store's log; `batch_bytes` is how much of it a batch covers."""
        self._store = store
        self._log = log or store
        self._batch_bytes = batch_bytes or BATCH_BYTES
        self._queues = queues
        self._rows = rows
        self._how = rows.how
        # reused for each batch, because fresh memory costs as much as what is done with it
        self._buffer = bytearray()

    def rows_of(self, entries: Batch, codes: Integers) -> Iterator[list[pa.Array]]:
        """The rows that the entries lead to, a few MiB at a time."""
        named = self._rows.candidates(entries, codes)
        bad = (named.physical_offsets < 0) | (named.sizes_bytes < SMALLEST_RECORD_BYTES)
        named = yield from self._without(named, bad, self._too_small)
        if not self._rows.needs_records:
            if len(named.queue_offsets):
                yield self._rows.of_entries(named)
            return
        named = self._unexpired(named)
        segments, outside = self._segments_of(named)
        sound = yield from self._without(named, outside, self._outside)
        for batch in self._fetched(sound, segments[~outside]):
            yield from self._rows.rows(batch, self._damage)

    def _unexpired(self, named: Batch) -> Batch:
        """Raises OffsetOutOfRange if messages have expired, or leaves them out."""
        gone = named.physical_offsets < self._store.log_start
        if not gone.any():
            return named
        if self._how.fail_on_data_loss:
            raise _expired(int(named.physical_offsets.min()), self._store.log_start)
        return named.part(~gone)

    def _segments_of(self, named: Batch) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """The index of each record's segment, and which records do not fit into any segment."""
        offsets = named.physical_offsets
        ends = np.array([segment.end for segment in self._store.segments], np.int64)
        bases = [segment.base for segment in self._store.segments]
        indexes = np.searchsorted(bases, offsets, "right") - 1
        if not len(ends):
            return indexes, np.ones(len(offsets), np.bool_)
        return indexes, offsets + named.sizes_bytes > ends[indexes]

    def _fetched(self, named: Batch, segments: Integers) -> Iterator[Batch]:
        """The named records with their bytes, a few MiB at a time."""
        if not len(named.queue_offsets):
            return
        offsets, sizes = named.physical_offsets, named.sizes_bytes
        gaps = offsets[1:] - (offsets + sizes)[:-1]
        joined = np.zeros(len(offsets), bool)  # with the record before it: one read fetches both
        joined[1:] = (gaps >= 0) & (gaps <= WIDEST_GAP_BYTES) & (segments[1:] == segments[:-1])
        costs_bytes = sizes.copy()
        costs_bytes[1:] += np.where(joined[1:], gaps, 0)
        cuts = np.flatnonzero(np.diff(np.cumsum(costs_bytes) // self._batch_bytes)) + 1
        bounds = pairwise((0, *cuts.tolist(), len(offsets)))
        batches = [_runs(joined, first, end) for first, end in bounds]
        self._expect(named, batches[0])
        for runs, later in zip_longest(batches, batches[1:]):
            first, end = runs[0], runs[-1]
            if later:
                self._expect(named, later)
            try:
                raw, starts = self._read_runs(named, runs)
            except OffsetOutOfRange:
                # a segment was deleted after this task listed the store
                self._store.refresh()
                left = self._unexpired(named.part(slice(first, None)))
                yield from self._fetched(left, self._segments_of(left)[0])
                return
            yield named.part(slice(first, end))._replace(raw=raw, starts=starts)

    def _expect(self, named: Batch, runs: Sequence[int]) -> None:
        """Have the disk read large runs ahead, while other rows are made."""
        places, lengths = _extents(named, runs)
        for index in np.flatnonzero(lengths >= EXPECTED_BYTES).tolist():
            self._log.expect_log(int(places[index]), int(lengths[index]))

    def _read_runs(self, named: Batch, runs: Sequence[int]) -> tuple[memoryview, Integers]:
        """The bytes of these records, one read for each run, and where each record begins.

        They are valid until the next call.
        """
        places, lengths = _extents(named, runs)
        filled = np.concatenate(([0], np.cumsum(lengths)))
        if filled[-1] > len(self._buffer):
            self._buffer = bytearray(int(filled[-1]))
        raw = memoryview(self._buffer)[: int(filled[-1])]
        pieces = zip(places.tolist(), pairwise(filled.tolist()), strict=True)
        for position, (begin, end) in pieces:
            self._log.read_log_into(position, raw[begin:end])
        offsets = named.physical_offsets[runs[0] : runs[-1]]
        starts = offsets + np.repeat(filled[:-1] - places, np.diff(runs))
        return raw, starts

    def _without(
        self, named: Batch, bad: npt.NDArray[np.bool_], explain: Explain
    ) -> Generator[list[pa.Array], None, Batch]:
        """The messages without bad ones, which raise, become rows or are dropped, by the mode."""
        if not bad.any():
            return named
        if self._how.mode is Mode.FAILFAST:
            raise explain(named, int(np.flatnonzero(bad)[0]))
        if self._how.mode is Mode.PERMISSIVE:
            for index in np.flatnonzero(bad).tolist():
                alone = named.part(slice(index, index + 1))
                yield from self._rows.reported_at(alone, str(explain(named, index)))
        return named.part(~bad)

    def _too_small(self, named: Batch, index: int) -> StoreDamaged:
        file, at = self._place(named, index)
        return StoreDamaged(
            f"a consume queue entry names a record of less than {SMALLEST_RECORD_BYTES} bytes",
            f"{named.sizes_bytes[index]} bytes at {named.physical_offsets[index]} "
            f"({file}, byte {at})",
            verify(file),
        )

    def _outside(self, named: Batch, index: int) -> StoreDamaged:
        file, at = self._place(named, index)
        return StoreDamaged(
            "a consume queue entry names a record outside the log's segments",
            f"{named.sizes_bytes[index]} bytes at {named.physical_offsets[index]} "
            f"({file}, byte {at})",
            verify(self._store.paths.root),
        )

    def _damage(self, batch: Batch, index: int) -> StoreDamaged:
        """What is wrong with a record, with the places of the record and of its entry."""
        position, size = int(batch.physical_offsets[index]), int(batch.sizes_bytes[index])
        start = int(batch.starts[index])
        found, length, reason = examine(batch.raw, start, start + size, position=position)
        if found is Kind.RECORD and length != size:
            reason = f"record of {length} bytes where its entry says {size}"
        elif found is Kind.RECORD:
            reason = "record of another queue or queue offset"
        segment = self._store.segment_of(position)
        file, at = self._place(batch, index)
        topic, queue_id = batch.queue_of(index)
        return StoreDamaged(
            f"message {batch.queue_offsets[index]} of {topic}/{queue_id} is not where its entry "
            "says",
            f"{reason or found.name.lower()} at {position} "
            f"({segment.path}, byte {position - segment.base}; entry: {file}, byte {at})",
            verify(self._store.paths.root),
        )

    def _place(self, batch: Batch, index: int) -> tuple[str, int]:
        """The file and the byte where a record's entry is."""
        queue = self._queues[batch.queue_of(index)]
        return queue.place(int(batch.queue_offsets[index]))


def _runs(joined: npt.NDArray[np.bool_], first: int, end: int) -> list[int]:
    """Where in [first, end) each run of joined records begins, and the end."""
    heads = np.flatnonzero(~joined[first:end]) + first
    return [first, *heads[heads > first].tolist(), end]


def _extents(named: Batch, runs: Sequence[int]) -> tuple[Integers, Integers]:
    """Where in the log each run begins, and how many bytes it has."""
    heads, lasts = np.array(runs[:-1]), np.array(runs[1:]) - 1
    places = named.physical_offsets[heads]
    return places, named.physical_offsets[lasts] + named.sizes_bytes[lasts] - places


def _expired(position: int, log_start: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        "messages that were to be read have expired meanwhile",
        f"log offset {position}; the log starts at {log_start}",
        'read again; with option("failOnDataLoss", "false") a query passes over them',
    )
