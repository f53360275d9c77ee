"""A repair's walk through the log: its damaged ranges, and the slots that no record fills.

A whole record that names another message's slot, or a queue in which it does not stand, is damage
too, as no checksum covers these. repair_ranges.py finds out what a range held. Only reads.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from penstock.maintenance.displaced_records import Queue
from penstock.maintenance.kept_bytes import kept_in
from penstock.maintenance.whole_stretches import Stretch, steps_but
from penstock.shared.config import Config
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES
from penstock.shared.formats.record_outline import outline
from penstock.shared.formats.tombstone import LostMessage, is_replacement
from penstock.shared.layout import BLANK_HEADER_BYTES
from penstock.shared.log.damage import Damage, DamagedRanges, damage_between, joined
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.slot_order import SlotOrder
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.directory import StoreDirectory

Progress = Callable[[int, int], None]
# finds stretches in which everything is in order, using other processes, or finds none
Look = Callable[[StoreDirectory], Generator[Stretch, None, None]]


class RangeRepair(msgspec.Struct):
    """A damaged range, the messages it held as far as they are known, and what replaces it."""

    damage: Damage
    stored_ms: int  # of the record before it, so that times do not go back along the log
    lost: list[LostMessage]  # only those of which an entry or a gap in its queue tells
    kept_in: str  # the file in the quarantine that has, or will have, the range's bytes


class Gap(NamedTuple):
    """Slots [low, high) of a queue that no record has, and the log offsets of its neighbours."""

    low: int
    high: int
    past: int
    before: int


class _Placed(NamedTuple):
    """A whole record, and the store time of the record that its replacement would follow."""

    position: int
    size: int
    stored_ms: int
    expected: int = -1  # the slot that was next in its queue, if it names an impossible one


class Walk:
    """One pass over the log: its damage, and the slots that no record fills."""

    def __init__(
        self,
        store: StoreDirectory,
        config: Config,
        found: Recovered | None,
        begun: Sequence[Damage],
        bent: Collection[int] = (),
    ) -> None:
        self.store, self._bent = store, bent  # log offsets of whole records that are damage, too
        self._bent_in_order = sorted(bent)
        # Records of a topic that begin before its end here are of one that was deleted. They name
        # slots that those of a topic of the same name have lost, and fill none of them.
        self._gone = load_deleted_topics(store.paths.deleted_topics).ends()
        self._begun = DamagedRanges(begun)
        self._replaced: dict[int, int] = {}  # by a killed repair: position and size of its records
        # A start knows more than the bytes tell: where the log ends, and what was torn. Whatever
        # stands past that end, for example a blank of another segment, does not end damage.
        self._known_end = found.log_end if found is not None else sys.maxsize
        self._known = DamagedRanges(found.quarantined if found is not None else ())
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self.ranges: list[RangeRepair] = []
        self.end = store.log_start  # the end of the last whole record or blank
        self._stored_ms = 0
        self.next: dict[tuple[str, int], tuple[int, int]] = {}  # slot, and the position before it
        self.first: dict[tuple[str, int], int] = {}  # slot of the first record that is left
        self.gaps: dict[tuple[str, int], list[Gap]] = {}  # of each queue, in ascending order
        self.room: list[int] = []  # bytes that each range has for more tombstones
        self._pending: list[Damage] = []  # damage so far: a whole record may follow it, or none
        self._begins: int | None = None  # where a queue may begin whose first record comes
        self.damage: list[Damage] = []  # all that was found, even past the known end
        self.order: SlotOrder[tuple[str, int], _Placed] = SlotOrder(lambda queue: self._begins)

    def add(self, damage: Damage) -> None:
        kept = kept_in(self.store.paths, damage, self._replaced)
        self.ranges.append(RangeRepair(damage, self._stored_ms, [], kept))
        self.room.append(self._room_in(damage))

    def _room_in(self, damage: Damage) -> int:
        """Bytes for tombstones: at a segment's end there must be a blank."""
        return damage.size - BLANK_HEADER_BYTES * (damage.end % self._segment_bytes == 0)

    def run(self, progress: Progress | None, look: Look) -> Walk:
        start, total = self.store.log_start, sum(each.size for each in self.store.segments)

        def told(end: int) -> None:
            if progress:
                progress(end - start, total)

        def take(stretch: Stretch) -> bool:
            is_taken = self._take_stretch(stretch)
            if is_taken:
                told(stretch.end)
            return is_taken

        with closing(look(self.store)) as stretches:
            for position, found, size, record, reason in steps_but(self.store, stretches, take):
                if found is Kind.END:
                    break  # damage at the very end is a torn tail, which a start handles
                if not self._is_lost(position, found, size, record, reason):
                    self._add_pending()
                    self.end = position + size
                    if found is Kind.RECORD:
                        self._take(position, size, record)
                    told(position)
        self._settle()
        return self

    def _is_lost(
        self, position: int, found: Kind, size: int, record: memoryview, reason: str
    ) -> bool:
        """Whether a step of the log is damage. If so, it is kept until something follows it."""
        if position >= self._known_end:
            # a segment that was made ahead may have been exchanged with one of the log
            self.damage += self._between(position, position + size, reason)
            return True
        stop = min(position + size, self._known_end)
        # any bytes may name the segment's end: damage ends only at a record, not at a blank
        lost = found is Kind.DAMAGED or bool(self._pending) and found is Kind.BLANK
        if found is Kind.RECORD and self._begun and self._begun.at(position) is not None:
            lost = is_replacement(decode_record(record))
            self._replaced |= {position: size} if lost else {}
        if lost or self._known and self._known.touches(position, stop - position):
            known = self._begun.at(position) or self._known.before(stop - 1)
            why = reason or (known.reason if known is not None else "")
            self._pending += self._between(position, stop, why)
            self.damage += self._between(position, position + size, why)
            return True
        return False

    def _add_pending(self) -> None:
        for each in joined(self._pending):
            self.add(each)
        self._pending = []

    def _take_stretch(self, stretch: Stretch) -> bool:
        """Take whole records as one, if nothing known contradicts them, and each queue goes on with
        its next slot. Returns whether they were taken."""
        size, bent = stretch.end - stretch.start, self._bent_in_order
        if stretch.end > self._known_end or any(
            each.touches(stretch.start, size) for each in (self._begun, self._known) if each
        ):
            return False
        if bisect_left(bent, stretch.start) < bisect_left(bent, stretch.end):
            return False
        for run in stretch.runs:
            queue = run.topic, run.queue_id
            if self.next.get(queue, (-1, -1))[0] != run.first:
                return False
            if stretch.start < self._gone.get(run.topic, 0):
                return False
            if not self.order.is_next(queue, run.first):
                return False
        self._add_pending()
        for run in stretch.runs:
            queue = run.topic, run.queue_id
            self.order.take_next(queue, run.first, run.end - run.first)
            self.next[queue] = run.end, run.last_position
        self.end, self._stored_ms = stretch.end, stretch.stored_ms
        return True

    def _between(self, start: int, stop: int, reason: str) -> list[Damage]:
        return damage_between(self.store.paths, self._segment_bytes, start, stop, reason)

    def _take(self, position: int, size: int, record: memoryview) -> None:
        fields = outline(record)
        self._stored_ms = fields.store_timestamp_ms
        if not fields.is_queued:
            return
        queue, named = (fields.topic.decode(errors="replace"), fields.queue_id), fields.queue_offset
        if position < self._gone.get(queue[0], 0):
            return
        is_next = self.next.get(queue, (-1, -1))[0] == named
        if is_next and position not in self._bent and self.order.take_next(queue, named):
            self.next[queue] = (named + 1, position)
            return
        # at most this many records can stand before it
        room = (position - self.store.log_start) // SMALLEST_RECORD_BYTES
        # a queue's first record may follow lost ones, or the queue may begin anywhere
        begins = named if self.store.log_start or named > room else 0
        slot, past = self.next.get(queue, (begins, -1))
        # no checksum covers the slot: a jump over more messages than there was room for is damage
        placed = _Placed(position, size, self._stored_ms, slot if named - slot > room else -1)
        if named < 0 or position in self._bent:
            self.ranges.append(self._misplaced(placed._replace(expected=slot)))
            self.room.append(size)
            return
        # if a first record may begin anywhere, it may really not be the first
        self._begins = slot if slot < named else None
        began = self.order.begun_again.get(queue)
        if not self.order.take(queue, named, placed, room=room)[1]:
            return  # the next record of its queue decides
        if self.order.begun_again.get(queue) != began:
            slot = named  # what counted as its first record does not belong to it
        if slot < named:
            self.gaps.setdefault(queue, []).append(Gap(slot, named, past, position))
        self.first.setdefault(queue, named)
        # a slot that comes again must not move the queue back
        self.next[queue] = (max(slot, named + 1), position)

    def _misplaced(self, placed: _Placed) -> RangeRepair:
        """A whole record with an impossible queue or queue offset, as a damaged range."""
        at, end = placed.position, placed.position + placed.size
        fields = outline(memoryview(self.store.read_log(at, placed.size)))
        early = f"where {placed.expected} was to come" if placed.expected >= 0 else ""
        reason = f"queue offset {fields.queue_offset}, {early or 'which is not its own'}"
        if at in self._bent:
            named = fields.topic.decode(), fields.queue_id, fields.queue_offset
            reason = "names {}/{} {}, and stands in another queue or slot".format(*named)
        (damage,) = damage_between(self.store.paths, self._segment_bytes, at, end, reason)
        return RangeRepair(
            damage, placed.stored_ms, [], kept_in(self.store.paths, damage, self._replaced)
        )

    def _settle(self) -> None:
        """After the walk: records without a slot are damage, and some missing ones came later."""
        self.order.finish(is_all=True)
        self.first |= self.order.begun_again
        found = self.order.left_out + self.order.overtaken + self._stood_at_ends()
        wrong = [self._misplaced(each) for each in found]
        self.ranges = sorted(self.ranges + wrong, key=lambda each: each.damage.position)
        self.room = [self._room_in(each.damage) for each in self.ranges]
        for queue, gaps in self.gaps.items():
            self.gaps[queue] = [
                gap._replace(low=max(gap.low, low), high=min(gap.high, high))
                for gap in gaps
                for low, high in self.order.missing.get(queue, ())
                if max(gap.low, low) < min(gap.high, high)
            ]

    @property
    def vacant(self) -> dict[Queue, list[tuple[int, int]]]:
        """Slots of each queue that no record names: before its first, after its last, and gaps."""
        found = {k: [(0, self.first[k]), (end, sys.maxsize)] for k, (end, _) in self.next.items()}
        for key, gaps in self.gaps.items():
            found.setdefault(key, []).extend((gap.low, gap.high) for gap in gaps)
        return found

    def _stood_at_ends(self) -> list[_Placed]:
        """Records that come last in their queues and name taken slots. They may be the first ones
        of topics that were made again, unless an entry at the queue's end leads to them."""
        found = []
        for queue in self.store.queues() if self.order.undecided else ():
            key = queue.topic, queue.queue_id
            tail = set(self.order.tails.get(key, ())).intersection(self.order.undecided)
            at = max(self.order.ends.get(key, 0), queue.first_slot)
            for start, stop in queue.spans(at, queue.max_offset) if tail else ():
                stood = set(queue.entries(start, stop)["offset"].tolist())
                found += [each for each in tail if each.position in stood]
        return found
