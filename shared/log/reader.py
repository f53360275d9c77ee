"""The commit log while a broker runs: bytes by global offset, from segments or from the pool.

Below `committed` the bytes stand in the segment files; from there to `wrote` they may stand only in
the transient store pool. `LogReader` hides that. The writer's counterpart is its log appender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import (
    SMALLEST_RECORD_BYTES,
    blank_size,
    store_timestamp_ms,
)
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import DamagedRanges, load_quarantine
from penstock.shared.loops.active import PageWatch, record_starts
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run
from penstock.shared.memory.transient_store_pool import TransientStorePool
from penstock.shared.next_steps import verify

# `pieces` yields at most this much at a time, unless asked for less; a longer record comes alone.
LOOK_BYTES = 8 << 20
# A reader that has looked at nothing for longer than this releases its pages.
REST_MS = 1000
# Past every log offset: where there is no pool, all bytes stand in the segments.
_NO_END = 1 << 63
# A reader that never rests releases its pages after looking at this many bytes.
MOST_LOOKED_BYTES = 64 << 20

# A way to read the log: see LogReader.pieces.
Pieces = Callable[[int, int], Iterator[tuple[int, memoryview]]]


def with_beats(
    pieces: Callable[[int, int, int], Iterator[tuple[int, memoryview]]], beat: Callable[[], None]
) -> Callable[..., Iterator[tuple[int, memoryview]]]:
    """The same way to read the log, but with a beat at each piece."""

    def beating(
        start: int, stop: int, window_bytes: int = LOOK_BYTES
    ) -> Iterator[tuple[int, memoryview]]:
        for piece in pieces(start, stop, window_bytes):
            beat()
            yield piece

    return beating


def reach_bytes(config: Config) -> int:
    """How far past `wrote` a writer may have put bytes of a frame that was never published."""
    # a frame and the blanks in it, each shorter than the record after it plus a blank's header
    return 3 * config.max_frame_bytes


class LogReader:
    """Reads the log up to `wrote`, whether the bytes are in segments or still in the pool.

    Any actor may use `view`, `segment` and `stored_ms`, which read what is committed, and `recent`,
    which copies what may be in the pool alone. `record` and `pieces` also read the pool, and are
    for the writer alone. What they return is mostly a view of a mapping: as long as anybody holds
    it, a deleted segment keeps its disk space. They raise FileNotFoundError for a missing segment,
    and StoreDamaged for one of another length than configured.
    """

    def __init__(self, config: Config, run: Run, positions: Positions) -> None:
        self._positions = positions
        self.segment_bytes = config.mapped_file_size_commit_log_bytes
        self._pool = TransientStorePool(run.pool) if run.pool_enabled else None
        self._segments = MappedFileQueue(
            StorePaths(config.store).commit_log, self.segment_bytes, keep=16, watch=PageWatch
        )
        self._looked = False
        self._looked_bytes = 0
        self._resting_ms = 0
        paths = StorePaths(config.store)
        # once is enough: the list changes only while no actor runs
        self.damaged = DamagedRanges(load_quarantine(paths) if positions["read_only"] else ())

    def view(self, position: int, limit: int) -> memoryview:
        """Committed bytes from `position`, up to `limit`, damage or the segment's end. No copy.

        Empty where damage begins at `position`. If `position` is inside a damaged range the view is
        not limited, so a walk asks `damaged` first.
        """
        if self.damaged:
            limit = self.damaged.next_start(position, limit)
        view = self._segments.view(position, limit)
        self._look(len(view))
        return view

    def segment(self, base: int, size: int) -> memoryview:
        """The segment that begins at this log offset; the caller reads `size` bytes of it. No copy.

        `size` counts pages and limits nothing. Damage is not left out: the caller has chosen what
        it reads of the segment.
        """
        self._look(size)
        return self._segments.segment(base).view

    def _look(self, size: int) -> None:
        """Count bytes that are about to be read, and release pages once they are many.

        A reader at full rate never rests: the reput once had 16 GB of the log mapped. Views stay
        valid, since their pages are faulted in again.
        """
        self._looked = True
        if self._looked_bytes + size > MOST_LOOKED_BYTES:
            self._segments.release_pages()
            self._looked_bytes = 0
        self._looked_bytes += size

    def stored_ms(self, position: int) -> int | None:
        """The store time of the committed record at a log offset; None when it has expired."""
        if position < self._positions["log_start"]:
            return None
        try:
            return store_timestamp_ms(
                self._segments.view(position, position + SMALLEST_RECORD_BYTES), 0
            )
        except FileNotFoundError:
            # expired since we read `log_start`, which the cleaner moves before it deletes
            return None

    def rest(self, now_ms: int) -> bool:
        """Say that there is nothing to read; after REST_MS of that, pages are released. Returns
        whether they were just now.

        They are in the page cache anyway, but count as memory of the process that maps them.
        """
        if self._looked:
            # the rest begins with this call: during short pauses the pages stay
            self._looked, self._resting_ms = False, now_ms
        elif self._resting_ms and now_ms - self._resting_ms > REST_MS:
            self._segments.release_pages()
            self._resting_ms = 0
            return True
        return False

    def read_ahead(self, is_on: bool) -> None:
        """Whether the kernel reads ahead where this process reads what is not in memory."""
        self._segments.read_ahead(is_on)

    def release_deleted(self, now_ms: int) -> int:
        """Close deleted segments. Returns for how many ms a view of one has been held so far."""
        return self._segments.release_deleted(now_ms)

    def record(self, position: int) -> memoryview:
        """The record that begins at this offset; for the writer, like `pieces`.

        The size is the record's own word and is not checked. So the writer itself must know that a
        record begins at this offset.
        """
        committed = self._positions["committed"] if self._pool is not None else _NO_END
        size = first_size(self._piece(position, position + 4, committed))
        return self._piece(position, position + size, committed)

    def pieces(
        self, start: int, stop: int, window_bytes: int = LOOK_BYTES
    ) -> Iterator[tuple[int, memoryview]]:
        """[start, stop) as (offset, bytes) that begin and end between records, without the blanks.

        A piece has at most `window_bytes`, or one longer record. Only for the writer: for any other
        process the writer could be filling what it reads. Raises StoreDamaged where neither a
        record nor a blank begins.
        """
        # what is below this stays in the pool until the writer itself overwrites it
        committed = self._positions["committed"] if self._pool is not None else stop
        at = start
        while at < stop:
            # what expires meanwhile is left out, as if it had expired before
            at = max(at, self._positions["log_start"])
            if (damage := self.damaged.at(at)) is not None:
                at = damage.end
                continue
            segment_end = at - at % self.segment_bytes + self.segment_bytes
            limit = self.damaged.next_start(at, min(stop, segment_end))
            try:
                piece = self._piece(at, min(limit, at + window_bytes), committed)
            except FileNotFoundError:
                # it is missing, or it expired since the check above: then the next turn skips it
                if at >= self._positions["log_start"]:
                    raise
                continue
            used = whole_records(piece, at)
            size = blank_size(piece)
            if not used and not size:  # a record longer than the window, or no record
                piece = self._piece(at, min(limit, at + first_size(piece)), committed)
                used = whole_records(piece, at)
            if used:
                yield at, piece[:used]
                at += used
            elif size and at + size == segment_end:
                # a blank that ends elsewhere is really bytes of a body: the start was wrong, and
                # lies inside a record
                at += size
            else:
                raise StoreDamaged(
                    "no record and no blank begins here",
                    f"log offset {at}, below {stop}",
                    verify(self._segments.directory),
                )

    def recent(self, start: int, stop: int) -> bytes:
        """A copy of [start, stop), which lies below `wrote` and in one segment; for any actor.

        What is not committed is copied from the pool. The writer overwrites a byte there only after
        the byte was committed: so if `committed` has not passed the place where the copy began, the
        copy is good. Otherwise the bytes are in the segment by now.
        """
        self._look(stop - start)
        while True:
            committed = self._positions["committed"] if self._pool is not None else stop
            if committed >= stop:
                return bytes(self._segments.view(start, stop))
            at = max(start, committed)
            head = bytes(self._segments.view(start, at)) if start < at else b""
            assert self._pool is not None
            copy = head + b"".join(self._pool.pieces(at, stop))
            if self._positions["committed"] <= at:
                return copy

    def _piece(self, at: int, limit: int, committed: int) -> memoryview:
        if at < committed:
            view = self._segments.view(at, min(limit, committed))
            self._look(len(view))
            return view
        assert self._pool is not None
        # a copy: the ring's end may lie inside the piece
        return memoryview(b"".join(self._pool.pieces(at, limit)))

    def close(self) -> None:
        self._segments.close()
        if self._pool is not None:
            self._pool.close()


def first_size(view: memoryview) -> int:
    """The size that the record at the beginning of a piece claims; not checked."""
    return int.from_bytes(view[:4], "big")


def whole_records(view: memoryview, position: int) -> int:
    """How many bytes of whole records there are at the beginning of a piece of the log.

    A record counts if its lengths add up and it names its own offset. No checksum is compared.
    """
    return record_starts(view, position, Checksum.NONE)[-1]
