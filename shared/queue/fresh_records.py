"""The newest records, for consumers that wait at their queues' ends: read from the log before the
reput has put their entries into the queues. Each actor that answers pulls has its own.

    queues hold      ............|
    here                         |........|
    the log is safe  .....................|  `wrote`, or `flushed` where flushing is sync

So a message that comes alone wakes the writer and the actor that answers the pull, and nobody in
between. That actor dispatches those few records by the loop that the reput uses, and keeps their
entries in memory. A record may be in the pool alone: what is published as written is safe there
from the death of any process, and a start puts it into the log (see LogReader.recent). Nothing here
is stored, so an actor that dies has lost nothing: its successor begins where the queues end.

Entries are given by offset, and only if that very offset is here: nobody is told of a gap in a
queue. If more than `most_bytes` lie between the queues and the log's end, nothing is kept, because
the queues then get much at once, and soon. Nothing is kept either while a deleted topic's queues
are still there: records before the deletion are in no queue any more, and an offset of the old
topic is not one of the new.
"""

from __future__ import annotations

from collections.abc import Set

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.log.found_records import FoundRecords
from penstock.shared.log.reader import LogReader
from penstock.shared.loops.active import QueueNumbers, by_queue, dispatch, log_ranges
from penstock.shared.loops.forms import RANGE
from penstock.shared.memory.positions import Positions

# Entries kept, for all queues together; those that are dropped will be in the queues in a moment.
MOST_ENTRIES = 4096
_NONE: Set[tuple[str, int]] = frozenset()


class FreshRecords:
    """What the log has and the queues do not have yet, a little of it."""

    def __init__(
        self, config: Config, positions: Positions, log: LogReader, most_bytes: int
    ) -> None:
        self._positions, self._log = positions, log
        self._bound = "flushed" if config.sync_flush else "wrote"
        self._most_bytes = most_bytes
        self._numbers = QueueNumbers()
        # (topic, queue id) -> the first offset, and entries from there on
        self._entries: dict[tuple[str, int], tuple[int, bytearray]] = {}
        self._count = 0
        # what was copied out of the log last, and where that begins
        self._newest = 0, b""
        # the log was looked at up to here
        self._end = 0
        # nothing below this log offset is taken: it may have been stored before a topic was deleted
        self._floor = 0
        self._deleted = -1

    def look(self, queued: int) -> Set[tuple[str, int]]:
        """Look at what is new in the log. Returns the queues that have got messages by that.

        `queued` is how far the queues have come.
        """
        bound = self._positions[self._bound]
        if bound == self._end and self._is_valid():
            return _NONE
        start, self._end = max(self._end, queued, self._floor), bound
        if not self._is_valid() or bound - queued > self._most_bytes or self._log.damaged:
            self._forget()
            # `wrote`, read after the deletions: what was stored before them lies below it
            self._floor = self._positions["wrote"]
            return _NONE
        if start >= bound:
            return _NONE
        if start == queued or self._count > MOST_ENTRIES:
            self._forget()
        return self._take(start, bound)

    @property
    def is_behind(self) -> bool:
        """Whether the log has grown since it was looked at last."""
        return self._positions[self._bound] != self._end

    def _is_valid(self) -> bool:
        """Whether no topic was deleted since the entries were taken, and all deletions are done."""
        deleted = self._positions["deleted_topics"]
        return deleted == self._deleted and self._positions["forgotten_topics"] >= deleted

    def _forget(self) -> None:
        if self._count:
            self._entries.clear()
            self._count = 0
            self._numbers = QueueNumbers()
            self._newest = 0, b""
        self._deleted = self._positions["deleted_topics"]

    def _take(self, start: int, bound: int) -> Set[tuple[str, int]]:
        """Take the entries of records in this part of the log, up to a blank."""
        try:
            copy = self._log.recent(start, bound)
            found = dispatch(memoryview(copy), start, self._numbers)
        except (OSError, StoreDamaged):
            # the reput meets the same error, and reports it
            return _NONE
        self._count += found.records
        self._newest = start, copy
        found_in = set[tuple[str, int]]()
        for (topic, queue_id), runs in by_queue(found.rows, self._numbers).items():
            name = topic.decode()
            found_in.add((name, queue_id))
            for first, entries in runs:
                known = self._entries.get((name, queue_id))
                if known is not None and known[0] + len(known[1]) // CQ_ENTRY_BYTES == first:
                    known[1].extend(entries)
                else:
                    self._entries[name, queue_id] = first, entries
        return found_in

    def end(self, topic: str, queue_id: int) -> int:
        """The offset after the last record of a queue that is here; 0 where none is here."""
        first, raw = self._entries.get((topic, queue_id), (0, b""))
        return first + len(raw) // CQ_ENTRY_BYTES if self._is_valid() else 0

    def read(
        self, topic: str, queue_id: int, start: int, max_bytes: int, most: int = MOST_ENTRIES
    ) -> tuple[FoundRecords, int, int] | None:
        """Records of a queue from the offset `start` on, about `max_bytes` of them and no more than
        `most`, but at least one; the offset after them, and the queue's end. None where that offset
        is not here.

        Raises OSError and StoreDamaged as the log does.
        """
        first, raw = self._entries.get((topic, queue_id), (0, b""))
        skipped, count = start - first, len(raw) // CQ_ENTRY_BYTES
        if not 0 <= skipped < count or not self._is_valid():
            return None
        wanted = bytes(memoryview(raw)[skipped * CQ_ENTRY_BYTES :][: most * CQ_ENTRY_BYTES])
        _, ranges, size, taken = log_ranges(wanted, max_bytes, self._log.segment_bytes)
        at, copy = self._newest
        last = RANGE.unpack_from(ranges, len(ranges) - RANGE.size)[1]
        if RANGE.unpack_from(ranges)[0] < at or last > at + len(copy):
            copy = b"".join(self._log.recent(*each) for each in RANGE.iter_unpack(ranges))
            at = RANGE.unpack_from(ranges)[0]
            ranges = RANGE.pack(at, at + size)
        found = FoundRecords(memoryview(copy), at, ranges, size, is_copy=True)
        return found, start + taken, first + count
