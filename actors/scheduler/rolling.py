"""Timers whose records are about to expire: each is stored once more, and then the old may go.

    a roll    all timers due after `after_ms` whose records are below the log offset `below`

It goes through the timers' files of minutes and hours one by one. Timers that are due soon are
left: they are delivered before their segment goes. Later ones are not delivered while a roll is
under way; otherwise both the old record and the new one would be. Before a file is begun, it is
saved that all earlier ones are done. So a death repeats one file, and the writer finds what is
stored of it. A refusal repeats it too, because topics may have changed meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from penstock.actors.scheduler.copies import Batch, put_frames, put_in_place
from penstock.actors.scheduler.progress import MOST_ROLLS, Progress, Roll
from penstock.actors.scheduler.surroundings import Surroundings
from penstock.actors.scheduler.timer_files import ENTRY, HOUR_MINUTES, MINUTE_MS, Entries
from penstock.actors.scheduler.timers import Timers
from penstock.shared.messaging.delayed import real_place
from penstock.shared.messaging.delivered import Copy, rolled, taken_apart

# Timers that are due sooner are delivered, and not stored again.
SOON_MS = 10 * MINUTE_MS
ENTRIES_AT_ONCE = 2000
# How often to begin a file while some of it is refused.
MOST_TRIES = 3


class Rolling:
    """The roll that is under way, if there is one."""

    def __init__(self, timers: Timers, around: Surroundings) -> None:
        self._timers = timers
        self._sender, self._shape, self._targets = around.sender, around.shape, around.targets
        self.minute = -1
        # the roll and the minute at the last save
        self.saved: tuple[Roll | None, int] = None, -1
        self._batches: deque[Batch] = deque()
        # no copy of the current file lies below this log offset; -1: there is no current file
        self.put_after = -1
        # the last minute that may be partly stored again already; the last one of the current file
        self._doubted_to = self._next_minute = -1
        self._left = np.empty(0, ENTRY)
        # counts of the current file: those with nowhere to go, those refused, repeats
        self._nowhere = self._refused = self._tries = 0

    def start(self, progress: Progress) -> None:
        """Go on with the last life's roll: some of its current file may be stored again already."""
        self.saved = self._timers.rolling, self.minute = progress.rolling, progress.rolled_minute
        if self.roll is not None and not progress.clean:
            later = self._timers.calendar.span_after(self.minute)
            if later is not None:
                # an hour's file then may be split into minutes by now
                self._doubted_to = later.first // HOUR_MINUTES * HOUR_MINUTES + HOUR_MINUTES - 1

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left that an earlier life may have stored again."""
        return self._doubted_to == -1

    @property
    def roll(self) -> Roll | None:
        """The current roll. The timers keep it, because they wait for it."""
        return self._timers.rolling

    @property
    def is_saved(self) -> bool:
        """Whether the next life would go on where this one is; otherwise no file is begun."""
        return self.saved == (self.roll, self.minute)

    def begin(self, below: int, now_ms: int) -> None:
        """Roll records below this log offset, unless a roll is under way."""
        if self.roll is None and len(self._timers.rolls) < MOST_ROLLS:
            self._timers.rolling = roll = Roll(below, now_ms + SOON_MS)
            self.minute = roll.after_ms // MINUTE_MS - 1

    def turn(self) -> int:
        """Store some more records again; returns how many."""
        if self.roll is None or not self._timers.caught_up or not self.is_saved:
            return 0
        if not self._sender.has_room:
            return 0
        if len(self._left):
            some, rest = self._left[:ENTRIES_AT_ONCE], self._left[ENTRIES_AT_ONCE:]
            copies = self._copies(some)
            if copies is None:
                return 0
            self._left = rest
            stored_after = -1 if self.is_sure else self._sender.stored_after
            self._batches += put_frames(self._sender, self, copies, stored_after)
            self._end_file()
            return len(some)
        if self._batches:
            return 0  # the next file begins when all of this one has its outcome
        later = self._timers.calendar.span_after(self.minute)
        if later is None:
            self._timers.rolls.append(self.roll)
            self._timers.rolling, self.minute, self._doubted_to = None, -1, -1
            return 0
        self._next_minute = later.last
        if self.put_after < 0:
            self.put_after = self._sender.floor
        if later.first > self._doubted_to:
            self._doubted_to = -1
        entries = self._timers.not_rolled(self._timers.calendar.load(later))
        wanted = (entries["at"] < self.roll.below) & (entries["due"] > self.roll.after_ms)
        self._left = entries[wanted]
        self._end_file()
        return 1

    def _copies(self, entries: Entries) -> list[tuple[Copy, Any]] | None:
        """Copies to store again; None while one of their topics has to be made."""
        copies: list[tuple[Copy, Any]] = []
        nowhere = 0
        for due_ms, place, size, _ in entries.tolist():
            record = self._timers.record(place, size)
            if record is None or (waiting := taken_apart(record)).due_ms != due_ms:
                continue
            target = real_place(waiting.properties)
            queue = None if target is None else self._targets.queue_for(*target)
            if self._targets.missing:
                return None
            if queue is None:
                nowhere += 1
            else:
                copies.append((rolled(waiting, self._shape, queue), None))
        self._nowhere += nowhere
        return copies

    def _end_file(self) -> None:
        """Once all of a file has its outcome, go on after it, or begin it again as after a death.

        While some of it is on its way, do nothing.
        """
        if self._batches or len(self._left):
            return
        if self._refused and self._tries < MOST_TRIES:
            self._tries += 1
            self._doubted_to = max(self._doubted_to, self._next_minute)
        else:
            self._timers.undelivered += self._nowhere + self._refused
            self.minute, self._tries, self.put_after = self._next_minute, 0, -1
        self._nowhere = self._refused = 0

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its outcome."""
        batch.settled = True
        self._refused += 0 if stored else len(batch.copies)
        while self._batches and self._batches[0].settled:
            self._batches.popleft()
        self._end_file()

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """`parts` were put in place of a frame that was refused."""
        put_in_place(self._batches, batch, parts)
