"""Which messages are stored in a stretch of the log: how a retry finds its first copy.

A message is identified by everything that its sender decided: topic, queue, born time and host,
properties with their UNIQ_KEY, length, body and the body's checksum. So a key that another sender
has used, or that is part of a body, matches nothing. A message without a UNIQ_KEY is never found:
an equal record may be another message.

    a word for each record:  63 ... 30  of a hash of these | 29 ... 0  offset from its table's base

The index is built from the log when the first retry comes, so ordinary traffic does not have to
maintain it and a crash loses nothing. It grows in steps of bounded length, which many retries
share; others are served between two steps. An offset from outside is never trusted as the start of
a record, because a body may hold anything. This file does not know where the bytes of the log are:
readers are passed in.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET
from penstock.shared.formats.record_outline import sent_part, unique_key_of
from penstock.shared.loops.active import record_starts

# The longest stretch to search.
MAX_BYTES = 1 << 30
# Log bytes in one step; a single record may be longer.
STEP_BYTES = 256 << 10
# Tables are merged up to this many words, which bounds what a step sorts.
_MERGED_WORDS = 1 << 16
# The distance between two known starts of records, and how many are remembered.
_MARK_BYTES, _MARKS = 1 << 20, 4096
_OFFSET_BITS = 30

assert MAX_BYTES <= 1 << _OFFSET_BITS, "a table covers no more than its words can name"


class PiecesOf(Protocol):
    """Pieces of the log of about this many bytes each: see LogReader.pieces."""

    def __call__(
        self, start: int, stop: int, window_bytes: int
    ) -> Iterator[tuple[int, memoryview]]: ...


class _Table(NamedTuple):
    """Sorted words of records in [base, stop)."""

    base: int
    stop: int
    words: array[int]


class RetryIndex:
    """Finds messages in the covered spans of the log.

    `pieces` reads a stretch and `record` the record at a log offset. `segment_bytes` is the length
    of a segment: if anything is at one of its multiples, a record begins there.
    """

    def __init__(
        self, pieces: PiecesOf, record: Callable[[int], memoryview], segment_bytes: int
    ) -> None:
        self._pieces = pieces
        self._record = record
        self._segment_bytes = segment_bytes
        self._tables: list[_Table] = []
        self._spans: list[tuple[int, int]] = []  # covered [start, stop), in order
        self._marks: list[int] = []

    def cover(self, low: int, high: int) -> Iterator[None]:
        """Cover at least [low, high), one step for each item.

        `high` is the log's end. Raises OffsetOutOfRange for bounds in the wrong order or more than
        MAX_BYTES apart, and what `pieces` raises.
        """
        if not 0 <= high - low <= MAX_BYTES or low < 0:
            raise OffsetOutOfRange(
                f"more than {MAX_BYTES} bytes were stored since this message may have been",
                f"log offset {low}, the log ends at {high}",
                "whether it is stored is not known; look for it: penstock query unique-key "
                "TOPIC UNIQ_KEY",
            )
        if self._gap(low, high) is None:
            return
        at = self._known_before(low)
        while (end := self._whole_until(at, high)) <= low and end < high:
            at = end
            yield
        while (gap := self._gap(at, high)) is not None:
            self._note(*gap)
            yield

    def find(self, sent: memoryview) -> tuple[int, int] | None:
        """(queue offset, physical offset) of this message; None if it is not in a covered span.

        `sent` is its record as it came, with the fields that a broker stamps still blank.
        """
        if not unique_key_of(sent):
            return None
        part = sent_part(sent)
        lead = _lead(part)
        for position in self._noted(lead):
            try:
                record = self._record(position)
            except FileNotFoundError:  # it has expired
                continue
            if sent_part(record) == part:
                raw = record[AT_QUEUE_OFFSET : AT_QUEUE_OFFSET + 8]
                return int.from_bytes(raw, "big"), position
        return None

    def _noted(self, lead: int) -> Iterator[int]:
        """Log offsets of the records whose words have these upper bits."""
        for base, _, words in self._tables:
            at = bisect_left(words, lead)
            while at < len(words) and (word := words[at]) - lead < MAX_BYTES:
                yield base + word - lead
                at += 1

    def places(
        self, frame: bytes | memoryview, starts: Sequence[int]
    ) -> Iterator[tuple[int, int] | None]:
        """Where each record of a frame is; None for one that is not in a covered span."""
        view = memoryview(frame)
        return (self.find(view[at:stop]) for at, stop in pairwise(starts))

    def mark(self, position: int) -> None:
        """Remember that a record begins or ends here."""
        at = bisect_left(self._marks, position - _MARK_BYTES)
        if at < len(self._marks) and self._marks[at] < position + _MARK_BYTES:
            return
        insort(self._marks, position)
        if len(self._marks) > _MARKS:
            del self._marks[: _MARKS // 2]

    def forget(self) -> None:
        """Free the memory; the next `cover` builds it again."""
        self._tables.clear()
        self._spans.clear()

    def _known_before(self, position: int) -> int:
        """The last known start of a record up to `position`."""
        base = position - position % self._segment_bytes
        at = bisect_right(self._marks, position)
        return max(base, self._marks[at - 1]) if at else base

    def _whole_until(self, start: int, stop: int) -> int:
        """Where a step from `start` ends, at the end of a record."""
        for position, piece in self._pieces(start, stop, STEP_BYTES):
            self.mark(position + len(piece))
            return position + len(piece)
        return stop

    def _gap(self, low: int, high: int) -> tuple[int, int] | None:
        """The first stretch of [low, high) that is not covered."""
        for start, stop in self._spans:
            if low < start:
                return low, min(start, high)
            low = max(low, stop)
            if low >= high:
                return None
        return (low, high) if low < high else None

    def _note(self, start: int, stop: int) -> None:
        """Cover one step from `start`."""
        for position, piece in self._pieces(start, stop, STEP_BYTES):
            starts = record_starts(piece, position, Checksum.NONE)
            words = [_lead(sent_part(piece[at:end])) + at for at, end in pairwise(starts)]
            stop = position + len(piece)
            self._add(_Table(position, stop, array("Q", sorted(words))))
            break
        self._cover(start, stop)

    def _add(self, made: _Table) -> None:
        while self._tables:
            last = self._tables[-1]
            base, stop = min(made.base, last.base), max(made.stop, last.stop)
            if len(last.words) > min(len(made.words), _MERGED_WORDS) or stop - base > MAX_BYTES:
                break
            words = [word + each.base - base for each in (last, made) for word in each.words]
            made = _Table(base, stop, array("Q", sorted(words)))
            self._tables.pop()
        self._tables.append(made)

    def _cover(self, start: int, stop: int) -> None:
        self._spans = sorted([*self._spans, (start, stop)])
        merged = self._spans[:1]
        for low, high in self._spans[1:]:
            if low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], high)
            else:
                merged.append((low, high))
        self._spans = merged


def _lead(part: bytes) -> int:
    """The upper bits of a message's word."""
    # Python keys its hash at random in each process, so nobody can send messages that collide
    return (hash(part) & 0xFFFFFFFFFFFFFFFF) >> _OFFSET_BITS << _OFFSET_BITS
