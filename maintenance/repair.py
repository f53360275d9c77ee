"""Repair of a damaged store: RocketMQ, and we, can run on it again, and no byte is thrown away.

    files    a stray file goes to STORE/penstock/quarantine/; a segment of a wrong length gets the
             right one, a missing one is made; what is cut off is kept there too
    log      the bytes of a damaged range are kept in quarantine/<log offset>.bin, then tombstones
             and fillers take its place, of the same length: everything after it keeps its offset
    queues   and index are made from the log, with a tombstone for each lost message

A range says nothing of what it held, but its neighbours do: a queue whose offsets jump over it has
lost what lies between, and entries of consume queues that point into it name their messages. So
each queue is as dense as RocketMQ needs it.

Every step can be done twice: killed anywhere, a repair is run again. The caller holds the lock.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.maintenance.rebuild import Rebuilt, rebuild_store
from penstock.maintenance.repair_files import plan_files
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import (
    NewFile,
    make_directory,
    make_files,
    opened,
    sync_directory,
    write_at,
)
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.formats.record_outline import outline
from penstock.shared.formats.tombstone import LostMessage, lay_out, smallest_tombstone_bytes
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import (
    Damage,
    DamagedRanges,
    damage_between,
    joined,
    load_quarantine,
    save_quarantine,
)
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.known_queues import (
    WATERMARK,
    QueueEnd,
    load_known_flush,
    load_known_queues,
    replace_known_queues,
)
from penstock.shared.recovery.find_log_end import dispatched_to
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

# This many ranges, or bytes, are replaced between two syncs.
_AT_ONCE, _BYTES_AT_ONCE = 64, 64 << 20

Progress = Callable[[int, int], None]


class RangeRepair(msgspec.Struct):
    """A damaged range, the messages it held as far as they are known, and what replaces it."""

    damage: Damage
    stored_ms: int  # of the record before it, so that times do not go back along the log
    lost: list[LostMessage]  # what neither an entry nor a gap in its queue speaks of is not in it
    kept_in: str  # the file in the quarantine that has, or will have, the range's bytes


class Repair(msgspec.Struct):
    """What a repair does, or would do."""

    applied: bool
    files: list[str]
    ranges: list[RangeRepair]
    rebuilt: Rebuilt | None = None

    @property
    def needed(self) -> bool:
        return bool(self.files or self.ranges)


def plan_repair(paths: StorePaths, config: Config, progress: Progress | None = None) -> Repair:
    """What is to be repaired; changes nothing.

    Where files are wrong there may be more to do after them than this can see.
    """
    files = [step.text for step in plan_files(paths, config)]
    return Repair(False, files, plan_ranges(paths, config, None, progress))


def repair_store(
    paths: StorePaths,
    config: Config,
    clock: Clock,
    last_run: Run | None,
    progress: Progress | None = None,
) -> Repair:
    """Repair, durable on return. Raises StoreDamaged for what nobody can repair, and OSError.

    Until the last step quarantine.json names the damage, so a range that is replaced in part is not
    taken for whole.
    """
    make_directory(paths.staging)
    make_directory(paths.consume_queue)
    files = []
    for step in plan_files(paths, config):
        step.apply()
        files.append(step.text)
    with StoreSurvey(paths, config) as survey:
        found = recover_store(survey, last_run)
    # from here on a start knows where the log was damaged, and does the queues after it again
    save_quarantine(paths, found.quarantined, clock.now_ms())
    ranges = plan_ranges(paths, config, found, progress)
    save_quarantine(paths, [each.damage for each in ranges], clock.now_ms())
    crash_point("repair.planned")
    for some in _groups(ranges):
        _replace(paths, config, some)
    crash_point("repair.replaced")
    if ranges:
        with StoreSurvey(paths, config) as survey:
            recover_store(survey, last_run)  # a torn tail could not be cut before
    done = Repair(True, files, ranges)
    index = config.message_index_enable
    # Queues are always made: one whose file was given its length has zeros where entries belong.
    done.rebuilt = rebuild_store(paths, config, clock, queues=True, index=index, progress=progress)
    crash_point("repair.rebuilt")
    _note_ends(paths)
    save_quarantine(paths, [], clock.now_ms())
    return done


def _note_ends(paths: StorePaths) -> None:
    """The list says of queues what they are now: a tombstone is not where its message was. One that
    was known to go on further stays as it was known, and a start lets it go on there."""
    ends = load_known_queues(paths.known_queues)
    with StoreDirectory(paths.root) as store:
        for queue in store.queues():
            name, end = f"{queue.topic}/{queue.queue_id}", queue.max_offset
            if end > queue.first_slot and end >= ends.get(name, QueueEnd()).end:
                ends[name] = QueueEnd(end, queue.log_offset(end - 1))
    if flushed := load_known_flush(paths.known_queues):
        ends[WATERMARK] = QueueEnd(flushed)
    replace_known_queues(paths.known_queues, ends)


def plan_ranges(
    paths: StorePaths, config: Config, found: Recovered | None, progress: Progress | None
) -> list[RangeRepair]:
    """Every damaged range in front of a whole record, or of the end that is known."""
    with StoreDirectory(paths.root) as store:
        walk = _Walk(store, config, found)
        walk.run(progress)
        known_end = found.log_end if found is not None else _known_end(paths, store)
        if walk.end < known_end:
            size = config.mapped_file_size_commit_log_bytes
            reason = f"the log was written up to {known_end}"
            for each in damage_between(paths, size, walk.end, known_end, reason):
                walk.add(each)
        # In this order: entries name their messages, ends only count them, gaps go where room is
        # left.
        walk.take_entries()
        walk.take_ends(load_known_queues(paths.known_queues))
        walk.place_gaps()
        return walk.ranges


def _known_end(paths: StorePaths, store: StoreDirectory) -> int:
    """How far the log went, by what was known of its damage and by a clean store's queues."""
    ends = [each.end for each in load_quarantine(paths)]
    if not store.is_unclean and store.segments:
        ends.append(min(dispatched_to(store.queues()), store.segments[-1].end))
    return max(ends, default=0)


class _Gap(NamedTuple):
    """Slots [low, high) of a queue that no record has, and between which two log offsets."""

    low: int
    high: int
    past: int
    before: int


class _Walk:
    """One pass over the log: its damage, and the slots that no record fills."""

    def __init__(self, store: StoreDirectory, config: Config, found: Recovered | None) -> None:
        self._store = store
        # A start knows more than the bytes tell: where the log ends, and what was torn. What stands
        # past that end, a blank of another segment, say, is nothing that damage ends at.
        self._known_end = found.log_end if found is not None else sys.maxsize
        self._known = DamagedRanges(found.quarantined if found is not None else ())
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self.ranges: list[RangeRepair] = []
        self.end = store.log_start  # of the last whole record or blank
        self._stored_ms = 0
        self._next: dict[tuple[str, int], tuple[int, int]] = {}  # slot, and after which position
        self._first: dict[tuple[str, int], int] = {}  # slot of the first record that is left
        self._gaps: dict[tuple[str, int], list[_Gap]] = {}  # of a queue in ascending order
        self._room: list[int] = []  # of each range, for more tombstones

    def add(self, damage: Damage) -> None:
        kept_in = str(self._store.paths.quarantine / f"{damage.position}.bin")
        self.ranges.append(RangeRepair(damage, self._stored_ms, [], kept_in))
        self._room.append(damage.size)

    def run(self, progress: Progress | None) -> None:
        start, total = self._store.log_start, sum(each.size for each in self._store.segments)
        pending: list[Damage] = []
        for position, found, size, record, reason in self._store.scan_log():
            if found is Kind.END or position >= self._known_end:
                break  # damage at the very end is a torn tail: a start sees to it
            stop = min(position + size, self._known_end)
            # any bytes may name the segment's end: damage ends at a record, and not at a blank
            lost = found is Kind.DAMAGED or bool(pending) and found is Kind.BLANK
            if lost or self._known.touches(position, stop - position):
                known = self._known.before(stop - 1)
                why = reason or (known.reason if known is not None else "")
                pending += damage_between(
                    self._store.paths, self._segment_bytes, position, stop, why
                )
                continue
            for each in joined(pending):
                self.add(each)
            pending = []
            self.end = position + size
            if found is Kind.RECORD:
                self._take(position, size, record)
            if progress:
                progress(position - start, total)

    def _take(self, position: int, size: int, record: memoryview) -> None:
        fields = outline(record)
        self._stored_ms = fields.store_timestamp_ms
        if not fields.is_queued:
            return
        queue = (fields.topic.decode("utf-8", "replace"), fields.queue_id)
        # More records than this cannot stand before it.
        room = position // SMALLEST_RECORD_BYTES
        known = self._next.get(queue)
        # the first one of a queue may have lost those before it, or begin wherever it likes
        begins = fields.queue_offset if self._store.log_start or fields.queue_offset > room else 0
        slot, past = known or (begins, -1)
        if fields.queue_offset < 0 or fields.queue_offset - slot > room:
            # no checksum covers it: a jump over more messages than there was room for is damage
            reason = f"queue offset {fields.queue_offset}, where {slot} was to come"
            damaged = damage_between(
                self._store.paths, self._segment_bytes, position, position + size, reason
            )
            self.add(damaged[0])
            return
        if slot < fields.queue_offset:
            self._gaps.setdefault(queue, []).append(_Gap(slot, fields.queue_offset, past, position))
        self._first.setdefault(queue, fields.queue_offset)
        # A slot that comes again must not take the queue back.
        self._next[queue] = (max(slot, fields.queue_offset + 1), position)

    def take_ends(self, known: Mapping[str, QueueEnd]) -> None:
        """Queues that are known to have gone on have lost what is missing after their last one."""
        named: dict[tuple[str, int], tuple[int, int]] = {}
        for each in self.ranges:
            for topic, queue_id, slot in each.lost:
                here = slot + 1, each.damage.position - 1
                named[topic, queue_id] = max(here, named.get((topic, queue_id), here))
        for name, end in known.items():
            topic, _, number = name.rpartition("/")
            queue = (topic, int(number))
            # of one that has nothing here all has expired
            last = self._next.get(queue, named.get(queue, (end.end, -1)))
            lost = max(last, named.get(queue, last))
            for (slot, past), stop in ((last, lost[0]), (lost, end.end)):
                if slot < stop:
                    gap = _Gap(slot, stop, past, sys.maxsize)
                    self._gaps.setdefault(queue, []).append(gap)

    def take_entries(self) -> None:
        """Entries that point into the damage name its messages, the last of a queue too."""
        if not self.ranges:
            return
        starts, ends = self._bounds()
        for queue in self._store.queues():
            key = (queue.topic, queue.queue_id)
            first, filled = self._first.get(key, 0), self._next.get(key, (0, -1))[0]
            for start, stop in queue.spans(queue.min_offset, queue.max_offset):
                offsets = queue.entries(start, stop)["offset"].astype(np.int64)
                numbers = np.searchsorted(starts, offsets, "right") - 1
                for index in np.flatnonzero((numbers >= 0) & (offsets < ends[numbers])).tolist():
                    slot = start + index
                    # A slot that a record fills is not lost, whatever its entry says.
                    if not first <= slot < filled or self._is_in_gap(key, slot):
                        self._lose(int(numbers[index]), LostMessage(*key, slot))

    def _bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each range begins, and where it ends."""
        bounds = [(each.damage.position, each.damage.end) for each in self.ranges]
        starts, ends = np.array(bounds, np.int64).reshape(-1, 2).T
        return starts, ends

    def _is_in_gap(self, key: tuple[str, int], slot: int) -> bool:
        gaps = self._gaps.get(key, [])
        index = bisect_right(gaps, slot, key=lambda gap: gap.low) - 1
        return index >= 0 and slot < gaps[index].high

    def _lose(self, number: int, lost: LostMessage) -> bool:
        """Have a range hold this message's tombstone; whether it has the room for the smallest one:
        that the queue stays dense comes before telling its consumers why."""
        need = smallest_tombstone_bytes(lost)
        if need > self._room[number]:
            return False
        self._room[number] -= need
        self.ranges[number].lost.append(lost)
        return True

    def place_gaps(self) -> None:
        """Missing slots that no entry names go to damage between their neighbours, if any."""
        placed = {lost for each in self.ranges for lost in each.lost}
        starts, _ = self._bounds()
        for queue, gaps in self._gaps.items():
            for gap in gaps:
                # a range that has no room for one of a queue has none for its next either
                number = int(np.searchsorted(starts, gap.past, "right"))
                beyond = int(np.searchsorted(starts, gap.before))
                for slot in range(gap.low, gap.high):
                    lost = LostMessage(*queue, slot)
                    if lost in placed:
                        continue
                    while number < beyond and not self._lose(number, lost):
                        number += 1
                    if number >= beyond:
                        break
        for each in self.ranges:
            # Entries and gaps came by different ways. A queue's slots have to ascend along the log.
            each.lost.sort(key=lambda lost: (lost.topic, lost.queue_id, lost.queue_offset))


def _groups(ranges: Sequence[RangeRepair]) -> Iterator[list[RangeRepair]]:
    """Ranges that share their syncs. A group's bytes are in memory at once, so they count too."""
    held: list[RangeRepair] = []
    held_bytes = 0
    for each in ranges:
        if held and (len(held) == _AT_ONCE or held_bytes + each.damage.size > _BYTES_AT_ONCE):
            yield held
            held, held_bytes = [], 0
        held.append(each)
        held_bytes += each.damage.size
    if held:
        yield held


def _replace(paths: StorePaths, config: Config, ranges: Sequence[RangeRepair]) -> None:
    """Keep the ranges' bytes, and put tombstones there; durable on return.

    Several at once, for each sync takes as long as many writes. All copies of a group are on disk,
    names too, before the first byte of the log changes.
    """
    make_directory(paths.quarantine)
    targets = {paths.quarantine / f"{each.damage.position}.bin": each.damage for each in ranges}
    # what is there the first try of this repair has kept
    wanted = [(path, damage) for path, damage in targets.items() if not path.exists()]
    files = [NewFile(str(path), _bytes_of(damage)) for path, damage in wanted]
    make_files(paths.staging, files, 0, sparse=True)
    sync_directory(paths.quarantine)
    for file, group in groupby(ranges, key=lambda each: each.damage.file):
        with opened(file, os.O_RDWR) as handle:
            for each in group:
                _put_tombstones(handle, config, each)
            os.fdatasync(handle)


def _bytes_of(damage: Damage) -> bytes:
    with opened(damage.file, os.O_RDONLY) as handle:
        return os.pread(handle, damage.size, damage.offset)


def _put_tombstones(handle: int, config: Config, each: RangeRepair) -> None:
    damage = each.damage
    # Only there may a blank fill the rest: to whoever reads the log it is the segment's end.
    ends_segment = damage.end % config.mapped_file_size_commit_log_bytes == 0
    at = damage.offset
    for piece in lay_out(damage.position, damage.size, ends_segment, each.lost, each.stored_ms):
        write_at(handle, piece, at)
        crash_point("repair.mid_range")
        at += len(piece)
