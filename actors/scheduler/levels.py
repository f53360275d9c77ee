"""The delay levels: each follows its queue of SCHEDULE_TOPIC_XXXX, and puts what is due.

The consume queue's entries say when (see delay_levels), so no record is read before its time.
Levels do not wait for each other: each has its own frames and its own place.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.actors.scheduler.copies import Batch, put_frames, put_in_place
from penstock.actors.scheduler.surroundings import Surroundings
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.messaging.delivered import Copy, taken_apart

# Entries in one look, and bytes of copies that one turn of a level makes at most.
ENTRIES_AT_ONCE = 2000
TURN_BYTES = 512 << 10


class Level:
    """One level. All entries below `done` have their outcome; those below `next` were put."""

    def __init__(self, level: int, delay_ms: int, start: int, around: Surroundings) -> None:
        self.level = level
        self.next = self.done = start
        self.due_ms = -1  # when the first that was not put is due; -1: look
        self.delivered = self.undelivered = 0
        self._delay_ms = delay_ms
        self._around = around
        self._batches: deque[Batch] = deque()
        # the first that seems to be due much too late, and when it was seen: see _is_due
        self._doubted: tuple[int, int] | None = None

    def ends(self) -> tuple[int, int]:
        """The queue's min and max offset; zeros if there is no queue."""
        slot = self._around.queues.queues(SCHEDULE_TOPIC).get(self.level - 1)
        return (0, 0) if slot is None else self._around.queues.range(slot)

    def begin(self, log_end: int) -> None:
        """A run begins, and the queue has the whole log up to `log_end`."""
        end = self._around.end_before(SCHEDULE_TOPIC, self.level - 1, log_end)
        # Nobody delivers early, so what was due after the newest message has not come, whatever a
        # file says that nobody here has written: a digit of it may have changed.
        newest_ms = self._around.deliveries.until_ms
        if newest_ms >= 0:
            after = self._around.first_due_after(SCHEDULE_TOPIC, self.level - 1, newest_ms)
            end = min(end, after)
        self.next = self.done = min(self.done, end)

    def turn(self, now_ms: int, monotonic_ms: int) -> int:
        """Put some of what is due; returns how many. `now_ms` is the clock that stamps messages."""
        if self.due_ms > now_ms and self._doubted is None:
            return 0
        slot = self._around.queues.queues(SCHEDULE_TOPIC).get(self.level - 1)
        if slot is None:
            return 0
        low, high = self._around.queues.range(slot)
        if self.next < low:  # expired: RocketMQ skips them, too
            self._pass_over(low - self.next)
            self.next = low
        stop = min(high, self.next + ENTRIES_AT_ONCE)
        raw = self._around.queues.entries(slot, self.next, stop) if self.next < stop else b""
        return self._put(raw, now_ms, monotonic_ms)

    def _put(self, raw: bytes, now_ms: int, monotonic_ms: int) -> int:
        copies: list[tuple[Copy, Any]] = []
        are_doubtful = False
        size, first = 0, self.next
        self.due_ms = -1
        for position, length, due_ms in ENTRY.iter_unpack(raw):
            if not self._is_due(due_ms, now_ms, monotonic_ms):
                self.due_ms = due_ms
                break
            if size >= TURN_BYTES:
                self.due_ms = now_ms
                break
            self.next += 1
            if length == BLANK_SIZE:
                continue
            copy = self._copy(position, length, due_ms)
            if copy is None:
                continue
            size += len(copy.record)
            # one that is due later is put because the clock was set back, so its time says nothing
            doubtful = self._around.doubt.holds(due_ms if due_ms <= now_ms else 0, position)
            if doubtful != are_doubtful:
                self._send(copies, are_doubtful)
                copies, are_doubtful = [], doubtful
            copies.append((copy, self.next))
        self._send(copies, are_doubtful)
        if not self._batches:
            self.done = self.next
        return self.next - first

    def _send(self, copies: list[tuple[Copy, Any]], doubtful: bool) -> None:
        sender = self._around.sender
        self._batches += put_frames(sender, self, copies, sender.stored_after if doubtful else -1)

    def _is_due(self, due_ms: int, now_ms: int, monotonic_ms: int) -> bool:
        """Whether it is time. A message cannot have to wait longer than its level says, unless the
        clock has gone back since it was stored: then it waits that long from now."""
        if due_ms <= now_ms:
            self._doubted = None
            return True
        if due_ms <= now_ms + self._delay_ms:
            self._doubted = None
            return False
        if self._doubted is None or self._doubted[0] != self.next:
            self._doubted = self.next, monotonic_ms
        return monotonic_ms - self._doubted[1] >= self._delay_ms

    def _copy(self, place: int, size: int, due_ms: int) -> Copy | None:
        """The copy to deliver of this record; None if there is nothing to deliver."""
        record = self._around.record(place, size)
        if record is None:
            self._pass_over(1)
            return None
        return self._around.copy(taken_apart(record), due_ms, timed=False, owner=self)

    def _pass_over(self, count: int) -> None:
        self.undelivered += count

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its outcome."""
        batch.settled = True
        if stored:
            self.delivered += len(batch.copies)
        else:
            self._pass_over(len(batch.copies))
        while self._batches and self._batches[0].settled:
            self.done = self._batches.popleft().notes[-1]
        if not self._batches:
            self.done = self.next

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """Frames in the place of one that was refused."""
        put_in_place(self._batches, batch, parts)

    def first_place(self) -> int:
        """The log offset of the first record that is not delivered; -1 if all are."""
        slot = self._around.queues.queues(SCHEDULE_TOPIC).get(self.level - 1)
        if slot is None:
            return -1
        low, high = self._around.queues.range(slot)
        at = max(low, self.done)
        if at >= high:
            return -1
        position, _, _ = ENTRY.unpack(self._around.queues.entries(slot, at, at + 1))
        return int(position)

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left that an earlier life may have put."""
        slot = self._around.queues.queues(SCHEDULE_TOPIC).get(self.level - 1)
        if slot is None or self._around.doubt.due_ms < 0:
            return True
        low, high = self._around.queues.range(slot)
        at = max(low, self.done)
        if at >= high:
            return True
        position, _, due_ms = ENTRY.unpack(self._around.queues.entries(slot, at, at + 1))
        return not self._around.doubt.holds(due_ms, position)

    @property
    def pending(self) -> int:
        low, high = self.ends()
        return max(0, high - max(low, self.done))
