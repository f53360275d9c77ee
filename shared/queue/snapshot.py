"""One consume queue's files, read-only: its first and last offset, and its entries as an array.

Entry k stands at byte 20 * k of the queue. The last file is longer than what was written to it, and
the first may begin with blanks or with entries of log segments that are gone. Both ends are found
by bisection, because a queue may have hundreds of millions of entries. Of the log, only its start
is known here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Problem, Segment, list_segments, shown
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.next_steps import verify

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CHUNK_BYTES = 1 << 20
# Entries that are read at once: those of a page.
_BLOCK = 4096 // CQ_ENTRY_BYTES
# This many entries before a queue's end are compared with each other.
_LOOKED_AT = 16


class QueueFiles:
    """The queue as it was when it was listed; list the store's queues again to see it grow.

    `segments` are its files in order; `problems` says what is wrong with them, and no method here
    looks at it. The ends are found once and kept. Every method that reads an entry raises
    StoreDamaged if no file has it, or if the file has become shorter.
    """

    def __init__(
        self,
        files: FileCache,
        directory: Path,
        topic: str,
        queue_id: int,
        log_start: int,
        segment_bytes: int = 0,  # the size of its files when they were made; 0: nobody knows
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.segments: list[Segment]
        self.problems: list[Problem]
        self.segments, self.problems = list_segments(
            directory, "queue", multiple_of=CQ_ENTRY_BYTES, size=segment_bytes
        )
        self._files = files
        self._log_start = log_start
        self._bases = [segment.base for segment in self.segments]
        self._ends_before: dict[int, int] = {}
        self._found: dict[int, tuple[int, int]] = {}

    @property
    def first_slot(self) -> int:
        """The queue offset of the first file's first entry, blank or not."""
        return self.segments[0].base // CQ_ENTRY_BYTES if self.segments else 0

    @cached_property
    def min_offset(self) -> int:
        """The first offset whose entry is no blank and whose record the log still has; the max
        offset where there is none."""
        # Blanks and entries of expired records come first. So one look at a file's last entry tells
        # whether any of the file can be read, and bisection finds the first that can.
        for first, last in self.spans(self.first_slot, self.max_offset):
            if self._is_readable(last - 1):
                return first + bisect_left(range(first, last), True, key=self._is_readable)
        return self.max_offset

    @cached_property
    def max_offset(self) -> int:
        """One more than the last entry's offset: the offset of the queue's next message.

        Files are searched from the last one backwards. One without entries, on which RocketMQ would
        not start, is passed over.
        """
        for segment in reversed(self.segments):
            first = segment.base // CQ_ENTRY_BYTES
            count, _ = self._written(segment)
            # bisection takes entries for an unbroken row, so bytes after their end may mislead it
            if count and not self._ends_well(segment, count):
                count = self._first_unwritten(segment)
            if count:
                return first + count
        return self.first_slot

    def _ends_well(self, segment: Segment, count: int) -> bool:
        """Whether the last of these entries follow each other, and are not something else.

        A later entry names a later record of the log, so it begins where the one before it ends or
        after that. A blank names none and is passed over.
        """
        start = max(0, count - _LOOKED_AT)
        size = (count - start) * CQ_ENTRY_BYTES
        found = [
            (offset, size)
            for offset, size, _ in ENTRY.iter_unpack(
                self._read(segment, start * CQ_ENTRY_BYTES, size)
            )
            if size != BLANK_SIZE
        ]
        grows = all(after[0] >= sum(before) for before, after in pairwise(found))
        return grows and all(size > 0 for _, size in found)

    def _first_unwritten(self, segment: Segment) -> int:
        """Where RocketMQ ends such a segment: at the first place without an entry.

        Reads the whole file, and is only for a file in which bisection was misled.
        """
        count = segment.size // CQ_ENTRY_BYTES
        found = ENTRY.iter_unpack(self._read(segment, 0, count * CQ_ENTRY_BYTES))
        none = (k for k, (offset, size, _) in enumerate(found) if offset < 0 or size <= 0)
        return next(none, count)

    @cached_property
    def dispatched_to(self) -> int:
        """The log offset past the newest record that an entry names; 0 where none does."""
        if self.max_offset == self.min_offset:
            return 0
        offset, size, _ = self._entry(self.max_offset - 1)
        return offset + size

    def end_before(self, position: int) -> int:
        """One more than the offset of the last entry that names a record before this log offset,
        0 where no entry does. What comes after it is not looked at.

        Bisection finds it, because entries are in log order. Bytes that are no entry may mislead
        it, which `breaks_at` notices. The result is kept: a start asks several times of each queue.
        """
        if position not in self._ends_before:
            self._ends_before[position] = self._find_end_before(position)
        return self._ends_before[position]

    def _find_end_before(self, position: int) -> int:
        for segment in reversed(self.segments):
            kept, greatest = self._written(segment)
            # If all entries that bisection met are before it, another one would go the same way.
            if greatest >= position:
                # a blank is before any log offset but 0, so it stays
                kept = self._count(
                    segment, lambda offset, size, _: 0 <= offset < position and size > 0
                )
            if kept:
                return segment.base // CQ_ENTRY_BYTES + kept
        return 0

    def _written(self, segment: Segment) -> tuple[int, int]:
        """How many entries a file has, and the greatest log offset of those that were looked at to
        find that out."""
        if segment.base not in self._found:
            greatest = 0

            def passes(offset: int, size: int, code: int) -> bool:
                nonlocal greatest
                is_written = _is_written(offset, size, code)
                greatest = max(greatest, offset) if is_written else greatest
                return is_written

            self._found[segment.base] = self._count(segment, passes), greatest
        return self._found[segment.base]

    def _count(self, segment: Segment, passes: Callable[[int, int, int], bool]) -> int:
        """How many entries of a file come before the first that does not pass, by bisection.

        First over blocks, then inside one block, which is read as a whole: a start asks each of
        many queues, and the call of a read costs more than the bytes that it reads.
        """
        entries = segment.size // CQ_ENTRY_BYTES
        firsts = range(0, entries, _BLOCK)

        def fails(raw: bytes, index: int) -> bool:
            return not passes(*ENTRY.unpack_from(raw, index * CQ_ENTRY_BYTES))

        def begins_after(index: int) -> bool:
            return fails(self._read(segment, index * CQ_ENTRY_BYTES, CQ_ENTRY_BYTES), 0)

        found = bisect_left(firsts[1:], True, key=begins_after)
        start = firsts[found] if entries else 0
        size = min(_BLOCK, entries - start)
        raw = self._read(segment, start * CQ_ENTRY_BYTES, size * CQ_ENTRY_BYTES)
        return start + bisect_left(range(size), True, key=partial(fails, raw))

    def is_used(self, slot: int) -> bool:
        """Whether a file has the slot, and a byte of it is not zero."""
        return any(self.spans(slot, slot + 1)) and self._entry(slot) != (0, 0, 0)

    def breaks_at(self, slot: int, position: int) -> bool:
        """Whether the entry of `slot` names no record at or past `position`, or the next entry
        names no later record."""
        offset, size, _ = self._entry(slot)
        later = self.log_offset(slot + 1) if slot + 1 < self.max_offset else offset + size
        return size <= 0 or not position <= offset < later

    def edges(self, stop: int) -> Iterator[tuple[int, int, int]]:
        """(slot, log offset, size) of the first and the last entry of each file, below `stop`."""
        for first, end in self.spans(self.first_slot, stop):
            for slot in (first, end - 1):
                offset, size, _ = self._entry(slot)
                yield slot, offset, size

    def log_offset(self, slot: int) -> int:
        """The log offset that a slot's entry names. Raises StoreDamaged where no file has it."""
        return self._entry(slot)[0]

    def entries(self, start: int, stop: int) -> npt.NDArray[np.void]:
        """The entries [start, stop) as a structured array, blanks included.

        The dtype is ENTRY_DTYPE, in one dimension. Raises OffsetOutOfRange for offsets that the
        queue does not hold, StoreDamaged if a file between others is missing.
        """
        # numpy takes longer to import than the rest of a start, which does without it
        from penstock.shared.queue.entry_arrays import entries

        # joined as bytes: numpy would convert what it joins to this machine's byte order
        return entries(self.raw_entries(start, stop))

    def raw_entries(self, start: int, stop: int) -> bytes:
        """The same, as the bytes of the files."""
        return b"".join(self._pieces(start, stop))

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of these entries, one file after the other."""
        if not self.first_slot <= start <= stop <= self.max_offset:
            raise OffsetOutOfRange(
                f"queue {self.topic}/{self.queue_id} does not hold these offsets",
                f"[{start}, {stop})",
                f"it holds [{self.first_slot}, {self.max_offset})",
            )
        while start < stop:
            segment = self._segment_of(start)
            upto = min(stop, segment.end // CQ_ENTRY_BYTES)
            at, size = start * CQ_ENTRY_BYTES - segment.base, (upto - start) * CQ_ENTRY_BYTES
            yield self._read(segment, at, size)
            start = upto

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that the files hold, one for each file.

        If a file between others is missing, its offsets are left out without an error, so that a
        checker can go on.
        """
        for segment in self.segments:
            low = max(start, segment.base // CQ_ENTRY_BYTES)
            high = min(stop, segment.end // CQ_ENTRY_BYTES)
            if low < high:
                yield low, high

    def place(self, slot: int) -> tuple[str, int]:
        """The file that holds a slot, and the byte offset in it, for error messages.

        Raises nothing: for a slot that no file holds, it names the nearest file before it, or the
        first one.
        """
        if not self.segments:
            return shown(self.directory), 0
        index = max(bisect_right(self._bases, slot * CQ_ENTRY_BYTES) - 1, 0)
        segment = self.segments[index]
        return shown(segment.path), slot * CQ_ENTRY_BYTES - segment.base

    def interruption(self) -> tuple[int, int] | None:
        """(offset without an entry, offset of something after it): a hole in the queue.

        None where there is no hole. The files are listed again first: a running store appends, and
        by an older listing new entries would seem to stand after a hole.
        """
        now = QueueFiles(self._files, self.directory, self.topic, self.queue_id, self._log_start)
        after = now._written_behind(now.max_offset)
        if after is None:
            return None
        slot = now.max_offset
        if any(now.spans(slot, slot + 1)) and _is_written(*now._entry(slot)):
            return None  # no hole: the running store has appended since
        return slot, after

    def _written_behind(self, slot: int) -> int | None:
        """The first slot from this one on that has a byte other than zero; None if all are zero.

        Holes of the files are skipped without being read. Where the file system says that there is
        data there may be zeros, too, so that only says where to look.
        """
        for segment in self.segments:
            at = max(slot * CQ_ENTRY_BYTES - segment.base, 0)
            while (
                at <= segment.size - CQ_ENTRY_BYTES
                and (data := self._files.next_data(segment.path, at)) is not None
            ):
                raw = self._files.read(segment.path, data, _CHUNK_BYTES)
                zeros = len(raw) - len(raw.lstrip(b"\0"))
                if zeros < len(raw):
                    return (segment.base + data + zeros) // CQ_ENTRY_BYTES
                at = data + max(len(raw), 1)
        return None

    def _is_readable(self, slot: int) -> bool:
        """Whether an entry is no blank, and is of a record that the log still has.

        A blank has offset 0, which tells nothing while the log still begins there: its size tells.
        """
        offset, size, _ = self._entry(slot)
        return size != BLANK_SIZE and offset >= self._log_start

    def _entry(self, slot: int) -> tuple[int, int, int]:
        segment = self._segment_of(slot)
        raw = self._read(segment, slot * CQ_ENTRY_BYTES - segment.base, CQ_ENTRY_BYTES)
        offset, size, code = ENTRY.unpack(raw)
        return offset, size, code

    def _segment_of(self, slot: int) -> Segment:
        at = slot * CQ_ENTRY_BYTES
        # for a slot before the first file, index -1 is the last file, which does not hold it either
        segment = self.segments[bisect_right(self._bases, at) - 1]
        if not segment.base <= at <= segment.end - CQ_ENTRY_BYTES:
            raise StoreDamaged(
                "a file of the queue is missing",
                f"{self.directory} has none for queue offset {slot}",
                verify(self.directory),
            )
        return segment

    def _read(self, segment: Segment, at: int, size: int) -> bytes:
        raw = self._files.read(segment.path, at, size)
        if len(raw) != size:
            raise StoreDamaged("a segment has become shorter", segment.path, verify(segment.path))
        return raw


def _is_written(offset: int, size: int, _: int) -> bool:
    """RocketMQ's test for an entry that counts. Zeros fail it by their size; blanks pass."""
    return offset >= 0 and size > 0
