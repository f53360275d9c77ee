"""Decides which records have the queue offset that they name, when several name one slot.

No checksum covers that number by default. A flipped bit in it sends a record to the slot of another
whole message of its queue, and whichever comes last would be served there. The order along the log
tells them apart: each record of a queue names one slot more than the queue's record before it.

    105 106 107 108 ... 170 [107] 172    the second 107 stands where 171 was to come: left out
    41 42 [107] 44 45 ... 106 107 108    the second 107 follows 106: it takes the slot
    0 1 2 ... 170 0 1 2 3                goes on from there: RocketMQ made the topic again
    [42] 59 60 61 62 ...                 no room for what would lie between: the first is left out
    [99] 41 42 43 44 ...                 a topic that is made again begins at 0: the same
    41 42 [107] 44 45                    the log ends: it was 43, though the reput has served 107

A record that goes back to a slot that is taken is therefore doubted until the next record of its
queue has come. If two in a row name one slot, the second has it if nothing leads up to the first.
Otherwise either may be of another queue: the caller may know which, or the first stays. A record
without a slot was counted all the same when it was stored. Those that no record of their queue
follows are `tails`: whoever finds a queue's end by the log adds them, or their offsets would be
given again. Bytes and files stay out: the caller says what a record is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Queue = TypeVar("Queue")
Record = TypeVar("Record")


class _Doubted(NamedTuple, Generic[Record]):
    """A record, the slot that it names, and whether the one before it named it too."""

    record: Record
    slot: int
    is_again: bool


class _Leapt(NamedTuple, Generic[Queue, Record]):
    """A record that names a slot past the expected one, and both slots."""

    queue: Queue
    expected: int
    slot: int
    record: Record


class SlotOrder(Generic[Queue, Record]):
    """Takes the records of a log in their order, and says which have their slots."""

    def __init__(
        self,
        end_of: Callable[[Queue], int | None] = lambda queue: None,
        is_known: Callable[[Queue, int, Record], bool] = lambda queue, slot, record: False,
    ) -> None:
        """`end_of` says where a queue that has slots already goes on; None means at any slot.
        `is_known` says whether this record is known to have been in this slot."""
        self._end_of = end_of
        self._is_known = is_known
        # of each queue: its highest slot plus one, and the slot after that of its last record
        self.ends: dict[Queue, int] = {}
        self._next: dict[Queue, int] = {}
        # [start, stop) of slots below the end that no record has
        self.missing: dict[Queue, list[tuple[int, int]]] = {}
        # records that came without the one before them, by the slot that they took
        self._ahead: dict[Queue, dict[int, Record]] = {}
        self._doubted: dict[Queue, _Doubted[Record]] = {}
        # A queue's first record, until the next ones have told whether it is of this queue; and the
        # record for which the log had no room after that one, with the slot that it names.
        self._alone: dict[Queue, Record] = {}
        self._leaping: dict[Queue, tuple[int, Record]] = {}
        # where a queue begins if its first record turned out not to be of this queue
        self.begun_again: dict[Queue, int] = {}
        # Records without a slot: those that never had one; those whose slot a later one has taken;
        # and those that never had one, though the slot may be theirs.
        self.left_out: list[Record] = []
        self.overtaken: list[Record] = []
        self.undecided: list[Record] = []
        # those of them that came after the record at their queue's end
        self.tails: dict[Queue, list[Record]] = {}
        # Records that leapt over slots of which the second came next: so the first was theirs.
        self._contradicted: list[_Leapt[Queue, Record]] = []
        self._leapt: dict[Queue, _Leapt[Queue, Record]] = {}

    def end(self, queue: Queue, slot: int) -> int:
        """The highest slot of a queue plus one; `slot` where nothing is known of it yet."""
        if queue not in self.ends:
            known = self._end_of(queue)
            self.ends[queue] = slot if known is None else known
            if known is not None:
                self._next[queue] = known
        return self.ends[queue]

    def is_alone(self, queue: Queue) -> bool:
        """Whether the next record may still show that a queue's first one is not of this queue."""
        return queue in self._alone

    def take(
        self, queue: Queue, slot: int, record: Record, count: int = 1, room: int = sys.maxsize
    ) -> tuple[Record | None, bool]:
        """Take a record, and `count` - 1 more that follow it slot by slot. These always have their
        slots, unless the first names one for which the log has no room: at most `room` messages lie
        between it and the end. Then either none is taken and the end stays, or all are.

        Returns the record before it, if that was doubted and has its slot after all; and whether
        this one has its own. If not, it is doubted or left out.
        """
        if count == 1 and self.take_next(queue, slot):
            return None, True
        self._contradict(queue, slot)
        landed = self._land(queue, slot)
        too_far = slot - self.end(queue, slot) > room
        if too_far and not self._leaps_rightly(queue, slot, record, count):
            self.tails.setdefault(queue, []).append(record)
            return landed, False
        # only older records have expired, so a topic that began again is here from its slot 0 on
        falls_back = queue in self._alone and 0 < slot < self.ends[queue] - 1
        accepted = self._resolve(queue, slot)
        if falls_back and (count > 1 or slot == self._next[queue]):
            self._begin_again(queue, slot if accepted is None else slot - 1)
            self.ends[queue] = self._next[queue] = slot
        end, expected = self.end(queue, slot), self._next.get(queue)
        accepted = landed if accepted is None else accepted
        if not falls_back:
            self._alone.pop(queue, None)
        if expected is None and count == 1:
            self._alone[queue] = record
        ahead = self._ahead.setdefault(queue, {})
        is_again = slot + 1 == expected
        if is_again:
            has_slot = slot in ahead or self._is_known(queue, slot, record)
        else:
            # several in a row are more likely right than what they go back over
            has_slot = slot >= end or slot == expected or count > 1 or self._is_missing(queue, slot)
        if not has_slot and count > 1:
            self.undecided.append(record)
        elif not has_slot:
            self._doubted[queue] = _Doubted(record, slot, is_again)
        for number in [each for each in ahead if slot <= each < slot + count]:
            if number > slot or has_slot:
                self.overtaken.append(ahead.pop(number))
        if slot > end:
            self.missing.setdefault(queue, []).append((end, slot))
        if slot > end and count == 1:  # several in a row are more likely right
            self._leapt[queue] = _Leapt(queue, end, slot, record)
        if slot > end or slot and expected is None:
            ahead[slot] = record
        self._fill(queue, slot, slot + count)
        if slot + count > end:
            self.tails.pop(queue, None)
        elif not has_slot:
            self.tails.setdefault(queue, []).append(record)
        elif accepted is not None:
            self.tails[queue].remove(accepted)
        self.ends[queue], self._next[queue] = max(end, slot + count), slot + count
        return accepted, has_slot

    def is_next(self, queue: Queue, slot: int) -> bool:
        """Whether a record has the slot after all others of its queue, follows the queue's last one
        in the log, and no record of the queue waits for what comes. Nearly every record does."""
        return (
            self._next.get(queue) == slot
            and self.ends[queue] == slot
            and queue not in self._leapt
            and queue not in self._alone  # which has the queues of `_leaping`, too
            and queue not in self._doubted
        )

    def take_next(self, queue: Queue, slot: int, count: int = 1) -> bool:
        """Take a record that is next, and `count` - 1 more that follow it slot by slot."""
        if not self.is_next(queue, slot):
            return False
        self.tails.pop(queue, None)
        self.ends[queue] = self._next[queue] = slot + count
        return True

    def _contradict(self, queue: Queue, slot: int) -> None:
        """Note the record that leapt, if it leapt over `slot`, which comes next, and over exactly
        one slot before that."""
        leapt = self._leapt.pop(queue, None)
        if leapt is not None and slot == leapt.expected + 1:
            self._contradicted.append(leapt)

    def _leaps_rightly(self, queue: Queue, slot: int, record: Record, count: int) -> bool:
        """Whether a record is taken although the log has no room for it after the queue's end.

        Either it or what it contradicts names a wrong slot. Several in a row are more likely right
        than one. Between one and one, the queue's next record decides. A record that nothing speaks
        for is left out.
        """
        if queue not in self._alone:
            self.left_out.append(record)
        elif count == 1:
            self._leaping[queue] = slot, record
        else:
            self._begin_again(queue, slot)
            return True
        return False

    def _land(self, queue: Queue, slot: int) -> Record | None:
        """The record that leapt, if it has its slot because its queue's next record names a `slot`
        after it, and not one after the record that it contradicts."""
        leaping_slot, record = self._leaping.pop(queue, (slot, None))
        if record is None:
            return None
        if slot <= leaping_slot:
            self.left_out.append(record)
            return None
        self._begin_again(queue, leaping_slot)
        self.take(queue, leaping_slot, record)
        return record

    def _begin_again(self, queue: Queue, slot: int) -> None:
        """Have a queue begin at this slot: the one record before that is not of this queue."""
        self.overtaken.append(self._alone.pop(queue))
        self._ahead.pop(queue, None)
        self._next.pop(queue, None)
        self.ends[queue] = self.begun_again[queue] = slot

    def finish(self, *, is_all: bool = False) -> None:
        """The log has ended, and nothing more is taken: a doubted record stays out, though it may
        be the first of a topic that was made again.

        `is_all` says that the caller serves nothing before it has read all of the log. Then a
        record that leapt loses its slot if the next of its queue contradicts it and no other has
        taken the slot since; what it leapt over was never there.
        """
        self.undecided += [each.record for each in self._doubted.values()]
        self.left_out += [record for _, record in self._leaping.values()]
        for each in self._contradicted if is_all else ():
            if self._ahead[each.queue].get(each.slot) == each.record:  # no other has taken its slot
                self.overtaken.append(each.record)
                self._fill(each.queue, each.expected + 1, each.slot)

    def _resolve(self, queue: Queue, slot: int) -> Record | None:
        """The doubted record of a queue, if it has its slot because `slot` comes next."""
        doubted = self._doubted.pop(queue, None)
        if doubted is None:
            return None
        if doubted.is_again and slot != doubted.slot + 2:
            self.undecided.append(doubted.record)
        elif not doubted.is_again and slot == doubted.slot + 1:
            return doubted.record
        else:
            self.left_out.append(doubted.record)
        return None

    def _is_missing(self, queue: Queue, slot: int) -> bool:
        return any(start <= slot < stop for start, stop in self.missing.get(queue, ()))

    def _fill(self, queue: Queue, start: int, stop: int) -> None:
        if queue in self.missing:
            self.missing[queue] = [
                (low, high)
                for first, last in self.missing[queue]
                for low, high in ((first, min(last, start)), (max(first, stop), last))
                if low < high
            ]
