"""The walk of a check through the log or a part of it: passes each record to its queue and index.

Parts can be walked side by side, in other processes: each begins at a record, and returns a
LogPart, which `verify` joins in order. What a part cannot know of those before it, for example
whether a queue goes on where it ended, is decided when they are joined.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.maintenance.verify.index_items import IndexCheck
from penstock.maintenance.verify.queues import QueueCheck, QueuePart
from penstock.maintenance.verify.report import Findings
from penstock.maintenance.verify.stretches import Stretch, Stretches
from penstock.maintenance.verify_loops.pure import ROW_NUMBERS, index_items, key_hash
from penstock.shared.files.segments import Problem, shown
from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import SYS_INNER_BATCH
from penstock.shared.formats.record_outline import entry_tags_code, outline, record_keys
from penstock.shared.names import LIGHT_QUEUE_PREFIX
from penstock.shared.queue.deleted_topics import is_of_deleted
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory

Moved = Callable[[int], None]  # told how many more bytes of log, or of index items, are checked


class LogPart(msgspec.Struct):
    """What a walk has seen of [start, log_end). Damage at the very end is not among the problems:
    it may be a torn tail, so `damage` has its log offset, size and reason."""

    start: int
    log_end: int
    messages: int = 0
    bytes: int = 0
    blanks: int = 0
    inner_batches: int = 0
    without_crc: int = 0
    backwards: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    damage: tuple[int, int, str] | None = None
    # whether its last record ends past its end: then the next part begins inside a record
    overran: bool = False
    queues: list[QueuePart] = []
    deviations: int = 0
    repeated: int = 0
    problems: list[Problem] = []
    problem_count: int = 0
    kinds: list[str] = []


class IndexPart(msgspec.Struct, frozen=True):
    """What was found in the chains of an index file."""

    problems: list[Problem]
    problem_count: int
    deviations: int


class How(msgspec.Struct, frozen=True):
    """What a check compares. `index`: the sizes of index files, None if they are not known."""

    checksum: Checksum = Checksum.BOTH
    index: Geometry | None = None
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS


def checked_queues(store: StoreDirectory, gone: dict[str, int]) -> list[QueueFiles]:
    """The queues that are compared with the log. `gone` are topics that were deleted."""
    # Light queues are left out: their entries lead to records of other topics.
    return [
        files
        for files in store.queues()
        if not files.topic.startswith(LIGHT_QUEUE_PREFIX) and not is_of_deleted(files, gone)
    ]


class Walk:
    """One walk from log offset `start`, where a record begins, to below `stop`, or to the end."""

    def __init__(
        self,
        store: StoreDirectory,
        how: How,
        queues: Sequence[QueueFiles],
        gone: dict[str, int],
        start: int,
        stop: int | None = None,
    ) -> None:
        """Records what a running store may outgrow; `run` reads the records."""
        self._store, self._how, self._gone = store, how, gone
        self._stop = stop
        self._found = Findings()
        self._part = LogPart(start, start)
        self._queues: dict[tuple[bytes, int], QueueCheck] = {
            (files.topic.encode(), files.queue_id): QueueCheck(
                files.topic, files.queue_id, files, shown(files.directory), self._found
            )
            for files in queues
        }
        self._numbered: list[QueueCheck] = []  # by the numbers that the verifier's loop gives
        unclean = store.is_unclean
        self._index = IndexCheck(store.paths.index, how.index, start, unclean, self._found)
        self._stretches = Stretches(store, how.checksum, how.delay_levels_ms, len(self._index) > 0)

    def run(self, moved: Moved = lambda _: None) -> LogPart:
        """Walk. Call it once."""
        part, store, told = self._part, self._store, 0
        for each in self._stretches.read(part.start, self._stop):
            position = each[0]
            if self._stop is not None and position >= self._stop:
                break
            found = Kind.RECORD if isinstance(each, Stretch) else each[1]
            # Something follows, so it is not a torn tail. Damage at the very end may be one.
            if part.damage and found is not Kind.END:
                report_damage(self._found, store, "log-damaged", part.damage)
                part.damage = None
            if isinstance(each, Stretch):
                self._take_stretch(each)
                moved(each.end - part.start - told)
                told = each.end - part.start
                continue
            _, _, size, record, reason = each
            if found is Kind.RECORD:
                part.without_crc += reason == NO_RECORD_CRC
                self._take_record(position, size, record)
            elif found is Kind.BLANK:
                part.blanks += 1
                part.log_end = position + size
            elif found is Kind.DAMAGED:
                part.damage = position, size, reason
        part.overran = self._stop is not None and part.log_end > self._stop
        part.queues = [made for queue in self._queues.values() if (made := queue.part())]
        # for a part, up to the end of its stretch; for the log, as far as the walk has come
        self._index.finish_items(part.log_end if self._stop is None else self._stop)
        self._index.close()
        part.deviations, part.repeated = self._index.deviations, self._index.repeated
        part.problems, part.problem_count = self._found.problems, self._found.problem_count
        part.kinds = self._found.kinds
        moved(log_bytes(store, part.start, self._stop) - told)  # the log may end before its files
        return part

    def _take_stretch(self, stretch: Stretch) -> None:
        """Pass usual records on, by queue."""
        found = stretch.checked
        rows = np.frombuffer(found.rows, np.int64).reshape(-1, ROW_NUMBERS)
        self._part.without_crc += found.without_crc
        self._count(rows[:, -1], stretch.position, stretch.end)
        self._index.add(found.items)
        if len(self._numbered) < len(self._stretches.queues):
            new = [*self._stretches.queues][len(self._numbered) :]
            self._numbered += [self._queue(name[:-4], int.from_bytes(name[-4:])) for name in new]
        # group the rows by queue, in order
        rows = rows[np.argsort(rows[:, 0].astype(np.int32), kind="stable")]
        for queue in np.split(rows, np.flatnonzero(np.diff(rows[:, 0])) + 1):
            number = int(queue[0, 0])
            if number < 0:
                continue
            check = self._numbered[number]
            queue = queue[queue[:, 2] >= self._gone.get(check.topic, 0)] if self._gone else queue
            check.add(queue[:, 1:-1].tobytes())

    def _count(self, stored_ms: npt.NDArray[np.int64], position: int, end: int) -> None:
        """Count records from log offset `position` to `end` by store time. A time is compared with
        the newest so far, not with the record before it: if a clock was ahead and was corrected,
        all records count until it has caught up."""
        part = self._part
        oldest_ms = int(stored_ms.min())
        part.oldest_ms = min(part.oldest_ms, oldest_ms) if part.messages else oldest_ms
        newest_ms = np.maximum.accumulate(np.append(part.newest_ms, stored_ms))
        part.backwards += int(np.count_nonzero(stored_ms < newest_ms[:-1]))
        part.newest_ms = int(newest_ms[-1])
        part.messages += len(stored_ms)
        part.bytes += end - position
        part.log_end = end

    def _take_record(self, position: int, size: int, record: memoryview) -> None:
        """Pass on a whole record. `record` shows a window of the walk, so nothing may keep it."""
        fields = outline(record)
        unique_key, words = record_keys(fields)
        self._count(np.array([fields.store_timestamp_ms]), position, position + size)
        items = index_items(fields.topic, unique_key, words, position)
        self._index.add(array("q", items).tobytes())
        # A half message is in the index but in no queue, so it is added there before this.
        if self._gone and position < self._gone.get(fields.topic.decode("utf-8", "replace"), 0):
            return
        if not fields.is_queued:
            return
        # they are counted in a note, and their queues are not checked
        if fields.sys_flag & SYS_INNER_BATCH:
            self._part.inner_batches += 1
            return
        code = entry_tags_code(fields, self._how.delay_levels_ms)
        row = fields.queue_offset, position, size, code, key_hash(unique_key)
        self._queue(fields.topic, fields.queue_id).add(array("q", row).tobytes())

    def _queue(self, topic: bytes, queue_id: int) -> QueueCheck:
        """The check of a queue, which may have records but no directory."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = new_queue(self._store, topic, queue_id, self._found)
            self._queues[topic, queue_id] = queue
        return queue


def log_bytes(store: StoreDirectory, start: int, stop: int | None = None) -> int:
    """What a walk counts: all bytes from `start` to `stop`, or to the end of the log's files."""
    return (store.files_end if stop is None else stop) - start


def walk_chains(store: StoreDirectory, how: How, number: int) -> IndexPart:
    """The chains of one index file, by its number among those that can be compared."""
    found = Findings()
    check = IndexCheck(store.paths.index, how.index, store.log_start, store.is_unclean, found)
    check.check_chains(number, lambda _: None)
    check.close()
    return IndexPart(found.problems, found.problem_count, check.deviations)


def new_queue(store: StoreDirectory, topic: bytes, queue_id: int, found: Findings) -> QueueCheck:
    """A queue that has records but no directory: all of its entries are missing.

    In an unclean store that is no problem, as the reput may not have come to it yet.
    """
    place = shown(store.paths.consume_queue)
    return QueueCheck(topic.decode("utf-8", "replace"), queue_id, None, place, found)


def report_damage(
    found: Findings, store: StoreDirectory, kind: str, damage: tuple[int, int, str]
) -> None:
    """Report damage. It lies in one segment, as a step of a scan does."""
    position, size, reason = damage
    segment = store.segment_of(position)
    found.report(
        kind,
        (shown(segment.path), position - segment.base),
        position,
        f"{size} bytes are no record: {reason}",
    )
