"""Puts bytes at the end of the log. Only the writer has it; it is the counterpart of the reader.

It does not decide where records begin, except that no record crosses a segment's end.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.files.durable import zero_from
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import BLANK_HEADER_BYTES, StorePaths
from penstock.shared.log.reader import reach_bytes
from penstock.shared.loops.active import put_stamped
from penstock.shared.loops.forms import Stamp
from penstock.shared.memory.run_directory import Run
from penstock.shared.memory.transient_store_pool import TransientStorePool

# The blocks of this many bytes are asked for at once: some file systems have each of them written.
AHEAD_BYTES = 64 << 20


class Placed(NamedTuple):
    """Records first..last-1 of a frame go to `position`; before that a blank of `blank` bytes."""

    first: int
    last: int
    position: int
    blank: int


def place(starts: list[int], position: int, segment_bytes: int) -> list[Placed]:
    """Where the records of a frame go when the log ends at `position`.

    `starts` are the offsets of the records in the frame, with its length last. As in RocketMQ, a
    record after which the segment has no room for a blank's header goes to the next segment.
    """
    left = segment_bytes - position % segment_bytes
    if starts[-1] - starts[0] + BLANK_HEADER_BYTES <= left:  # the common case: all of it fits
        return [Placed(0, len(starts) - 1, position, 0)]
    placed = []
    first, blank = 0, 0
    run_at = position
    for i in range(len(starts) - 1):
        size = starts[i + 1] - starts[i]
        left = segment_bytes - position % segment_bytes
        if size + BLANK_HEADER_BYTES > left:
            if i > first:
                placed.append(Placed(first, i, run_at, blank))
                blank = 0
            first, blank = i, blank + left
            position += left
            run_at = position
        position += size
    placed.append(Placed(first, len(starts) - 1, run_at, blank))
    return placed


class LogAppender:
    """Puts bytes at the end of the log: into the pool, or straight into the mapped segment."""

    def __init__(self, config: Config, run: Run) -> None:
        self._pool = TransientStorePool(run.pool, writable=True) if run.pool_enabled else None
        directory = StorePaths(config.store).commit_log
        self._segments = MappedFileQueue(
            directory, config.mapped_file_size_commit_log_bytes, writable=True, keep=2
        )
        self._reach = reach_bytes(config)
        # without a pool: up to this log offset, segments have no holes
        self._filled = 0

    def room(self, committed: int, allocated: int) -> int:
        """The log offset up to which bytes may be put now."""
        if self._pool is None:
            return allocated
        return min(allocated, committed + self._pool.size)

    def forget_beyond(self, wrote: int, allocated: int) -> None:
        """Zero what a predecessor left in the segments past `wrote`; it was never published.

        After the next crash, a whole record in it would look like one of the log. Segments that
        `allocated` does not count have never had bytes. The allocator may make such a segment
        again, and a process that had the old one open would write into an unlinked file.
        """
        if self._pool is not None:
            return  # the committer takes only published bytes from the pool to a segment
        at, stop = wrote, min(wrote + self._reach, allocated)
        while at < stop:
            segment = self._segments.segment(at)
            zero_from(segment.handle, at - segment.base, min(segment.size, stop - segment.base))
            at = segment.base + segment.size

    def prepare(self, start: int, stop: int) -> None:
        """Open the segments of [start, stop), and see that they have blocks, before bytes are put
        there. Raises OSError."""
        if self._pool is None:
            for at in (start, stop - 1):
                self._segments.segment(at)
            if stop > self._filled:
                self._fill_holes(max(start, self._filled), stop)

    def _fill_holes(self, start: int, stop: int) -> None:
        """Have blocks for [start, stop) of the log, and for what comes after it.

        Segments of RocketMQ, and of a copied store, have holes where nothing was written yet. On a
        full disk, a store into one ends the process.
        """
        while start < stop:
            segment = self._segments.segment(start)
            end = min(segment.base + segment.size, start + AHEAD_BYTES)
            found = os.fstat(segment.handle)
            # st_blocks counts 512 bytes, whatever the file system's blocks are
            if found.st_blocks * 512 < found.st_size:
                os.posix_fallocate(segment.handle, start - segment.base, end - start)
            self._filled = start = end

    def put(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to this log offset; they do not cross a segment's end."""
        if self._pool is not None:
            self._pool.write(position, data)
        else:
            self._segments.view(position, position + len(data))[:] = data

    def put_records(
        self,
        position: int,
        frame: bytes | memoryview,
        starts: list[int],
        queue_offsets: list[int],
        stamp: Stamp,
    ) -> None:
        """Stamp a frame's records and put them here; they do not cross a segment's end."""
        stop = position + starts[-1] - starts[0]
        if self._pool is None:
            target = self._segments.view(position, stop)
            put_stamped(target, frame, starts, queue_offsets, position, stamp)
            return
        pieces = self._pool.pieces(position, stop)
        if len(pieces) == 1:
            put_stamped(pieces[0], frame, starts, queue_offsets, position, stamp)
        else:  # the ring of the pool wraps inside these records
            stamped = bytearray(stop - position)
            put_stamped(stamped, frame, starts, queue_offsets, position, stamp)
            self._pool.write(position, stamped)

    def put_blank(self, position: int, size: int) -> None:
        """Fill the rest of a segment: header, then zeros."""
        self.put(position, BLANK.pack(size, MAGIC_BLANK))
        if self._pool is not None:  # without a pool, the rest of the segment is zeros already
            self.put(position + BLANK_HEADER_BYTES, bytes(size - BLANK_HEADER_BYTES))

    def release_deleted(self, now_ms: int) -> None:
        """Close segments that are deleted. Nobody else has views of them."""
        self._segments.release_deleted(now_ms)

    def close(self) -> None:
        self._segments.close()
        if self._pool is not None:
            self._pool.close()
