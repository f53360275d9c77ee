"""Reads messages by queue offset: from consume queue entries to ranges of the log to bytes.

It is read-only and has no state that matters: the queue table says what a queue holds. Most actors
read queues, but few need arrays. numpy is imported only where pulls are held, so that a start need
not wait for it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Set

from penstock.shared.config import Config
from penstock.shared.errors import RESOURCE_EXHAUSTED, StoreDamaged
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY, all_lead_somewhere
from penstock.shared.formats.record_layout import (
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_OFFSET,
    store_timestamp_ms,
)
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths
from penstock.shared.log.found_records import FoundRecords, piece_of
from penstock.shared.log.reader import LogReader
from penstock.shared.loops.active import log_ranges
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.next_steps import rebuild, verify
from penstock.shared.queue.cursor_snapshot import CursorSnapshot
from penstock.shared.queue.open_files import ConsumeQueueFiles
from penstock.shared.queue.window import Window, have_one_place

# One look takes this many entries at most; RocketMQ's limit is 800 for the same reason.
ENTRIES_AT_ONCE = 4096
# One pull gets this many bytes at most, unless its first message is larger.
MAX_PULL_BYTES = 8 << 20


_NOTHING = memoryview(b"")
_UNKNOWN = -1


class QueueDeleted(FileNotFoundError):
    """The queue was deleted after it was looked up: look it up again."""


class QueueReader:
    """All queues of a running store, for one thread.

    A slot is a queue's place in the queue table. What a queue holds is looked up there at each
    call: between two calls it may grow, and its min offset may pass where a consumer stands.
    """

    def __init__(self, config: Config, run: Run, positions: Positions) -> None:
        self._positions = positions
        self.log = self._log = LogReader(config, run, positions)
        self._files = ConsumeQueueFiles(StorePaths(config.store), config)
        self._table = QueueTable(run.queues)
        # the current max offset of each slot: a view of the shared memory
        self._ends = self._table.max_offsets()
        self._keys: dict[int, QueueKey] = {}
        self._topics: dict[str, dict[int, int]] = {}
        self._seen = self._deleted = 0
        # topic -> how many of its queues are read, where `limit` has set that
        self._limits: Mapping[str, int] = {}

    def queues(self, topic: str) -> dict[int, int]:
        """Queue id -> slot of the queues of a topic that have had a message.

        Only slots that were not counted at the last look are read: one that is counted never
        changes its queue, except that it may be deleted.
        """
        # in this order: a queue is deleted before another one of its name is counted
        count = self._positions["queue_count"]
        if self._positions["deleted_queues"] != self._deleted:
            self._begin_again()
        for slot in range(self._seen, count):
            key = self._key(slot)
            is_read = key.queue_id < self._limits.get(key.topic, 1 << 31)
            if is_read and not self._table.is_deleted(slot):
                self._topics.setdefault(key.topic, {})[key.queue_id] = slot
        self._seen = count
        return self._topics.get(topic, {})

    def _key(self, slot: int) -> QueueKey:
        """The queue of a slot that is counted: such a slot never changes its queue."""
        found = self._keys.get(slot)
        if found is None:
            found = self._keys[slot] = self._table.key(slot)
        return found

    def limit(self, limits: Mapping[str, int]) -> None:
        """Read no more than this many queues of these topics from now on."""
        before, self._limits = self._limits, limits
        if any(topic in before and before[topic] != limits[topic] for topic in limits):
            self._begin_again()

    def _begin_again(self) -> None:
        self._deleted = self._positions["deleted_queues"]
        self._topics.clear()
        self._seen = 0

    @property
    def queued(self) -> int:
        """The log offset up to which all queues have their entries."""
        return self._positions["queued"]

    @property
    def topics(self) -> Set[str]:
        """The topics that had had a message at the last look."""
        return self._topics.keys()

    @property
    def message_count(self) -> int:
        """How many messages all queues have had together."""
        return sum(self._ends[: self._positions["queue_count"]])

    def standing(self, topic: str, cursors: Mapping[int, int]) -> CursorSnapshot | None:
        """What to compare when the queues have moved; None where a comparison would not tell.

        The queues are those of the last look, which found nothing to answer.
        """
        # not queues(): a queue that the reput has counted since the last look must still be noticed
        queues = self._topics.get(topic, {})
        # Whether a cursor stands past the end of a queue that is not there depends on `queued`, and
        # on no queue's end.
        if any(offset and queue_id not in queues for queue_id, offset in cursors.items()):
            return None
        at = {queues[each]: offset for each, offset in cursors.items() if each in queues}
        return CursorSnapshot(topic, len(queues), self._deleted, at)

    def is_at_ends(self, standing: CursorSnapshot | None, or_past: bool = False) -> bool:
        """Whether all cursors stand at the ends of their queues, and there are no new queues.

        With `or_past` they may stand past the ends, where the queues have yet to get.
        """
        if (
            standing is None
            or len(self.queues(standing.topic)) != standing.queues
            or self._deleted != standing.deleted
        ):
            return False
        import numpy as np

        slots, offsets = standing.arrays
        ends = np.asarray(self._ends)[slots]
        return bool((ends <= offsets if or_past else ends == offsets).all())

    def range(self, slot: int) -> tuple[int, int]:
        """(min offset, max offset) of a queue."""
        return self._table.min_offset(slot), self._table.max_offset(slot)

    def read(
        self, slot: int, start: int, max_bytes: int, most: int = ENTRIES_AT_ONCE
    ) -> tuple[FoundRecords, int]:
        """Whole records from `start` on, and the next offset.

        They are about `max_bytes` but at least one record, and no more than `most`. All are in one
        segment, and none comes after a lost one. If the first is lost, nothing is found, and
        `whole_from` says where to go on. Nothing is copied. Raises StoreDamaged if the first entry
        leads nowhere, and FileNotFoundError if a file of the queue or of the log is gone.
        """
        stop = min(self._table.max_offset(slot), start + min(most, ENTRIES_AT_ONCE))
        window = self.window(slot, start, stop)
        raw = self._before_damage(window.raw)
        found, taken = self.found_by(raw, max_bytes)
        count = self.before_lost(start, window, taken)
        if count != taken:
            found, count = self.found_by(raw[: count * CQ_ENTRY_BYTES], max_bytes)
        return found, start + count

    def found_by(self, raw: bytes, max_bytes: int) -> tuple[FoundRecords, int]:
        """What the first of these entries lead to, and how many entries these are: see
        `log_ranges`.

        Raises FileNotFoundError if they lead to no segment of the log.
        """
        base, ranges, size, taken = log_ranges(raw, max_bytes, self._log.segment_bytes)
        # blanks alone lead to no segment
        segment = self._log.segment(base, size) if ranges else _NOTHING
        return FoundRecords(segment, base, ranges, size), taken

    def base_of(self, position: int) -> int:
        """Where the segment that has this log offset begins."""
        return position - position % self._log.segment_bytes

    def _before_damage(self, raw: bytes) -> bytes:
        """The entries before the first that is lost with a damaged part of the log.

        The next pull begins at the lost one, and its consumer is told that the queue goes on later.
        """
        if self._log.damaged:
            for number, (offset, size, _) in enumerate(ENTRY.iter_unpack(raw)):
                if size != BLANK_SIZE and self.is_damaged(offset, size):
                    return raw[: number * CQ_ENTRY_BYTES]
        return raw

    def before_lost(self, start: int, window: Window, count: int) -> int:
        """How many of the first `count` entries, from `start` on, come before one of a lost message
        of which no damage is known."""
        return window.before_lost(count, lambda at: self._named(at) in (start, _UNKNOWN))

    def _named(self, position: int) -> int:
        """The queue offset that the record at a log offset says it has."""
        try:
            head = self._log.view(position, position + AT_PHYSICAL_OFFSET)
        except (OSError, StoreDamaged):
            return _UNKNOWN  # whoever reads it is told why
        is_there = len(head) == AT_PHYSICAL_OFFSET
        return int.from_bytes(head[AT_QUEUE_OFFSET:], "big") if is_there else _UNKNOWN

    def whole_from(self, slot: int, start: int) -> int:
        """The first offset from `start` on whose message is not lost: neither with a damaged part
        of the log, nor in such a way that its entry leads where a neighbour's does. See
        `before_lost`."""
        stop, most = self._table.max_offset(slot), 1  # nearly always it is the first
        # no number stands for none: an entry that leads nowhere may have any
        lost_at: int | None = None
        owner = _UNKNOWN
        while start < stop:
            raw = self._read(slot, start, min(stop, start + most))
            for position, size, _ in ENTRY.iter_unpack(raw):
                if position != lost_at and not self.is_damaged(position, size):
                    entry = ENTRY.pack(position, size, 0)
                    beside = (self._beside(slot, start + step) for step in (-1, 1))
                    if not any(have_one_place(entry, each) for each in beside):
                        return start
                    lost_at, owner = position, self._named(position)
                if position == lost_at and owner in (start, _UNKNOWN):
                    return start
                start += 1
            most = ENTRIES_AT_ONCE
        return start

    def is_damaged(self, position: int, size: int) -> bool:
        """Whether what an entry names is lost with a damaged part of the log.

        In a damaged log, an entry that leads nowhere counts as lost, too: `entries` lets it pass.
        """
        damaged = self._log.damaged
        return bool(damaged) and (position < 0 or size <= 0 or damaged.touches(position, size))

    def entries(self, slot: int, start: int, stop: int) -> bytes:
        """The entries of a queue from `start` to below `stop`, 20 bytes each, or the first of them.

        Raises StoreDamaged if the first one leads nowhere: a queue has no such entry below its end,
        unless the log is known to be damaged.
        """
        return self._leading(slot, start, self._read(slot, start, stop))

    def window(self, slot: int, start: int, stop: int) -> Window:
        """The same with the entries before and after them, mostly by one read. Raises
        StoreDamaged."""
        low, high = self.range(slot)
        lead = int(low < start and not self._files.begins_segment(start))
        read = self._read(slot, start - lead, min(stop + 1, high))
        at = lead * CQ_ENTRY_BYTES
        end = at + (stop - start) * CQ_ENTRY_BYTES
        raw = self._leading(slot, start, read[at:end])
        after = at + len(raw)
        return Window(
            raw,
            read[:at] or self._beside(slot, start - 1),
            read[after : after + CQ_ENTRY_BYTES]
            or self._beside(slot, start + len(raw) // CQ_ENTRY_BYTES),
        )

    def _beside(self, slot: int, offset: int) -> bytes:
        """The entry of this offset; b"" where there is none, or none that can be read: an
        unreadable entry says nothing of its neighbours."""
        low, high = self.range(slot)
        try:
            return self._read(slot, offset, offset + 1) if low <= offset < high else b""
        except (OSError, StoreDamaged):
            return b""

    def _leading(self, slot: int, start: int, raw: bytes) -> bytes:
        """The entries before the first one that leads nowhere. Raises StoreDamaged if there are
        none before it."""
        if self._log.damaged or all_lead_somewhere(raw):
            return raw
        rows = enumerate(ENTRY.iter_unpack(raw))
        whole = next(number for number, (offset, size, _) in rows if size <= 0 or offset < 0)
        if not whole:
            key = self._key(slot)
            raise StoreDamaged(
                "an entry of a consume queue leads to no message",
                f"topic {key.topic}, queue {key.queue_id}, offset {start}",
                rebuild(self._files.path(key, 0)),
            )
        # the entries before it are good, and the next read begins with the bad one
        return raw[: whole * CQ_ENTRY_BYTES]

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes of the log from `start` to below `stop`, inside one segment. No copy."""
        return self._log.view(start, stop)

    def _read(self, slot: int, start: int, stop: int) -> bytes:
        """Entries as they are in the files. Raises QueueDeleted, FileNotFoundError,
        StoreDamaged."""
        key = self._key(slot)
        try:
            raw = self._files.read(key, start, stop, slot)
        except FileNotFoundError as error:
            if not self._table.is_deleted(slot):
                raise
            raise QueueDeleted(errno.ENOENT, "the queue was deleted", key.topic) from error
        # asked after the read: it may have read another queue, which has the name by now
        if self._table.is_deleted(slot):
            raise QueueDeleted(errno.ENOENT, "the queue was deleted", key.topic)
        return raw

    def offset_at(self, slot: int, at_ms: int) -> int:
        """The first offset of a queue that was stored at or after this time; the max if none.

        Bisection finds it, as store times never go back along the log, whatever the clock does.
        """
        while True:
            before = self._table.min_offset(slot)
            try:
                return self._offset_at(slot, at_ms)
            except FileNotFoundError:
                if self._table.min_offset(slot) == before:
                    raise  # else it has expired meanwhile, and the search begins again after it

    def _offset_at(self, slot: int, at_ms: int) -> int:
        low, high = self.range(slot)
        while low < high:
            half = (low + high) // 2
            middle = self.whole_from(slot, half)
            if middle >= high:
                # all from `half` on is lost, so there is no time to compare with
                high = half
                continue
            position, size, _ = ENTRY.unpack(self._read(slot, middle, middle + 1))
            # a blank leads to no record, and stands before the queue's first message
            if (
                size == BLANK_SIZE
                or store_timestamp_ms(self._log.view(position, position + size), 0) < at_ms
            ):
                low = middle + 1
            else:
                high = half
        return low

    def first_stored_ms(self, slot: int) -> int:
        """The store time of a queue's first message that can be read; -1 where there is none.

        Raises StoreDamaged, and FileNotFoundError if a file of the queue or of the log is gone.
        """
        first = self.whole_from(slot, self.offset_at(slot, 0))
        if first >= self._table.max_offset(slot):
            return -1
        found, _ = self.read(slot, first, 1, 1)
        piece = piece_of([found])
        return store_timestamp_ms(piece, 0) if len(piece) else -1

    def rest(self, now_ms: int) -> None:
        """Called while there is nothing to read: see LogReader."""
        self._log.rest(now_ms)

    def release_deleted(self, now_ms: int) -> int:
        """Close files that are deleted. Returns for how many ms somebody has been holding one."""
        self._files.release_deleted()
        return self._log.release_deleted(now_ms)

    def close(self) -> None:
        self._files.close()
        # the table's memory cannot be unmapped while a view looks at it
        self._ends.release()
        self._table.close()
        self._log.close()


def unreadable(topic: str, error: OSError) -> StoreDamaged:
    """What to tell whoever asked for the topic. Raises the error if this process lacks a resource:
    that is no fault of the queue, so the actor ends, and the supervisor replaces it."""
    if error.errno in RESOURCE_EXHAUSTED:
        raise error
    return StoreDamaged(
        "the files of a queue cannot be read",
        f"topic {topic}: {error}",
        verify(error.filename),
    )
