"""Timers whose records are about to expire: each is stored once more, and then the old may go.

    a roll    all that is due after `after_ms` and stands below the log offset `below`

It goes through the timers' files minute by minute. What is due soon is left: it is delivered before
its segment goes. While a roll is under way its minute is saved, so a death repeats one minute, and
the writer finds of that what is stored. So does a refusal: topics may have changed meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.actors.scheduler.copies import Batch, put_frames, put_in_place
from penstock.actors.scheduler.progress import MOST_ROLLS, Progress, Roll
from penstock.actors.scheduler.surroundings import Surroundings
from penstock.actors.scheduler.timer_files import MINUTE_MS, TimerFiles
from penstock.actors.scheduler.timers import Timers
from penstock.shared.messaging.delayed import real_place
from penstock.shared.messaging.delivered import Copy, rolled, taken_apart

# What is due sooner is delivered, and not stored again.
SOON_MS = 10 * MINUTE_MS
ENTRIES_AT_ONCE = 2000
# How often a minute is begun of which something is refused.
MOST_TRIES = 3


class Rolling:
    """The roll that is under way, if there is one."""

    def __init__(self, timers: Timers, files: TimerFiles, around: Surroundings) -> None:
        self._timers, self._files = timers, files
        self._sender, self._shape, self._targets = around.sender, around.shape, around.targets
        self.roll: Roll | None = None
        self.minute = -1
        self._batches: deque[Batch] = deque()
        self._doubted_minute = self._next_minute = -1
        self._left: list[tuple[Copy, Any]] = []
        # of the minute at hand: what had nowhere to go, what was refused, and how often
        self._nowhere = self._refused = self._tries = 0

    def start(self, progress: Progress) -> None:
        """Go on with the last life's: of the minute that it was at some may be stored again."""
        self.roll, self.minute = progress.rolling, progress.rolled_minute
        if self.roll is not None and not progress.clean:
            later = self._timers.minutes_after(
                max(self.minute, self.roll.after_ms // MINUTE_MS - 1)
            )
            self._doubted_minute = later[0] if later else -1

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left that an earlier life may have stored again."""
        return self._doubted_minute < 0

    def begin(self, below: int, now_ms: int) -> None:
        """Roll what stands below this log offset, unless something is rolled already."""
        if self.roll is None and len(self._timers.rolls) < MOST_ROLLS:
            self.roll = Roll(below, now_ms + SOON_MS)
            self.minute = self.roll.after_ms // MINUTE_MS - 1

    def turn(self) -> int:
        """Store some more again; how many."""
        if self.roll is None or not self._timers.caught_up:
            return 0
        if not self._sender.has_room:
            return 0
        if self._batches and not self._left:
            return 0  # the next minute begins when this one is safe
        doubtful = self._doubted_minute >= 0
        if self._left:
            some, self._left = self._left[:ENTRIES_AT_ONCE], self._left[ENTRIES_AT_ONCE:]
            self._batches += put_frames(self._sender, self, some, doubtful)
            return len(some)
        later = self._timers.minutes_after(self.minute)
        if not later:
            self._timers.rolls.append(self.roll)
            self.roll, self.minute = None, -1
            return 0
        self._next_minute = later[0]
        self._doubted_minute = self._doubted_minute if self._doubted_minute == later[0] else -1
        copies = self._copies(later[0], self.roll)
        if copies is None:
            return 0
        self._left = copies
        if not self._left:
            self._end_minute()
        return 1

    def _copies(self, minute: int, roll: Roll) -> list[tuple[Copy, Any]] | None:
        """What is to be stored again of a minute; None while a topic of it has to be made."""
        entries = self._timers.not_rolled(self._files.load(minute))
        entries = entries[(entries["at"] < roll.below) & (entries["due"] > roll.after_ms)]
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
        self._nowhere = nowhere
        return copies

    def _end_minute(self) -> None:
        """All of a minute has its outcome: begin the next, or this one again, as after a death."""
        if self._refused and self._tries < MOST_TRIES:
            self._tries += 1
            self._doubted_minute = self._next_minute
        else:
            self._timers.undelivered += self._nowhere + self._refused
            self.minute, self._tries = self._next_minute, 0
        self._nowhere = self._refused = 0

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its outcome."""
        batch.settled = True
        self._refused += 0 if stored else len(batch.copies)
        while self._batches and self._batches[0].settled:
            self._batches.popleft()
        if not self._batches and not self._left:
            self._end_minute()

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """Frames in the place of one that was refused."""
        put_in_place(self._batches, batch, parts)
