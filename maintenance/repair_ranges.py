"""What a repair will replace: the damaged ranges of a log, and the messages that each of them held.

A range says nothing of what it held, but its neighbours do: a queue whose offsets jump over it has
lost what lies between, and entries of consume queues that point into it name their messages. So
each queue is as dense as RocketMQ needs it. A whole record that names a slot of another message, or
a queue that it does not stand in, is damage too, for no checksum covers that. Only reads.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.maintenance.bent_records import bent_records
from penstock.maintenance.displaced_records import (
    Claimed,
    Queue,
    bytes_of,
    claimed_ends,
    claims_of,
    queues_of,
)
from penstock.shared.config import Config
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.formats.record_outline import outline
from penstock.shared.formats.tombstone import LostMessage, is_replacement, smallest_tombstone_bytes
from penstock.shared.layout import BLANK_HEADER_BYTES, StorePaths
from penstock.shared.log.damage import (
    Damage,
    DamagedRanges,
    damage_between,
    joined,
    load_quarantine,
    place_aside,
)
from penstock.shared.queue.deleted_topics import load_living_queues
from penstock.shared.queue.known_queues import QueueEnd
from penstock.shared.queue.slot_order import SlotOrder
from penstock.shared.recovery.find_log_end import dispatched_to
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.directory import StoreDirectory

Progress = Callable[[int, int], None]


class RangePlan(NamedTuple):
    """What a repair replaces, and the ends of queues of which nothing but records in the damage
    tells, by name: once it is replaced nobody can find them out again."""

    ranges: list[RangeRepair]
    ends: dict[str, QueueEnd]


class RangeRepair(msgspec.Struct):
    """A damaged range, the messages it held as far as they are known, and what replaces it."""

    damage: Damage
    stored_ms: int  # of the record before it, so that times do not go back along the log
    lost: list[LostMessage]  # what neither an entry nor a gap in its queue speaks of is not in it
    kept_in: str  # the file in the quarantine that has, or will have, the range's bytes


def plan_ranges(
    paths: StorePaths,
    config: Config,
    found: Recovered | None,
    progress: Progress | None,
    begun: Sequence[Damage],
) -> RangePlan:
    """Every damaged range in front of a whole record, or of the end that is known.

    Of those that are `begun`, by a repair that was killed, also what it has replaced already: a
    range is one, with one copy of its bytes, whoever comes to its end.
    """
    with StoreDirectory(paths.root) as store:
        walk = _Walk(store, config, found, begun).run(progress)
        if bent := set(bent_records(store, walk.vacant)):
            walk = _Walk(store, config, found, begun, bent).run(progress)
        known_end = found.log_end if found is not None else _known_end(paths, store)
        if walk.end < known_end:
            size = config.mapped_file_size_commit_log_bytes
            reason = f"the log was written up to {known_end}"
            for each in damage_between(paths, size, walk.end, known_end, reason):
                walk.add(each)
        # In this order: entries name their messages, ends only count them, gaps go where room is
        # left.
        walk.take_entries()
        walk.take_ends(load_living_queues(paths))
        walk.place_gaps()
        return RangePlan(walk.ranges, walk.claimed)


def _known_end(paths: StorePaths, store: StoreDirectory) -> int:
    """How far the log went, by what was known of its damage and by a clean store's queues."""
    ends = [each.end for each in load_quarantine(paths)]
    if not store.is_unclean:
        ends.append(min(dispatched_to(store), store.files_end))
    return max(ends, default=0)


class _Gap(NamedTuple):
    """Slots [low, high) of a queue that no record has, and between which two log offsets."""

    low: int
    high: int
    past: int
    before: int


class _Placed(NamedTuple):
    """A whole record, and the store time of what its replacement would follow."""

    position: int
    size: int
    stored_ms: int
    expected: int = -1  # the slot that was to come, where it names one that cannot be


class _Walk:
    """One pass over the log: its damage, and the slots that no record fills."""

    def __init__(
        self,
        store: StoreDirectory,
        config: Config,
        found: Recovered | None,
        begun: Sequence[Damage],
        bent: Container[int] = (),
    ) -> None:
        self._store, self._bent = store, bent  # log offsets of whole records that are damage too
        self._begun = DamagedRanges(begun)
        self._replaced: dict[int, int] = {}  # by such a repair: position and size of its records
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
        self._begins: int | None = None  # of a queue whose first record comes
        self._damage: list[Damage] = []  # all that was met, past the known end too
        self.claimed: dict[str, QueueEnd] = {}  # ends of queues, by records in there
        self._order: SlotOrder[tuple[str, int], _Placed] = SlotOrder(lambda queue: self._begins)

    def add(self, damage: Damage) -> None:
        self.ranges.append(RangeRepair(damage, self._stored_ms, [], self._kept_in(damage)))
        self._room.append(self._room_in(damage))

    def _room_in(self, damage: Damage) -> int:
        """Bytes for tombstones: a segment ends with a blank."""
        return damage.size - BLANK_HEADER_BYTES * (damage.end % self._segment_bytes == 0)

    def _kept_in(self, damage: Damage) -> str:
        """What has other bytes is of an earlier repair; but of this one, which was killed half way,
        the newest file has them, and where it got to does not count."""
        at, newest = damage.position, ""
        while at in self._replaced:
            at += self._replaced[at]
        replaced = min(at - damage.position, damage.size)

        def has_it(path: Path) -> bool:
            nonlocal newest
            if path.stat().st_size != damage.size:
                return False
            has_rest = path.read_bytes()[replaced:] == bytes_of(damage)[replaced:]
            newest = str(path) if has_rest else newest
            return has_rest and not replaced

        free = place_aside(self._store.paths, f"{damage.position}.bin", has_it)
        return newest or str(free)

    def run(self, progress: Progress | None) -> _Walk:
        start, total = self._store.log_start, sum(each.size for each in self._store.segments)
        pending: list[Damage] = []
        for position, found, size, record, reason in self._store.scan_log():
            if found is Kind.END:
                break  # damage at the very end is a torn tail: a start sees to it
            if position >= self._known_end:
                # a segment that was made ahead may have changed places with one of the log
                self._damage += self._between(position, position + size, reason)
                continue
            stop = min(position + size, self._known_end)
            # any bytes may name the segment's end: damage ends at a record, and not at a blank
            lost = found is Kind.DAMAGED or bool(pending) and found is Kind.BLANK
            if found is Kind.RECORD and self._begun and self._begun.at(position) is not None:
                lost = is_replacement(decode_record(record))
                self._replaced |= {position: size} if lost else {}
            if lost or self._known and self._known.touches(position, stop - position):
                known = self._begun.at(position) or self._known.before(stop - 1)
                why = reason or (known.reason if known is not None else "")
                pending += self._between(position, stop, why)
                self._damage += self._between(position, position + size, why)
                continue
            for each in joined(pending):
                self.add(each)
            pending = []
            self.end = position + size
            if found is Kind.RECORD:
                self._take(position, size, record)
            if progress:
                progress(position - start, total)
        self._settle()
        return self

    def _between(self, start: int, stop: int, reason: str) -> list[Damage]:
        return damage_between(self._store.paths, self._segment_bytes, start, stop, reason)

    def _take(self, position: int, size: int, record: memoryview) -> None:
        fields = outline(record)
        self._stored_ms = fields.store_timestamp_ms
        if not fields.is_queued:
            return
        queue, named = (fields.topic.decode(errors="replace"), fields.queue_id), fields.queue_offset
        is_next = self._next.get(queue, (-1, -1))[0] == named
        if is_next and position not in self._bent and self._order.take_next(queue, named):
            self._next[queue] = (named + 1, position)
            return
        # More records than this cannot stand before it.
        room = (position - self._store.log_start) // SMALLEST_RECORD_BYTES
        # the first one of a queue may have lost those before it, or begin wherever it likes
        begins = named if self._store.log_start or named > room else 0
        slot, past = self._next.get(queue, (begins, -1))
        # no checksum covers it: a jump over more messages than there was room for is damage
        placed = _Placed(position, size, self._stored_ms, slot if named - slot > room else -1)
        if named < 0 or position in self._bent:
            self.ranges.append(self._misplaced(placed._replace(expected=slot)))
            self._room.append(size)
            return
        # of a first record that begins anywhere nobody knows whether it is the first
        self._begins = slot if slot < named else None
        began = self._order.begun_again.get(queue)
        if not self._order.take(queue, named, placed, room=room)[1]:
            return  # the next one of its queue tells
        if self._order.begun_again.get(queue) != began:
            slot = named  # what was taken for its first record is not of it
        if slot < named:
            self._gaps.setdefault(queue, []).append(_Gap(slot, named, past, position))
        self._first.setdefault(queue, named)
        # a slot that comes again must not take the queue back
        self._next[queue] = (max(slot, named + 1), position)

    def _misplaced(self, placed: _Placed) -> RangeRepair:
        """A whole record whose queue or queue offset cannot be, as the damage that it is."""
        at, end = placed.position, placed.position + placed.size
        fields = outline(memoryview(self._store.read_log(at, placed.size)))
        early = f"where {placed.expected} was to come" if placed.expected >= 0 else ""
        reason = f"queue offset {fields.queue_offset}, {early or 'which is not its own'}"
        if at in self._bent:
            named = fields.topic.decode(), fields.queue_id, fields.queue_offset
            reason = "names {}/{} {}, and stands in another queue or slot".format(*named)
        (damage,) = damage_between(self._store.paths, self._segment_bytes, at, end, reason)
        return RangeRepair(damage, placed.stored_ms, [], self._kept_in(damage))

    def _settle(self) -> None:
        """After the walk: what has no slot is damage, and of what was missing some has come."""
        self._order.finish(is_all=True)
        self._first |= self._order.begun_again
        found = self._order.left_out + self._order.overtaken + self._stood_at_ends()
        wrong = [self._misplaced(each) for each in found]
        self.ranges = sorted(self.ranges + wrong, key=lambda each: each.damage.position)
        self._room = [self._room_in(each.damage) for each in self.ranges]
        for queue, gaps in self._gaps.items():
            self._gaps[queue] = [
                gap._replace(low=max(gap.low, low), high=min(gap.high, high))
                for gap in gaps
                for low, high in self._order.missing.get(queue, ())
                if max(gap.low, low) < min(gap.high, high)
            ]

    @property
    def vacant(self) -> dict[Queue, list[tuple[int, int]]]:
        """Slots of each queue that no record names: before its first, after its last, and gaps."""
        found = {k: [(0, self._first[k]), (end, sys.maxsize)] for k, (end, _) in self._next.items()}
        for key, gaps in self._gaps.items():
            found.setdefault(key, []).extend((gap.low, gap.high) for gap in gaps)
        return found

    def _stood_at_ends(self) -> list[_Placed]:
        """Records that come last of their queues and name taken slots. They may be the first ones
        of topics that were made again, unless an entry at its queue's end leads to them."""
        found = []
        for queue in self._store.queues() if self._order.undecided else ():
            key = queue.topic, queue.queue_id
            tail = set(self._order.tails.get(key, ())).intersection(self._order.undecided)
            at = max(self._order.ends.get(key, 0), queue.first_slot)
            for start, stop in queue.spans(at, queue.max_offset) if tail else ():
                stood = set(queue.entries(start, stop)["offset"].tolist())
                found += [each for each in tail if each.position in stood]
        return found

    def take_ends(self, known: Mapping[str, QueueEnd]) -> None:
        """Queues that are known to have gone on have lost what is missing after their last one. So
        have those whose last records name wrong slots, and those of records in the damage."""
        named: dict[tuple[str, int], tuple[int, int]] = {}
        for each in self.ranges:
            for topic, queue_id, slot in each.lost:
                here = slot + 1, each.damage.position - 1
                named[topic, queue_id] = max(here, named.get((topic, queue_id), here))
        nameless = {each.damage.position for each in self.ranges if not each.lost}
        ends = dict.fromkeys(self._order.tails, QueueEnd())
        for name, known_end in known.items():
            topic, _, number = name.rpartition("/")
            ends[topic, int(number)] = known_end
        claimed = self._claimed_ends([self._next, named, ends]) if self.ranges else {}
        for queue, (_, known_end) in claimed.items():
            self.claimed["{}/{}".format(*queue)] = ends[queue] = known_end
        for queue, (end, _) in ends.items():
            # of one that has nothing here all has expired, but for what its records claim
            begin = claimed[queue].begin if queue in claimed else end
            last = self._next.get(queue, named.get(queue, (begin, -1)))
            lost = max(last, named.get(queue, last))
            misplaced = {each.position for each in self._order.tails.get(queue, ())} & nameless
            end = max(end, lost[0] + len(misplaced))
            for (slot, past), stop in ((last, lost[0]), (lost, end)):
                if slot < stop:
                    gap = _Gap(slot, stop, past, sys.maxsize)
                    self._gaps.setdefault(queue, []).append(gap)

    def _claimed_ends(self, known: list[Mapping[Queue, tuple[int, int]]]) -> dict[Queue, Claimed]:
        """What the records in the damage tell, by what is known already of the queues' ends."""
        store = self._store
        files = {(each.topic, each.queue_id): (each.max_offset, -1) for each in store.queues()}
        new = {queue: (0, -1) for queue in queues_of(store.paths.topics)}
        claims = claims_of(store.paths, joined(self._damage), self._segment_bytes)
        damage = [each.damage for each in self.ranges]
        return claimed_ends(claims, damage, [*known, files, new])

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
                # the record after the gap may be damage itself: see _settle
                beyond = int(np.searchsorted(starts, gap.before, "right"))
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
