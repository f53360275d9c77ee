"""Rebuilds consume queues from the log, in a directory of their own. Offline: no reput runs.

A message that was lost to damage keeps its slot: its entry points to the damage, as the reput's
does. Where no damage explains the loss, the entry points to the next record of its queue, or to the
last one, and readers pass over it (QueueReader.before_lost). No checksum covers a record's queue
offset. A record whose offset is impossible is left out and reported: the log has no room for that
many messages before it, or the slot is another message's (slot_order.py). At a queue's end such a
record still counts, because it was given an offset.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.shared.config import Config
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.files.durable import sync_directory
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.layout import StorePaths
from penstock.shared.loops.active import QueueNumbers, by_queue, dispatch
from penstock.shared.loops.forms import ROW, rows_of
from penstock.shared.next_steps import repair
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.earlier_entries import EarlierFiles, Place
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd
from penstock.shared.queue.slot_order import SlotOrder
from penstock.shared.queue.windows import QueueWindows
from penstock.shared.store.directory import StoreDirectory

if TYPE_CHECKING:
    from penstock.shared.formats.index_chains import Entries

Progress = Callable[[int, int], None]
Queue = tuple[bytes, int]  # topic and queue id

# The loop that makes entries takes one buffer of whole records, so each run is read a second time,
# in one piece. This bounds the piece, but the last record of a run may go beyond it.
_RUN_BYTES = 4 << 20


class LogRun(NamedTuple):
    """[start, stop) of the log. It is whole records that follow each other, with the rows of their
    entries and, if asked for, their keys; or damage; or neither, and only shows how far the log
    goes."""

    start: int
    stop: int
    records: int = 0
    rows: bytes = b""
    is_damage: bool = False
    keys: Entries | None = None


def log_runs(
    store: StoreDirectory,
    numbers: QueueNumbers,
    levels_ms: tuple[int, ...],
    start: int,
    stop: int | None = None,
    keyed: bool = False,
) -> Iterator[LogRun]:
    """The records that begin in [start, stop), checksums compared, and the damage between them.

    A blank ends a run, as damage does. So does the end of a segment without a blank, because a
    read of the log stays within one segment. Raises OSError, StoreDamaged for files that change.
    """
    at = end = -1
    bases = {segment.base for segment in store.segments}
    for position, found, size, _, _ in store.scan_log(start):
        if stop is not None and position >= stop:
            break
        goes_on = position == end and found is Kind.RECORD and position not in bases
        if not goes_on or end - at > _RUN_BYTES:
            if at >= 0:
                yield _read_run(store, numbers, levels_ms, at, end, keyed)
            at, end = (position, position) if found is Kind.RECORD else (-1, -1)
        if found is Kind.RECORD:
            end = position + size
        else:
            yield LogRun(position, position + size, is_damage=found is Kind.DAMAGED)
    if at >= 0:
        yield _read_run(store, numbers, levels_ms, at, end, keyed)


def _read_run(
    store: StoreDirectory,
    numbers: QueueNumbers,
    levels_ms: tuple[int, ...],
    start: int,
    stop: int,
    keyed: bool,
) -> LogRun:
    log = memoryview(store.read_log(start, stop - start))
    found = dispatch(log, start, numbers, levels_ms, keyed)
    # The scan has just compared the checksums of these bytes, and offline nobody writes. If they
    # differ now, somebody is changing the file despite the lock, or the disk is.
    if found.size != stop - start:
        raise StoreDamaged(
            "a record is not where it was a moment ago",
            f"log offset {start + found.size}",
            f"run: {repair(store.paths.root)}",
        )
    return LogRun(start, stop, found.records, found.rows, keys=found.keys)


class BuiltQueues(msgspec.Struct):
    """What was built. If `only` some queues were, `messages` still counts all that the log has."""

    messages: int = 0
    entries: int = 0
    lost: int = 0  # slots of messages that the log does not have
    misplaced: list[int] = []  # log offsets of records that name a slot that is not theirs


class QueueBuilder:
    """Writes the entries of all records of a log, or of those of `only` some queues.

    Call `build`, then `reach` for each queue that is known to have gone on, then `close`. Nothing
    is synced: the caller syncs the whole tree before it gives a queue its name. `target` must not
    have any of these queues yet, or a part of the old one would stay.
    """

    def __init__(
        self,
        store: StoreDirectory,
        target: StorePaths,
        config: Config,
        only: Collection[Queue] | None = None,
        log_end: int = sys.maxsize,
    ) -> None:
        self._store = store
        self._only = only
        # Where the log is known to end. A start would cut an entry that leads past it.
        self._most = log_end
        # topic -> a log offset: its records that begin before that were deleted with an earlier
        # topic of the name, and are in no queue
        self._gone = load_deleted_topics(store.paths.deleted_topics).ends()
        self.numbers = QueueNumbers()
        self._windows = QueueWindows(target, config, self.numbers)
        self._levels_ms = parse_delay_levels(config.message_delay_level)
        self.done = BuiltQueues()
        # The queues in `only` are broken, so they are no witnesses.
        whole = [
            queue
            for queue in store.queues()
            if (queue.topic.encode(), queue.queue_id) not in (only or ())
        ]
        self._earlier = EarlierFiles(whole, self._named)
        # a record is represented by its slot and entry
        self._order: SlotOrder[Queue, tuple[int, bytes]] = SlotOrder(is_known=self._is_known)
        # the next slot of each queue
        self.ends = self._order.ends
        # slot and entry of a queue's first record, held back until its next one comes
        self._held: dict[Queue, tuple[int, bytes]] = {}
        # the entry of each queue's last record in the log
        self._last: dict[Queue, bytes] = {}
        # [start, stop) of each damage in log order, and the entry that points to the newest one
        self._damaged: list[tuple[int, int]] = []
        self._lost = b""
        self._log_end = store.log_start

    def build(self, progress: Progress | None = None, runs: Iterable[LogRun] | None = None) -> None:
        """Build from the log's start to its end. Raises OSError, StoreDamaged for files that
        change.

        `runs` has the log's runs if the caller has walked it already, with this builder's
        `numbers`.
        """
        start = self._store.log_start
        total = self._store.files_end - start
        if runs is None:
            runs = log_runs(self._store, self.numbers, self._levels_ms, start, self._most)
        for run in runs:
            if run.is_damage:
                # The runs before this damage have been taken. What is found missing from here to
                # the next damage counts as lost in this one.
                stop = min(run.stop, self._most)
                self._damaged.append((run.start, stop))
                self._lost = ENTRY.pack(run.start, stop - run.start, 0)
            elif run.records:
                self._take(run)
            self._log_end = min(run.stop, self._most)
            if progress:
                progress(run.stop - start, total)
        self._order.finish()
        self._windows.put(b"".join([self._rows(key, *each) for key, each in self._held.items()]))
        overtaken = self._order.overtaken
        for _, entry in (*self._order.left_out, *self._order.undecided, *overtaken):
            self.done.misplaced.append(ENTRY.unpack(entry)[0])
        self.done.misplaced.sort()
        self.done.entries -= len(overtaken)
        missing = (each for of_queue in self._order.missing.values() for each in of_queue)
        self.done.lost += sum(stop - start for start, stop in missing)
        self._keep_lost_tails()

    def close(self) -> None:
        """Unmap what was written. It is then in the page cache, and not yet durable."""
        self._windows.close()

    def _take(self, found: LogRun) -> None:
        self.done.messages += found.records
        lost, runs, all_in = [], [], self._only is None
        found = self._placed(found)
        for key, of_queue in by_queue(found.rows, self.numbers).items():
            for slot, entries in of_queue if self._only is None or key in self._only else ():
                # A topic that is created again under its name begins at slot 0. So no run has
                # records of both topics, and its first entry tells which one it is.
                if ENTRY.unpack_from(entries)[0] < self._gone.get(key[0].decode(), 0):
                    all_in = False
                    continue
                is_first, began = key not in self.ends, self._order.begun_again.get(key)
                end = self._order.end(key, slot)
                first, count = bytes(entries[: ENTRY.size]), len(entries) // ENTRY.size
                accepted, has_slot = self._order.take(
                    key, slot, (slot, first), count, self._room(first)
                )
                held = self._held.pop(key, None)
                if self._order.begun_again.get(key) != began:
                    end = slot if accepted is None else accepted[0] + 1
                elif held is not None and self._order.is_alone(key):
                    self._held[key] = held
                elif held is not None:
                    runs.append((key, *held))
                if accepted is not None:
                    runs.append((key, *accepted))
                    self.done.entries += 1
                all_in = all_in and has_slot and accepted is None and held is None
                if self._order.ends[key] <= slot:
                    continue  # not taken: the log has no room for the messages in between
                if is_first and count == 1:
                    # the next record of the queue may show that this one is of another queue
                    self._held[key] = slot, first
                    self._last[key] = first
                    self.done.entries += 1
                    all_in = False
                    continue
                if not has_slot:
                    slot, entries = slot + 1, entries[ENTRY.size :]
                lost.append(self._lost_before(key, end, slot, first))
                runs.append((key, slot, bytes(entries)))
                self._last[key] = bytes(entries[-ENTRY.size :]) or self._last[key]
                self.done.entries += len(entries) // ENTRY.size
        # Usually nothing is left out, and the rows are put as the loop has made them.
        rows = found.rows if all_in else b"".join([self._rows(*run) for run in runs])
        self._windows.put(b"".join((*lost, rows)))

    def _placed(self, found: LogRun) -> LogRun:
        """The same run, with each record in the slot where the queues' old files have it, if they
        know better."""
        if self._only is not None or all(
            self._earlier.has(key, slot, bytes(entries))
            for key, of_queue in by_queue(found.rows, self.numbers).items()
            for slot, entries in of_queue
        ):
            return found
        names = self.numbers.names
        rows, moved = self._earlier.placed(found.rows, names, found.start, found.stop)
        if not moved:
            return found
        self.done.misplaced += moved
        # By name: the queue that a record is moved to may have no number yet. A queue that only
        # moved records named gets no files.
        return found._replace(
            rows=b"".join(
                [
                    ROW.pack(self.numbers.number(*queue), slot, entry)
                    for (queue, slot), entry in rows
                ]
            )
        )

    def _is_known(self, key: Queue, slot: int, record: tuple[int, bytes]) -> bool:
        """Whether, of two records in a row that name one slot, the second had it. The old files say
        so; or they say that another queue of the topic had the first one in that slot, as happens
        when a bit of its queue id has flipped."""
        return self._earlier.has(key, slot, record[1]) or self._earlier.has_elsewhere(
            key, slot, self._last.get(key, b"")
        )

    def _named(self, position: int, size: int) -> Place | None:
        """The slot that the record at a log offset names; None without a whole one of this size."""
        try:
            record = self._store.record_at(position)
        except (StoreDamaged, OffsetOutOfRange):
            return None
        if record.total_size != size:
            return None
        return Place((record.topic.encode(), record.queue_id), record.queue_offset)

    def _room(self, entry: bytes) -> int:
        """How many messages the log has room for before the one of this entry.

        It does not bind a queue's first record: those before it may have expired, so any queue
        offset is believed until the next record contradicts it.
        """
        (position, _, _) = ENTRY.unpack(entry)
        return int(position - self._store.log_start) // SMALLEST_RECORD_BYTES

    def _lost_before(self, key: Queue, end: int, slot: int, entry: bytes) -> bytes:
        """Rows for the lost messages, if any, between a queue's `end` and `slot`.

        `entry` is that of `slot`.
        """
        # without damage in the log nobody knows what they were: they get the entry of `slot`
        return self._rows(key, end, (self._lost or entry) * (slot - end)) if slot > end else b""

    def _rows(self, key: Queue, slot: int, entries: bytes | bytearray) -> bytes:
        return rows_of(self.numbers.number(*key), slot, bytes(entries))

    def _fill(self, key: Queue, slot: int, entries: bytes) -> None:
        """Put entries of lost messages from `slot` on, the queue's end, which moves past them."""
        self._windows.put(self._rows(key, slot, entries))
        self.ends[key] = slot + len(entries) // ENTRY.size
        self.done.lost += len(entries) // ENTRY.size

    def _keep_lost_tails(self) -> None:
        """Keep the slots of a queue's last messages that are lost or name a slot of another. The
        old entries say how far the queue went. Without old entries, the log tells how many records
        named a wrong slot."""
        tails = {
            key: {ENTRY.unpack(entry)[0]: entry for _, entry in tail}
            for key, tail in self._order.tails.items()
        }
        for queue in self._store.queues() if self._damaged or tails else ():
            key = (queue.topic.encode(), queue.queue_id)
            if self._only is not None and key not in self._only:
                continue
            # A queue without a record in the log gets nothing here: its old files, or `reach`, say
            # where it goes on.
            at, tail = max(self.ends.get(key, queue.max_offset), queue.first_slot), tails.get(key)
            # slots of a missing file count as lost, too: they get the entry that comes after them
            for slot, (offset, size, code) in (
                (slot, row.item())
                for start, stop in queue.spans(at, queue.max_offset)
                for slot, row in enumerate(queue.entries(start, stop), start)
            ):
                is_misplaced = tail is not None and tail.pop(offset, None) is not None
                # This one was not lost to damage. What follows it stays out too, whatever it names:
                # a queue must not have a gap.
                if not is_misplaced and not self._is_damaged(offset):
                    break
                self._fill(key, at, ENTRY.pack(offset, size, code) * (slot + 1 - at))
                at = slot + 1
        # these lead to records that name another slot, and readers see that
        for key, tail in tails.items():
            self._fill(key, self.ends[key], b"".join(tail.values()))

    def _is_damaged(self, offset: int) -> bool:
        index = bisect_right(self._damaged, (offset, sys.maxsize)) - 1
        return index >= 0 and offset < self._damaged[index][1]

    def reach(self, key: Queue, known: QueueEnd, files_hold: int) -> None:
        """Extend a queue to its known end: the messages that are missing there are lost.

        If the log has no message of it any more, one file is enough; a file holds `files_hold`
        entries.
        """
        at, end = self.ends.get(key), known.end
        if at is None and end:
            # A file has to begin at a multiple of its size. This one holds the slot before the end.
            at = (end - 1) // files_hold * files_hold
        if at is not None and at < end:
            self._fill(key, at, self._lost_at_end(key, known) * (end - at))

    def _lost_at_end(self, key: Queue, known: QueueEnd) -> bytes:
        """The entry of a lost message that came after all those of its queue that the log has."""
        if key not in self._last:
            return ENTRY.pack(0, SMALLEST_RECORD_BYTES, 0)  # expired
        if self._lost:
            return self._lost
        if UNKNOWN < known.last_position < self._log_end:
            # The log is whole and goes on after the lost message. An entry that leads beyond the
            # log's end would tell the next start that the log has lost its end, and no repair could
            # help that.
            return self._last[key]
        return ENTRY.pack(self._log_end, SMALLEST_RECORD_BYTES, 0)  # lost with the log's end


def remove_rebuild(paths: StorePaths) -> None:
    """Remove what a rebuild has left: its unfinished files, or the ones it replaced.

    Which of the two makes no difference: queues and index change places with the new ones in one
    step, so nothing that counts is ever in there. Durable on return.
    """
    if paths.rebuild.is_dir():
        import shutil  # hardly any start needs it

        shutil.rmtree(paths.rebuild)
        sync_directory(paths.own)
