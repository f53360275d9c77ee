"""Walk the commit log's files from record to record, over damage, to where the log ends.

    for position, found, size, record, reason in scan(...)

RECORD   one whole record; `record` shows its bytes (a view of a window: copy what you keep)
BLANK    filler up to the segment's end
DAMAGED  `size` bytes that are no record; the walk goes on at the next place where a record names
         its own offset and its checksum holds, or where a blank fits the segment's end exactly
END      once, last: nothing was written from here on

A log that is being written shows a half record, or zeros where a record is about to stand, for a
moment. So damage is looked at twice: again after something valid was found behind it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise

from penstock.shared.hot_loops import record_starts
from penstock.shared.record import (
    AT_PHYSICAL_OFFSET,
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    Found,
    examine,
)
from penstock.shared.record_crc import Checksum
from penstock.shared.segment_files import FileCache, Segment

WINDOW_BYTES = 8 << 20

Step = tuple[int, Found, int, memoryview, str]

_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
_MAGIC_LEADS = (b"\xda\xa3\x20", b"\xcb\xd4\x31\x94")
_NOTHING = memoryview(b"")
_ZEROS = bytes(WINDOW_BYTES + BLANK.size)

assert MAGIC_V1.to_bytes(4, "big")[:3] == MAGIC_V2.to_bytes(4, "big")[:3] == _MAGIC_LEADS[0]
assert MAGIC_BLANK.to_bytes(4, "big") == _MAGIC_LEADS[1], "the search finds every magic"


def scan(
    files: FileCache, segments: Sequence[Segment], start: int, *, checksum: Checksum = Checksum.BODY
) -> Iterator[Step]:
    """Every step from `start`, which is where a record begins, to the log's end."""
    end = start
    for index, segment in enumerate(segments):
        following = segments[index + 1 :]
        # a file that is too long does not hide the beginning of the next one
        stop = min([segment.end, *(each.base for each in following[:1])]) - segment.base
        if segment.base + stop <= start:
            continue
        if not files.exists(segment.path):
            continue  # expired since it was listed
        walk = _SegmentWalk(files, segment, stop, checksum)
        end = segment.base + (yield from walk.steps(max(start - segment.base, 0)))
        hole = segment.base + stop - end
        if hole and _has_data(files, following):
            if walk.is_record(end - segment.base):
                # written since: the writer has moved on while this walk stood at its tail
                yield from walk.steps(end - segment.base)
                continue
            yield end, Found.DAMAGED, hole, _NOTHING, "zeros, but the log goes on behind them"
        elif hole:
            break
    yield end, Found.END, 0, _NOTHING, ""


def _has_data(files: FileCache, segments: Sequence[Segment]) -> bool:
    return any(any(files.read(each.path, 0, BLANK.size)) for each in segments)


class _SegmentWalk:
    """The walk through one segment; offsets in here are relative to the segment's first byte."""

    def __init__(self, files: FileCache, segment: Segment, stop: int, checksum: Checksum) -> None:
        self._files = files
        self._segment = segment
        self._stop = stop
        self._checksum = checksum
        self._strictest = Checksum.BODY if checksum is Checksum.NONE else checksum

    def steps(self, at: int) -> Generator[Step, None, int]:
        """Everything from `at`; returns where zeros begin, or the segment's end."""
        while at < self._stop:
            buffer = self._window(at)
            walked = yield from _walk(buffer, self._segment.base + at, self._checksum)
            if walked:
                at += walked  # what the window cut off, if anything, is read again as a whole
                continue
            found, size, reason = self._look(buffer, at)
            if found is Found.RECORD:
                yield self._segment.base + at, found, size, memoryview(buffer)[:size], ""
            elif found is Found.BLANK:
                yield self._segment.base + at, found, size, _NOTHING, ""
            else:
                next_at = self._resync(at + 1)
                if found is Found.END and next_at is None:
                    return at
                if next_at is not None and self.is_record(at, self._strictest):
                    continue  # it was being written when the window was read
                if found is Found.END:
                    reason = "zeros, but records follow"
                stop = self._data_end(at) if next_at is None else next_at
                size = stop - at
                yield self._segment.base + at, Found.DAMAGED, size, _NOTHING, reason
            at += size
        return self._stop

    def is_record(self, at: int, checksum: Checksum = Checksum.BODY) -> bool:
        """Whether a whole record stands there now, checksum included."""
        buffer = self._read(at, SMALLEST_RECORD_BYTES)
        if len(buffer) < SMALLEST_RECORD_BYTES:
            return False
        claimed = self._claimed_size(buffer, at)
        if claimed > len(buffer):
            buffer = self._read(at, claimed)
        return self._look(buffer, at, checksum)[0] is Found.RECORD

    def _look(
        self, buffer: bytes, at: int, checksum: Checksum | None = None
    ) -> tuple[Found, int, str]:
        """`examine`, for a buffer that may end before the segment does."""
        claimed = self._claimed_size(buffer, at)
        if claimed > len(buffer) or len(buffer) < min(BLANK.size, self._stop - at):
            return Found.DAMAGED, 0, "the file has become shorter"
        return examine(
            buffer,
            0,
            # only a blank may be longer than what was read of it; examine looks at its header
            self._stop - at if _magic(buffer) == MAGIC_BLANK else len(buffer),
            position=self._segment.base + at,
            checksum=checksum or self._checksum,
        )

    def _window(self, at: int) -> bytes:
        buffer = self._read(at, WINDOW_BYTES)
        claimed = self._claimed_size(buffer, at)
        return self._read(at, claimed) if claimed > len(buffer) else buffer

    def _claimed_size(self, buffer: bytes, at: int) -> int:
        """The length of the record at `at` by its own word, where a second word supports it."""
        if _magic(buffer) not in (MAGIC_V1, MAGIC_V2) or len(buffer) < SMALLEST_RECORD_BYTES:
            return 0
        named = int.from_bytes(buffer[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8], "big")
        size: int = BLANK.unpack_from(buffer)[0]
        return size if named == self._segment.base + at and size <= self._stop - at else 0

    def _resync(self, at: int) -> int | None:
        """The first place from `at` on where the walk can go on; None when there is none."""
        seen = at
        while (data_at := self._files.next_data(self._segment.path, seen)) is not None:
            if data_at >= self._stop:
                return None
            # a magic may stand at the border, or at the very beginning of the data with its size
            # word's zeros before it
            at = max(at, data_at - BLANK.size)
            # up to a page's end: what is read of a page makes all of it count as data
            border = (max(at, seen) // WINDOW_BYTES + 1) * WINDOW_BYTES
            buffer = self._read(at, border - at)
            if buffer != _ZEROS[: len(buffer)] and any(lead in buffer for lead in _MAGIC_LEADS):
                for hit in _MAGIC.finditer(buffer):
                    if hit.start() >= 4 and self._resumes_at(at + hit.start() - 4):
                        return at + hit.start() - 4
            if at + len(buffer) < border:
                return None
            seen = border
            at = border - BLANK.size
        return None

    def _resumes_at(self, at: int) -> bool:
        size, magic = BLANK.unpack(self._read(at, BLANK.size))
        if magic == MAGIC_BLANK:
            return bool(size == self._stop - at)
        return self.is_record(at)

    def _data_end(self, at: int) -> int:
        """Behind the last byte that is not zero: up to there something was written."""
        stop = self._stop
        while stop > at:
            start = max(at, stop - WINDOW_BYTES)
            data = self._read(start, stop - start).rstrip(b"\0")
            if data:
                return start + len(data)
            stop = start
        return self._stop

    def _read(self, at: int, size: int) -> bytes:
        return self._files.read(self._segment.path, at, min(size, self._stop - at))


def _magic(buffer: bytes) -> int:
    return int.from_bytes(buffer[4:8], "big")


def _walk(buffer: bytes, position: int, checksum: Checksum) -> Generator[Step, None, int]:
    """The whole records at the buffer's beginning; returns how many bytes they take."""
    view, record = memoryview(buffer), Found.RECORD
    starts = record_starts(buffer, position, checksum)
    for at, stop in pairwise(starts):
        yield position + at, record, stop - at, view[at:stop], ""
    return starts[-1]
