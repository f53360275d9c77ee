"""Walk the commit log's files from record to record, past damage, to where the log ends.

    for position, found, size, record, reason in scan(...)
    for run in scan_runs(...)    # the same, but consecutive records come together

RECORD   one whole record; `record` shows its bytes (a view of a window: copy what you keep). Where
         checksums of whole records are compared and the record has none, its body's is compared,
         and the reason says NO_RECORD_CRC
BLANK    filler up to the segment's end
DAMAGED  `size` bytes that are not a record; the walk goes on at the next place where a record names
         its own offset and its checksum matches, or where a blank fits the segment's end exactly
END      once, last: nothing was written from here on

A log that is being written shows, for a moment, half a record, or zeros where a record is about to
stand. So damage is read a second time, after something valid was found after it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Segment
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind, examine
from penstock.shared.formats.record_crc import Checksum, has_prop_crc
from penstock.shared.formats.record_layout import (
    AT_PHYSICAL_OFFSET,
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
)
from penstock.shared.loops.active import record_starts

# Bytes that are read at a time; a longer record is read as a whole.
WINDOW_BYTES = 8 << 20
# After damage the walk takes this many bytes, then each time twice what it got through.
_SHORT_STRIDE = 64 << 10

Step = tuple[int, Kind, int, memoryview, str]


class Run(NamedTuple):
    """A step, or several for consecutive records: `record` then shows all of them, and `starts` has
    where each one begins in it, and where the last one ends."""

    position: int
    found: Kind
    size: int
    record: memoryview
    reason: str
    starts: Sequence[int] = ()


_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
_CLAIM = struct.Struct(">iI20xq")  # totalSize, magic, physicalOffset
_NOTHING = memoryview(b"")
_ZEROS = bytes(64 << 10)

assert _CLAIM.size - 8 == AT_PHYSICAL_OFFSET, "the skipped bytes follow from the layout"
for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
    assert _MAGIC.fullmatch(magic.to_bytes(4, "big")), "the search finds every magic"


def scan(
    files: FileCache, segments: Sequence[Segment], start: int, *, checksum: Checksum = Checksum.BODY
) -> Iterator[Step]:
    """Every step from `start`, where a record begins, to the log's end.

    `segments` are in order, and `checksum` says what a record has to pass to be whole. The store
    may be running: what expires meanwhile is left out. Raises OSError for what cannot be read.
    """
    for position, found, size, record, reason, starts in scan_runs(
        files, segments, start, checksum=checksum
    ):
        if found is not Kind.RECORD:
            yield position, found, size, record, reason
            continue
        for at, stop in pairwise(starts):
            yield position + at, found, stop - at, record[at:stop], reason


def scan_runs(
    files: FileCache,
    segments: Sequence[Segment],
    start: int,
    *,
    checksum: Checksum = Checksum.BODY,
    window_bytes: int | None = None,
) -> Iterator[Run]:
    """The same by runs, for callers that take many records at once. `window_bytes` are read at a
    time, WINDOW_BYTES by default; no run is longer, except one of a single record."""
    end, window_bytes = start, window_bytes or WINDOW_BYTES
    for index, segment in enumerate(segments):
        following = segments[index + 1 :]
        # a file that is too long does not hide the beginning of the next one
        stop = min([segment.end, *(each.base for each in following[:1])]) - segment.base
        if segment.base + stop <= start:
            continue
        if not files.exists(segment.path):
            continue  # expired since it was listed
        walk = _SegmentWalk(files, segment, stop, checksum, window_bytes)
        end = segment.base + (yield from walk.runs(max(start - segment.base, 0)))
        hole = segment.base + stop - end
        # Every full segment ends with a record or a blank, RocketMQ's and Penstock's alike. So
        # zeros are the log's end only where no later file has anything.
        if hole and _goes_on(files, following):
            if walk.is_record(end - segment.base):
                # Written since: the writer has moved on while this walk stood at its tail. A new
                # walk reads the rest, for this one would use the window that it has read already.
                walk = _SegmentWalk(files, segment, stop, checksum, window_bytes)
                end = segment.base + (yield from walk.runs(end - segment.base))
                continue
            reason = "zeros, but the log goes on behind them"
            yield Run(end, Kind.DAMAGED, hole, _NOTHING, reason)
        elif hole:
            break
    yield Run(end, Kind.END, 0, _NOTHING, "")


def _goes_on(files: FileCache, segments: Sequence[Segment]) -> bool:
    """Whether something was written to one of these segments; one that was made ahead is all zeros.

    The first eight bytes tell, as neither a record nor a blank begins with that many zeros. But
    damage that crosses the border may have zeroed them, too: then a record or a blank further on
    tells.
    """
    if any(any(files.read(each.path, 0, BLANK.size)) for each in segments):
        return True
    return any(
        _SegmentWalk(files, each, each.size, Checksum.BODY, WINDOW_BYTES).can_resume()
        for each in segments
    )


class _SegmentWalk:
    """The walk through one segment; offsets in here are relative to the segment's first byte.

    It reads large windows and examines damage within them, so a log that is damaged at every record
    costs no more reads than a sound one.
    """

    def __init__(
        self,
        files: FileCache,
        segment: Segment,
        stop: int,
        checksum: Checksum,
        window_bytes: int,
    ) -> None:
        self._files = files
        self._segment = segment
        self._stop = stop
        self._checksum = checksum
        self._window_bytes = window_bytes
        # the checksum for records that have none for the whole record
        self._without = Checksum.BODY if checksum is Checksum.RECORD else checksum
        # the last window, its start, where its zeros begin; whether a second look found the same
        self._window, self._start, self._written = b"", 0, 0
        self._settled = False

    def runs(self, at: int) -> Generator[Run, None, int]:
        """Everything from `at`; returns where zeros begin, or the segment's end."""
        stride = WINDOW_BYTES
        while at < self._stop:
            self._show(at)
            walked = yield from self._walk(at, stride)
            if walked:
                at += walked  # a record that was cut off by the stride or window comes next
                # a walk that ends early may have looked at more than it took
                stride = min(max(2 * walked, _SHORT_STRIDE), WINDOW_BYTES)
                continue
            # the fast walk stops at whatever looks unusual; here all the rules decide what it is
            found, size, reason = self._look(at)
            if found in (Kind.RECORD, Kind.BLANK):
                shown = self._view(at, size) if found is Kind.RECORD else _NOTHING
                yield Run(self._segment.base + at, found, size, shown, reason, (0, size))
            else:
                next_at = self._resync(at + 1)
                if found is Kind.END and next_at is None:
                    return at
                if next_at is not None and not self._is_still_so(at, next_at):
                    continue  # it was being written when the window was read
                if found is Kind.END:
                    reason = "zeros, but records follow"
                # If the walk can go on nowhere, all that was written is damage, and the zeros after
                # it are the segment's unwritten end.
                stop = self._data_end(at) if next_at is None else next_at
                size = stop - at
                yield Run(self._segment.base + at, Kind.DAMAGED, size, _NOTHING, reason)
                stride = _SHORT_STRIDE  # after one damaged record the next may be damaged, too
            at += size
        return self._stop

    def can_resume(self) -> bool:
        """Whether a walk can go on anywhere in the segment, whatever stands before that place."""
        return self._resync(0) is not None

    def is_record(self, at: int) -> bool:
        """Whether a whole record stands there now, with a body that matches its checksum."""
        buffer = self._read(at, SMALLEST_RECORD_BYTES)
        return self._is_record(buffer, 0, at)

    def _is_record(self, buffer: bytes, index: int, at: int) -> bool:
        """The same, in a buffer that has the byte at `at` at `index`; it may end within the record.

        The body's checksum is compared even where the walk compares none: after damage, a record
        has to prove that it begins there.
        """
        claimed = self._claimed_size(buffer, index, at)
        if not claimed:
            return False
        if claimed > len(buffer) - index:
            buffer, index = self._read(at, claimed), 0
        position = self._segment.base + at
        return examine(buffer, index, len(buffer), position=position)[0] is Kind.RECORD

    def _show(self, at: int) -> None:
        """Make the window begin at or before `at`, and include the whole record there, if any."""
        index = at - self._start
        left = len(self._window) - index
        if index >= 0 and left >= SMALLEST_RECORD_BYTES:
            if self._claimed_size(self._window, index, at) <= left:
                return
        elif index >= 0 and left > 0 and self._start + len(self._window) == self._stop:
            return  # less than a record, but the segment ends here
        window = self._read(at, self._window_bytes)
        claimed = self._claimed_size(window, 0, at)
        if claimed > len(window):
            window = self._read(at, claimed)
        self._window, self._start, self._written = window, at, _written(window)
        self._settled = False

    def _view(self, at: int, size: int) -> memoryview:
        index = at - self._start
        return memoryview(self._window)[index : index + size]

    def _walk(self, at: int, size: int) -> Generator[Run, None, int]:
        """The whole records from `at` on, in this many bytes; returns how many bytes they take.

        In a log for which checksums of whole records were switched on half way, records with one
        and records without may be mixed. Each call takes a run of one kind.
        """
        view, position, reason = self._view(at, size), self._segment.base + at, ""
        starts = record_starts(view, position, self._checksum)
        if not starts[-1] and self._checksum is Checksum.RECORD:
            starts, reason = record_starts(view, position, Checksum.BODY), NO_RECORD_CRC
            for number, stop in enumerate(starts[1:]):
                # a record whose last byte is zero is torn
                if has_prop_crc(view, stop) or not view[stop - 1]:
                    del starts[number + 1 :]
                    break
        walked = starts[-1]
        if walked:
            yield Run(position, Kind.RECORD, walked, view[:walked], reason, starts)
        return walked

    def _look(self, at: int) -> tuple[Kind, int, str]:
        """`examine`, for a window that may end before the segment does."""
        index, window = at - self._start, self._window
        left = len(window) - index
        claimed = self._claimed_size(window, index, at)
        if claimed > left or left < min(BLANK.size, self._stop - at):
            # `_show` asked for all that the record claims: the file has shrunk since it was listed
            return Kind.DAMAGED, 0, "the file has become shorter"
        # A blank may extend past what was read. `examine` looks only at its first words, and so it
        # does at whatever these show not to be a record: what it says depends on nothing further.
        alone = not claimed and left >= SMALLEST_RECORD_BYTES
        is_short = alone or _magic(window, index) == MAGIC_BLANK
        end = index + self._stop - at if is_short else len(window)
        position = self._segment.base + at
        looked = examine(window, index, end, position=position, checksum=self._checksum)
        if looked[2] != NO_RECORD_CRC:
            return looked
        found, size, reason = examine(window, index, end, position=position, checksum=self._without)
        return found, size, reason or NO_RECORD_CRC

    def _claimed_size(self, buffer: bytes, index: int, at: int) -> int:
        """The length that the record at `at` claims; 0 if its other words do not support that.

        Any bytes can claim a length, and a read of it may be long. But a magic and the record's own
        offset together do not occur by chance.
        """
        if len(buffer) - index < SMALLEST_RECORD_BYTES:
            return 0
        size, magic, named = _CLAIM.unpack_from(buffer, index)
        if magic != MAGIC_V1 and magic != MAGIC_V2 or named != self._segment.base + at:
            return 0
        return size if size <= self._stop - at else 0

    def _is_still_so(self, at: int, next_at: int) -> bool:
        """Whether it is lasting damage: a second look, now that something whole was found after it.

        If a second look finds the window unchanged, that holds for all the damage in the window.
        """
        old, start = self._window, self._start
        inside = next_at < start + len(old)
        if inside and self._settled:
            return True
        self._window = self._read(start, len(old))
        self._written = _written(self._window)
        self._settled = inside and self._window == old
        # If the window has changed the writer is at work, but perhaps elsewhere. What lies past the
        # window is not compared.
        damaged = slice(at - start, next_at - start)
        return self._settled or self._window[damaged] == old[damaged]

    def _resync(self, at: int) -> int | None:
        """The first place from `at` on where the walk can go on; None when there is none."""
        if (found := self._search(self._window, self._start, at, self._written)) is not None:
            return found
        # a magic may straddle the window's border
        seen = self._start + len(self._window)
        at = max(at, seen - BLANK.size)
        while (data_at := self._files.next_data(self._segment.path, seen)) is not None:
            if data_at >= self._stop:
                return None
            # a magic may straddle the border, or stand at the very beginning of the data, where the
            # zeros of its size word come before it
            at = max(at, data_at - BLANK.size)
            # up to a page's end: reading part of a page makes all of it count as data
            border = (max(at, seen) // WINDOW_BYTES + 1) * WINDOW_BYTES
            buffer = self._read(at, border - at)
            if (found := self._search(buffer, at, at, _written(buffer))) is not None:
                return found
            if at + len(buffer) < border:
                return None
            seen = border
            at = border - BLANK.size
        return None

    def _search(self, buffer: bytes, start: int, at: int, end: int) -> int | None:
        """The first such place at or after `at` in a buffer, which begins at `start` and has only
        zeros from `end` on."""
        # a record and a blank begin four bytes before their magic
        for hit in _MAGIC.finditer(buffer, max(at - start, 0) + 4, end):
            index = hit.start() - 4
            if self._resumes(buffer, index, start + index):
                return start + index
        return None

    def _resumes(self, buffer: bytes, index: int, at: int) -> bool:
        """Whether the walk can go on there: at a whole record, or at a blank.

        A blank has neither a checksum nor an offset. Only the fact that it ends exactly where the
        segment does tells it from bytes of a body.
        """
        size, magic = BLANK.unpack_from(buffer, index)
        if magic == MAGIC_BLANK:
            return bool(size == self._stop - at)
        if len(buffer) - index < SMALLEST_RECORD_BYTES:
            return self.is_record(at)
        return self._is_record(buffer, index, at)

    def _data_end(self, at: int) -> int:
        """Past the last byte that is not zero: something was written up to there."""
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


def _written(buffer: bytes) -> int:
    """Where the zeros begin that fill the buffer's end, or less than 64 KiB after that.

    It saves the search from the unwritten part of a window; for that, 64 KiB are exact enough.
    """
    end = len(buffer)
    while end and buffer[max(end - len(_ZEROS), 0) : end] == _ZEROS[:end]:
        end = max(end - len(_ZEROS), 0)
    return end


def _magic(buffer: bytes, index: int) -> int:
    return int.from_bytes(buffer[index + 4 : index + 8], "big")
