"""Walk the commit log's files from record to record, over damage, to where the log ends.

    for position, found, size, record, reason in scan(...)
    for run in scan_runs(...)    # the same, with records that follow each other in one

RECORD   one whole record; `record` shows its bytes (a view of a window: copy what you keep). Where
         checksums of whole records are compared and it has none, its body's is, and the reason says
         NO_RECORD_CRC
BLANK    filler up to the segment's end
DAMAGED  `size` bytes that are no record; the walk goes on at the next place where a record names
         its own offset and its checksum holds, or where a blank fits the segment's end exactly
END      once, last: nothing was written from here on

A log that is being written shows a half record, or zeros where a record is about to stand, for a
moment. So damage is looked at twice: again after something valid was found after it.
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

# Bytes that are read at a time; a record that is longer is read as a whole.
WINDOW_BYTES = 8 << 20
# After damage this many bytes are walked at a time, then twice what was taken.
_SHORT_STRIDE = 64 << 10

Step = tuple[int, Kind, int, memoryview, str]


class Run(NamedTuple):
    """A step; or some, of records that follow each other: `record` then shows all of them, and
    `starts` has where in it each one begins, and where the last one ends."""

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
    """Every step from `start`, which is where a record begins, to the log's end.

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
    """The same by runs, for whoever takes many records at once. `window_bytes` are read at a time,
    WINDOW_BYTES by default; no run is longer, but one of a single record."""
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
        # Every full segment ends with a record or a blank, RocketMQ's and Penstock's. So zeros are
        # the log's end only where no later file has anything.
        if hole and _goes_on(files, following):
            if walk.is_record(end - segment.base):
                # Written since: the writer has moved on while this walk stood at its tail. Another
                # one reads it, for this one would look again at what it has read.
                walk = _SegmentWalk(files, segment, stop, checksum, window_bytes)
                end = segment.base + (yield from walk.runs(end - segment.base))
                continue
            reason = "zeros, but the log goes on behind them"
            yield Run(end, Kind.DAMAGED, hole, _NOTHING, reason)
        elif hole:
            break
    yield Run(end, Kind.END, 0, _NOTHING, "")


def _goes_on(files: FileCache, segments: Sequence[Segment]) -> bool:
    """Whether something was written to one of these; one that was only made ahead is all zeros.

    The first eight bytes tell, as neither a record nor a blank begins with that many zeros. But
    they may be lost too, where one piece of damage reaches over the border: then a record or a
    blank further on tells.
    """
    if any(any(files.read(each.path, 0, BLANK.size)) for each in segments):
        return True
    return any(
        _SegmentWalk(files, each, each.size, Checksum.BODY, WINDOW_BYTES).can_resume()
        for each in segments
    )


class _SegmentWalk:
    """The walk through one segment; offsets in here are relative to the segment's first byte.

    It reads large windows and looks at damage in them, so a log that is damaged at every record
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
        # a record without a checksum of its own is whole if its body is
        self._without = Checksum.BODY if checksum is Checksum.RECORD else checksum
        # what was read last, and where; whether a second look has found the same
        self._window, self._start, self._written = b"", 0, 0
        self._settled = False

    def runs(self, at: int) -> Generator[Run, None, int]:
        """Everything from `at`; returns where zeros begin, or the segment's end."""
        stride = WINDOW_BYTES
        while at < self._stop:
            self._show(at)
            walked = yield from self._walk(at, stride)
            if walked:
                at += walked  # what the stride or the window cut off is looked at again as a whole
                # a walk that ends early may have looked at more than it took
                stride = min(max(2 * walked, _SHORT_STRIDE), WINDOW_BYTES)
                continue
            # the fast walk stops at whatever looks unusual: all the rules decide what that is
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
                # With no place to go on, all that was written is damage, and the zeros after it
                # are the segment's unwritten end.
                stop = self._data_end(at) if next_at is None else next_at
                size = stop - at
                yield Run(self._segment.base + at, Kind.DAMAGED, size, _NOTHING, reason)
                stride = _SHORT_STRIDE  # where one record is damaged, the next one may be
            at += size
        return self._stop

    def can_resume(self) -> bool:
        """Whether a walk can go on anywhere in the segment, whatever stands before that."""
        return self._resync(0) is not None

    def is_record(self, at: int) -> bool:
        """Whether a whole record stands there now, its body's checksum included."""
        buffer = self._read(at, SMALLEST_RECORD_BYTES)
        return self._is_record(buffer, 0, at)

    def _is_record(self, buffer: bytes, index: int, at: int) -> bool:
        """The same of what was read: `buffer` has the byte at `at` at `index`, and may end soon.

        The body's checksum is compared even where the walk compares none: after damage a place has
        to prove that a record begins there.
        """
        claimed = self._claimed_size(buffer, index, at)
        if not claimed:
            return False
        if claimed > len(buffer) - index:
            buffer, index = self._read(at, claimed), 0
        position = self._segment.base + at
        return examine(buffer, index, len(buffer), position=position)[0] is Kind.RECORD

    def _show(self, at: int) -> None:
        """Have the window begin at or before `at`, and end after the record there, if one is."""
        index = at - self._start
        left = len(self._window) - index
        if index >= 0 and left >= SMALLEST_RECORD_BYTES:
            if self._claimed_size(self._window, index, at) <= left:
                return
        elif index >= 0 and left > 0 and self._start + len(self._window) == self._stop:
            return  # less than a record, but nothing more is to come: the segment ends here
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
        """The whole records from `at` on, in this many bytes; returns how many they take.

        Of a log in which checksums of whole records were switched on half way, records with one and
        without may follow each other. Each call takes a run of one sort.
        """
        view, position, reason = self._view(at, size), self._segment.base + at, ""
        starts = record_starts(view, position, self._checksum)
        if not starts[-1] and self._checksum is Checksum.RECORD:
            starts, reason = record_starts(view, position, Checksum.BODY), NO_RECORD_CRC
            for number, stop in enumerate(starts[1:]):
                # one that ends in zeros is torn
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
            # `_show` asked for all that the record claims: the file is shorter than it was listed
            return Kind.DAMAGED, 0, "the file has become shorter"
        # Of a blank, and of what is no record by its first words, examine looks at these alone: it
        # may be longer than what was read, and what is said of it does not depend on that.
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
        """The length of the record at `at` by its own word, where a second word supports it.

        0 otherwise. Any bytes can claim a length, and a read of it may be long. A magic and the
        record's own offset together do not stand there by chance.
        """
        if len(buffer) - index < SMALLEST_RECORD_BYTES:
            return 0
        size, magic, named = _CLAIM.unpack_from(buffer, index)
        if magic != MAGIC_V1 and magic != MAGIC_V2 or named != self._segment.base + at:
            return 0
        return size if size <= self._stop - at else 0

    def _is_still_so(self, at: int, next_at: int) -> bool:
        """Whether it is damage for good: a second look, now that something whole is seen after it.

        One look at a window that finds it unchanged is one at all the damage in it.
        """
        old, start = self._window, self._start
        inside = next_at < start + len(old)
        if inside and self._settled:
            return True
        self._window = self._read(start, len(old))
        self._written = _written(self._window)
        self._settled = inside and self._window == old
        # Where the window has changed the writer is at work, but perhaps not at this damage. What
        # lies past the window is not compared.
        damaged = slice(at - start, next_at - start)
        return self._settled or self._window[damaged] == old[damaged]

    def _resync(self, at: int) -> int | None:
        """The first place from `at` on where the walk can go on; None when there is none."""
        if (found := self._search(self._window, self._start, at, self._written)) is not None:
            return found
        # a magic may stand at the window's border
        seen = self._start + len(self._window)
        at = max(at, seen - BLANK.size)
        while (data_at := self._files.next_data(self._segment.path, seen)) is not None:
            if data_at >= self._stop:
                return None
            # a magic may stand at the border, or at the very beginning of the data with its size
            # word's zeros before it
            at = max(at, data_at - BLANK.size)
            # up to a page's end: what is read of a page makes all of it count as data
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
        """Such a place in what was read from `start` on, at `at` or after; zeros from `end` on."""
        # a record and a blank begin four bytes before their magic
        for hit in _MAGIC.finditer(buffer, max(at - start, 0) + 4, end):
            index = hit.start() - 4
            if self._resumes(buffer, index, start + index):
                return start + index
        return None

    def _resumes(self, buffer: bytes, index: int, at: int) -> bool:
        """Whether the walk can go on there: at a whole record, or at a blank.

        A blank has neither a checksum nor an offset. That it ends exactly where the segment does is
        all that tells it from bytes of a body.
        """
        size, magic = BLANK.unpack_from(buffer, index)
        if magic == MAGIC_BLANK:
            return bool(size == self._stop - at)
        if len(buffer) - index < SMALLEST_RECORD_BYTES:
            return self.is_record(at)
        return self._is_record(buffer, index, at)

    def _data_end(self, at: int) -> int:
        """After the last byte that is not zero: up to there something was written."""
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
    """Where zeros begin that go on to the buffer's end, or a little after that.

    It saves the search the unwritten part of a window, for which 64 KiB are exact enough.
    """
    end = len(buffer)
    while end and buffer[max(end - len(_ZEROS), 0) : end] == _ZEROS[:end]:
        end = max(end - len(_ZEROS), 0)
    return end


def _magic(buffer: bytes, index: int) -> int:
    return int.from_bytes(buffer[index + 4 : index + 8], "big")
