"""Messages for any time: from the wheel topic's queue into files, and out when they are due.

    wheel queue -> read ahead -> calendar -> the minute at hand -> frames -> outcomes

Two saved numbers say how far this is: `indexed`, an offset of the queue, and `delivered_ms`, a
time. A message whose time has passed already when it is found holds `indexed` back until it has its
outcome, so that whatever `delivered_ms` leaves out, `indexed` covers.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from penstock.actors.scheduler.calendar import Calendar
from penstock.actors.scheduler.copies import Batch, put_frames, put_in_place
from penstock.actors.scheduler.due_heap import DueHeap, Held, held, unheld
from penstock.actors.scheduler.progress import Progress, Roll
from penstock.actors.scheduler.surroundings import Surroundings
from penstock.actors.scheduler.timer_files import (
    HOUR_MINUTES,
    HOUR_MS,
    MINUTE_MS,
    RECALL,
    Entries,
    TimerFiles,
)
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.messaging.delayed import (
    RECALL_COMING,
    real_place,
    recall_key,
    recalled_key,
)
from penstock.shared.messaging.delivered import Copy, Waiting, taken_apart
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.queue.entry_arrays import entries as queue_entries

# Entries of the wheel queue to read in one turn, and timers to take in one turn.
READ_AT_ONCE = 4000
TAKEN_AT_ONCE = 2000
# A minute is loaded this long before it begins.
AHEAD_MS = 500
# A recall also counts for messages that turn out to be due later than it says, by up to this: the
# broker's clock sets the due time of a message with a relative time, and the sender used its own.
RECALL_MS = 10 * MINUTE_MS
_NEVER = 1 << 62


class _Note(NamedTuple):
    due_ms: int
    late: int


class Timers:
    """All timers of a store. `now_ms` in calls is the clock that stamps messages."""

    def __init__(self, around: Surroundings, files: TimerFiles) -> None:
        self._around, self._queues = around, around.queues
        self.calendar = Calendar(files)
        self.record = around.record
        self._heap = DueHeap()
        # the current roll
        self.rolling: Roll | None = None
        self._batches: deque[Batch] = deque()
        # for each turn: when its last timer is due, and a log offset below which it has no copy
        self._puts: deque[tuple[int, int]] = deque()
        self._recalled: dict[bytes, int] = {}
        # look at the queue that found late ones -> its start in queue and log, and how many remain
        self._late: dict[int, list[int]] = {}
        self._looks = 0
        # the queue is read up to this log offset; -1: nothing is known
        self._read_to = -1
        # timers due up to `_open_ms` may be taken; `_waiting` is (a later such time, the log offset
        # up to which the queue must be read first)
        self._open_ms = -1
        self._waiting: tuple[int, int] | None = None
        self._on_way = 0
        self.delivered = self.undelivered = 0

    def start(self, progress: Progress, is_whole: bool, wrote: int) -> None:
        """Go on where the last life was. Files that are not whole have what was synced, after a
        power failure, say; what they have stands in the log below `wrote`."""
        self.rolls = list(progress.rolls)
        self.indexed = progress.indexed if is_whole else progress.synced
        # of these, what is due up to `delivered_ms` is delivered, and is not even looked at
        self._known = progress.indexed
        self.frontier_ms = self._delivered_ms = progress.delivered_ms
        self._minute = max(0, progress.delivered_ms // MINUTE_MS) - 1
        # No minute is loaded until everything that the last life may have put into the files is
        # read again. After a broker's start the queue may lack some of it, so its end does not
        # count at first.
        self._begun_at, self._catch_up = wrote, -1
        split_hour = progress.split_hour if is_whole else progress.delivered_ms // HOUR_MS - 1
        self.calendar.start(max(-1, split_hour), progress.delivered_ms)
        self._load_recalls()

    def begin(self, log_end: int) -> None:
        """A run begins, and the queue has the whole log up to `log_end`."""
        end = self._around.end_before(TIMER_TOPIC, 0, log_end)
        self.indexed, self._known = min(self.indexed, end), min(self._known, end)

    @property
    def pending(self) -> int:
        """About how many timers have no outcome yet."""
        return len(self.calendar) + len(self._heap) + self._on_way

    # --- from the queue into the files ---

    def read_ahead(self, now_ms: int) -> int:
        """Put more of the wheel queue into the files, and near hours into their minutes; returns
        how many entries. Raises OSError."""
        done = self.calendar.split(now_ms)
        queued = self._around.queued()
        slot = self._queues.queues(TIMER_TOPIC).get(0)
        low, high = (0, 0) if slot is None else self._queues.range(slot)
        start = max(low, self.indexed)
        if self._catch_up < 0 and queued >= self._begun_at:
            self._catch_up = max(start, high)
        if slot is None or start >= high:
            self.indexed, self._read_to = start, max(self._read_to, queued)
            return done
        raw = self._queues.entries(slot, start, min(high, start + READ_AT_ONCE))
        read = queue_entries(raw)
        entries = self._around.timers(raw, self._known - start, self._delivered_ms)
        if len(entries):
            self._keep(entries, start, int(read["offset"][(read["size"] != BLANK_SIZE).argmax()]))
        self.indexed = start + len(read)
        whole = read[read["size"] != BLANK_SIZE]
        if len(whole):
            self._read_to = max(self._read_to, int(whole["offset"][-1]) + int(whole["size"][-1]))
        return done + len(read)

    def _keep(self, entries: Entries, start: int, position: int) -> None:
        """Store entries. Those of a loaded minute go to the heap; late ones hold `indexed` back."""
        late = entries["due"] <= max(0, self.frontier_ms)
        # Until the queue is caught up no minute is loaded. When one is, late ones are left out, so
        # they go to the heap now.
        here = entries["due"] < max(0, self.loaded_to_ms) if self.caught_up else late
        self.calendar.put(entries, here)
        number = 0
        if late.any():
            self._looks = number = self._looks + 1
            self._late[number] = [start, position, int(late.sum())]
        if here.any():
            marks = np.where(late, number, 0).astype(np.uint32)
            self._heap.add(held(entries[here], marks[here]))

    @property
    def caught_up(self) -> bool:
        return 0 <= self._catch_up <= self.indexed

    # --- what is due ---

    def turn(self, now_ms: int, recalled: int) -> int:
        """Put some of what is due; returns how many. `recalled` is the position, read after
        `delay_sent` was published as `now_ms`."""
        now_ms = self._may_take(now_ms, recalled)
        if not self.caught_up or now_ms < 0:
            return 0
        taken = self._heap.take(now_ms, TAKEN_AT_ONCE)
        if len(taken) < TAKEN_AT_ONCE:
            self._load_next(now_ms)
        if not len(taken):
            if not 0 <= self._heap.next_ms <= now_ms:
                self.frontier_ms = max(self.frontier_ms, min(now_ms, self.loaded_to_ms - 1))
            return 0
        full = len(taken) == TAKEN_AT_ONCE
        last_ms = int(taken["due"][-1])
        self._puts.append((last_ms, self._around.sender.floor))
        self._put(taken)
        self.frontier_ms = max(self.frontier_ms, last_ms - 1 if full else last_ms)
        return len(taken)

    def _may_take(self, now_ms: int, recalled: int) -> int:
        """The time up to which due timers may be taken: all recalls for them are read.

        A recall that comes now is for a timer that is due later. So a time waits only for the
        recalls before it: however many follow, the wait ends.
        """
        if recalled <= self._read_to:
            self._open_ms, self._waiting = max(self._open_ms, now_ms), None
            return self._open_ms
        if self._waiting is not None and self._waiting[1] <= self._read_to:
            self._open_ms, self._waiting = max(self._open_ms, self._waiting[0]), None
        if self._waiting is None and recalled != RECALL_COMING:
            self._waiting = now_ms, recalled
        return self._open_ms

    @property
    def loaded_to_ms(self) -> int:
        return (self._minute + 1) * MINUTE_MS

    @property
    def next_ms(self) -> int:
        """When there is something to do next; -1 if unknown."""
        due_ms = self._heap.next_ms
        minute = self.calendar.next_minute(self._minute)
        if minute >= 0 and (due_ms < 0 or minute * MINUTE_MS - AHEAD_MS < due_ms):
            due_ms = minute * MINUTE_MS - AHEAD_MS
        return due_ms

    def _load_next(self, now_ms: int) -> None:
        """Load the next minute with a file, once it is near and the last one is taken."""
        due_ms = self._heap.next_ms
        if 0 <= due_ms <= now_ms:
            return
        reach = (now_ms + AHEAD_MS) // MINUTE_MS
        reach = min(reach, (self.calendar.whole_hour + 1) * HOUR_MINUTES - 1)
        if self.rolling is not None:
            # for later timers, which record counts is known only when the roll is over
            reach = min(reach, self.rolling.after_ms // MINUTE_MS - 1)
        while self._minute < reach:
            nearer = self.calendar.next_minute(self._minute)
            self._minute = min(nearer, reach) if nearer >= 0 else reach
            entries = self.calendar.take(self._minute)
            entries = entries[entries["due"] > max(0, self._delivered_ms)]
            entries = self.not_rolled(entries)
            if len(entries):
                self._heap.add(held(entries))
                return

    def not_rolled(self, entries: Entries) -> Entries:
        """The entries that were not stored again since."""
        for roll in self.rolls:
            entries = entries[(entries["at"] >= roll.below) | (entries["due"] <= roll.after_ms)]
        return entries

    def _put(self, taken: Held) -> None:
        self._on_way += len(taken)
        # recalls first: they may be for messages that are due at the same time
        for due_ms, place, size, _, _ in taken[taken["kind"] == RECALL].tolist():
            self._copy(due_ms, place, size)
        copies = self._around.copies(unheld(taken), True, self._recalled)
        notes = [*map(_Note, taken["due"].tolist(), taken["late"].tolist())]
        for number in self._around.targets.others(copies):
            copies[number] = self._other(taken[number].item(), copies[number])
            if copies[number] is None:
                self._over([notes[number]])
        sure: list[tuple[Copy, Any]] = []
        unsure: list[tuple[Copy, Any]] = []
        for copy, note, doubtful in zip(copies, notes, self._around.doubt.of(taken), strict=True):
            if copy is not None:
                (unsure if doubtful else sure).append((copy, note))
        sender = self._around.sender
        for found, stored_after in ((unsure, sender.stored_after), (sure, -1)):
            self._batches += put_frames(sender, self, found, stored_after)

    def _other(self, timer: tuple[int, int, int, int, int], copy: Copy | None) -> Copy | None:
        """The copy of a timer that needs a closer look."""
        due_ms, place, size, kind, _ = timer
        if kind == RECALL:
            return None
        if copy is None:
            return self._copy(due_ms, place, size)
        copy = self._around.targets.place(copy)
        self.undelivered += copy is None
        return copy

    def _copy(self, due_ms: int, place: int, size: int) -> Copy | None:
        """The copy to deliver of this record; None if there is nothing to deliver."""
        record = self.record(place, size)
        if record is None:
            self.undelivered += 1
            return None
        waiting = taken_apart(record)
        if waiting.due_ms != due_ms:
            return None
        if key := recalled_key(waiting.properties):
            self._recalled[key] = due_ms
            return None
        if self._recalled and self._is_recalled(waiting):
            return None
        return self._around.copy(waiting, due_ms, timed=True, owner=self)

    def _is_recalled(self, waiting: Waiting) -> bool:
        place = real_place(waiting.properties)
        if place is None:
            return False
        own = waiting.unique_key.decode("utf-8", "replace")
        return recall_key(place[0].decode("utf-8", "replace"), own).encode() in self._recalled

    # --- outcomes ---

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its outcome."""
        batch.settled = True
        self._over(batch.notes)
        if stored:
            self.delivered += len(batch.copies)
        else:
            self.undelivered += len(batch.copies)
        while self._batches and self._batches[0].settled:
            self._batches.popleft()

    def _over(self, notes: list[_Note]) -> None:
        self._on_way -= len(notes)
        for note in notes:
            if note.late and note.late in self._late:
                look = self._late[note.late]
                look[2] -= 1
                if not look[2]:
                    del self._late[note.late]

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """`parts` were put in place of a frame that was refused."""
        put_in_place(self._batches, batch, parts)

    def delivered_ms(self) -> int:
        """The time up to which all timers in the files have their outcome, except late ones."""
        waiting = [_first_ms(batch) for batch in self._batches if not batch.settled]
        found = min(waiting) - 1 if waiting else self.frontier_ms
        self._delivered_ms = max(self._delivered_ms, min(found, self.frontier_ms))
        return self._delivered_ms

    def put_after(self) -> int:
        """No copy of a timer due after `delivered_ms` lies below this log offset; -1: none was put.

        Of several timers due in one ms, some may be stored while others are not even put.
        """
        done_ms = self.delivered_ms()
        while self._puts and self._puts[0][0] <= done_ms:
            self._puts.popleft()
        return self._puts[0][1] if self._puts else -1

    @property
    def is_amid(self) -> bool:
        """Whether more was put than the next life is told."""
        return bool(self._late) or self.put_after() >= 0

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left that an earlier life may have put."""
        return self.caught_up and self._delivered_ms >= self._around.doubt.due_ms and not self._late

    def saved_index(self) -> tuple[int, int]:
        """`indexed` for the next life, and the log offset of the record that holds it back."""
        first = min(self._late.values(), default=None)
        if first is None:
            return max(self.indexed, self._known), -1
        return first[0], first[1]

    @property
    def has_known(self) -> bool:
        """Whether the files again have everything that an earlier life had read of the queue."""
        return self.indexed >= self._known

    def first_place(self) -> int:
        """A log offset below which no message waits; -1 while unknown."""
        if not self.caught_up:
            return -1
        nothing = self.calendar.next_minute(self._minute) < 0
        if nothing and not self._batches and not len(self._heap):
            return self._read_to
        after = [roll.below for roll in self.rolls if roll.after_ms <= self._delivered_ms]
        return max(after, default=0)

    def queue_offset(self, flushed: int) -> int:
        """The first offset of the wheel queue at which another broker must begin to deliver all
        waiting messages; -1 while unknown. What lies past `flushed` may be lost, and its offset may
        then be another message's."""
        if not self.caught_up or TIMER_TOPIC not in self._queues.topics:
            return -1
        place = self.calendar.first_place(self.delivered_ms(), self.not_rolled)
        end = min(flushed, place) if place >= 0 else flushed
        first = min(self._late.values(), default=[self.indexed])[0]
        return min(first, self.indexed, self._around.end_before(TIMER_TOPIC, 0, end))

    # --- files ---

    def _load_recalls(self) -> None:
        """Load recent recalls whose messages may still come."""
        entries = self.calendar.recalls(self._delivered_ms - RECALL_MS, self._delivered_ms)
        for due_ms, place, size, _ in entries.tolist():
            record = self.record(place, size)
            if record is not None:
                self._recalled[recalled_key(raw_properties(record))] = due_ms

    def tidy(self) -> None:
        """Forget what is over. Raises OSError."""
        before_ms = self._delivered_ms - RECALL_MS
        if self._recalled:
            self._recalled = {k: due for k, due in self._recalled.items() if due >= before_ms}
        # the loaded minute is over when the next one is loaded
        self.calendar.tidy(before_ms, self._minute)


def _first_ms(batch: Batch) -> int:
    """When the first timer of a frame is due, without late ones."""
    if batch.due_ms < 0:
        batch.due_ms = min((note.due_ms for note in batch.notes if not note.late), default=_NEVER)
    return batch.due_ms
