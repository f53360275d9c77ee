"""Reads the half queue and the op queue, and looks for copies that a crash may have left.

Read-only. What has expired, or is lost with a damaged part of the log, counts as missing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from penstock.shared.errors import RESOURCE_EXHAUSTED, StoreDamaged
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.formats.record_layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK
from penstock.shared.log.found_records import piece_of
from penstock.shared.messaging.half import op_outcome, parse_op
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC
from penstock.shared.queue.reader import QueueReader

# Bytes of op records in one look.
LOOK_BYTES = 256 << 10
# A look for a copy takes this many last messages of a queue: a frame that a power failure cut was
# among the last of the log, and has fewer.
MOST_LOOKED_AT = 4096
# Entries that cannot be read, passed over in search of one that can.
MOST_PASSED = 1000
# Queues whose last commits are remembered.
MOST_QUEUES = 64
# If one op record cannot be read, this many are read singly.
_ONE_BY_ONE = 64
# Op records in a block, of which only the largest half offset is remembered.
_BLOCK = 256


class Op(NamedTuple):
    """An op record: these half messages are done. `outcome` is "" if the record does not say."""

    offset: int
    halves: tuple[int, ...]
    outcome: str


class HalfQueues:
    """The queues of half messages, and the queues that these are for."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._commits: OrderedDict[tuple[str, int], dict[int, Record]] = OrderedDict()

    def range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """(min offset, max offset); (0, 0) if there is no such queue."""
        slot = self._reader.queues(topic).get(queue_id)
        return (0, 0) if slot is None else self._reader.range(slot)

    def ops(self, start: int) -> tuple[list[Op], int]:
        """The next op records from `start` on, and the offset at which to go on."""
        slot = self._reader.queues(OP_TOPIC).get(0)
        if slot is None:
            return [], start
        low, high = self._reader.range(slot)
        start = max(start, low)
        if start >= high:
            return [], start
        try:
            records, stop = self._look(slot, start)
        except FileNotFoundError:
            return [], start  # it is just expiring; the next look begins at the new minimum
        except (OSError, StoreDamaged):
            # some of it cannot be read: read one by one, and leave out what is lost
            stop = min(start + _ONE_BY_ONE, high)
            each = (self._record(slot, offset) for offset in range(start, stop))
            records = [record for record in each if record is not None]
        return [
            Op(record.queue_offset, parse_op(record.body), op_outcome(record.properties))
            for record in records
        ], stop

    def _look(self, slot: int, start: int) -> tuple[list[Record], int]:
        found, stop = self._reader.read(slot, start, LOOK_BYTES)
        if stop == start:
            return [], self._reader.whole_from(slot, start)
        piece, at, records = memoryview(piece_of([found])), 0, []
        while at < len(piece):
            records.append(decode_record(piece, at))
            at += records[-1].total_size
        return records, stop

    def half(self, offset: int) -> Record | None:
        """The half message at this offset of its queue."""
        slot = self._reader.queues(HALF_TOPIC).get(0)
        return None if slot is None else self._record(slot, offset)

    def commits_before(self, topic: str, queue_id: int, before: int) -> dict[int, Record]:
        """Committed messages among the last of a queue before a log offset, by the log offset of
        their half message, without bodies. `before` is the same at each call."""
        known = self._commits.get((topic, queue_id))
        if known is None:
            known = self._commits[topic, queue_id] = {}
            if len(self._commits) > MOST_QUEUES:
                self._commits.popitem(last=False)

            def note(record: Record) -> bool:
                if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_COMMIT:
                    bare = replace(record, body=b"", properties=b"")
                    known[record.prepared_transaction_offset] = bare
                return False

            self.find(topic, queue_id, 0, before, note)
        return known

    def find(
        self, topic: str, queue_id: int, after: int, before: int, is_it: Callable[[Record], bool]
    ) -> Record | None:
        """A record of this queue between two log offsets, among the last of them."""
        slot = self._reader.queues(topic).get(queue_id)
        if slot is None:
            return None
        stop = self._first_from(slot, before, unknown_is_before=True)
        start = self._first_from(slot, after, unknown_is_before=False)
        start = max(start, stop - MOST_LOOKED_AT)
        for offset in range(start, stop):
            record = self._record(slot, offset)
            if record is not None and is_it(record):
                return record
        return None

    def _first_from(self, slot: int, position: int, *, unknown_is_before: bool) -> int:
        """The first offset of a queue whose message is not before this log offset. Where many in a
        row cannot be read, nobody knows, and `unknown_is_before` decides."""
        low, high = self._reader.range(slot)
        while low < high:
            middle = (low + high) // 2
            # what cannot be read does not say where it is, and the next one does
            for readable in range(middle, min(high, middle + MOST_PASSED)):
                entry = self._entry(slot, readable)
                if entry is not None:
                    break
            else:
                readable, entry = middle, None
            if unknown_is_before if entry is None else entry[0] < position:
                low = readable + 1
            else:
                high = middle
        return low

    def _entry(self, slot: int, offset: int) -> tuple[int, int] | None:
        """The message's log offset, and its size."""
        low, high = self._reader.range(slot)
        if not low <= offset < high:
            return None
        try:
            position, size, _ = ENTRY.unpack(self._reader.entries(slot, offset, offset + 1))
        except (OSError, StoreDamaged) as error:
            _check_gone(error)
            return None
        lost = size == BLANK_SIZE or self._reader.is_damaged(position, size)
        return None if lost else (position, size)

    def _record(self, slot: int, offset: int) -> Record | None:
        entry = self._entry(slot, offset)
        if entry is None:
            return None
        position, size = entry
        try:
            return decode_record(self._reader.view(position, position + size))
        except (OSError, StoreDamaged) as error:
            _check_gone(error)
            return None


def _check_gone(error: OSError | StoreDamaged) -> None:
    """What cannot be read counts as missing. Raises the error if this process lacks something:
    that is not the queue's fault, so the actor ends, and the supervisor replaces it."""
    if isinstance(error, OSError) and error.errno in RESOURCE_EXHAUSTED:
        raise error


class OpMarks:
    """Which op records a reader needs that begins at a half offset.

    RocketMQ's op offset may be too low but never too high, so the largest half offset of some
    hundred op records together is enough.
    """

    def __init__(self, start: int) -> None:
        self._blocks: deque[tuple[int, int]] = deque()  # the first op offset, the largest half
        self._next = start
        self._count = 0

    def note(self, op: Op) -> None:
        largest = max(op.halves, default=-1)
        if not self._blocks or self._count == _BLOCK:
            self._blocks.append((op.offset, largest))
            self._count = 0
        else:
            first, before = self._blocks[-1]
            self._blocks[-1] = first, max(before, largest)
        self._count += 1
        self._next = op.offset + 1

    def first_for(self, half: int) -> int:
        """The first op record that may name a half message from `half` on."""
        return next((first for first, largest in self._blocks if largest >= half), self._next)

    def forget(self, half: int) -> None:
        """No reader will begin before `half` again."""
        while self._blocks and self._blocks[0][1] < half:
            self._blocks.popleft()
