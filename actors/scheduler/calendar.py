"""Which minutes and hours have timers: what is new goes there, what is near comes from there.

    far        an hour's file
    near       its minutes' files, from HOUR_AHEAD_MS before the hour begins: `split_hour` is the
               last hour of which that is so
    at hand    one minute after the other is taken into memory, by whoever owns this

An hour is split in steps, and by entries, for it may have millions. Its file stays until its time
is over, as the minutes' do: so a death in a split, or a power failure that takes minutes' files,
leaves all of it there, and it is split again. What then stands in a minute twice counts once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.timer_files import (
    ENTRY,
    HOUR_MINUTES,
    HOUR_MS,
    MINUTE_MS,
    RECALL,
    Entries,
    TimerFiles,
    each_once,
)

HOUR_AHEAD_MS = 10 * MINUTE_MS
# Entries that one step of a split moves.
SPLIT_AT_ONCE = 20_000


class Span(NamedTuple):
    """A minute's file, or an hour's: minutes from `first` to `last`."""

    first: int
    last: int

    @property
    def is_hour(self) -> bool:
        return self.last > self.first


class Calendar:
    """The timers of one store that are not in memory."""

    def __init__(self, files: TimerFiles) -> None:
        self._files = files
        self._minutes: list[int] = []
        # how many stand in the file of a minute that is not taken yet, and of an hour that is not
        # split, as far as they are not in memory
        self._counts: dict[int, int] = {}
        self._hours: dict[int, int] = {}
        # hours whose files stay until their time is over
        self._split: set[int] = set()
        # of the hour that is on its way into its minutes: entries that are there
        self._split_at = 0
        self.split_hour = -1

    def start(self, split_hour: int, delivered_ms: int) -> None:
        """Go on where the last life was: up to `split_hour` hours are split."""
        self.split_hour = split_hour
        self._minutes = self._files.minutes()
        for minute in self._minutes:
            if (minute + 1) * MINUTE_MS > delivered_ms:
                self._counts[minute] = self._files.count(minute)
        for hour in self._files.hours():
            if hour > split_hour:
                self._hours[hour] = self._files.count(hour, True)
            else:
                self._split.add(hour)

    def __len__(self) -> int:
        """About how many wait here. One that a life or a split has put here twice counts twice
        until its minute is taken."""
        return sum(self._counts.values()) + sum(self._hours.values())

    def put(self, entries: Entries, elsewhere: npt.NDArray[np.bool_]) -> None:
        """Keep entries; some are in memory, too, and are taken from there. Raises OSError; then it
        is to be done again."""
        counts = self._files.append(entries, self.split_hour + 1)
        for number, hour in counts:
            if not hour:
                self._know(number)
        minutes, here = np.unique(entries["due"][~elsewhere] // MINUTE_MS, return_counts=True)
        for minute, count in zip(minutes.tolist(), here.tolist(), strict=True):
            hour = minute // HOUR_MINUTES
            if hour > self.split_hour:
                self._hours[hour] = self._hours.get(hour, 0) + count
            else:
                self._counts[minute] = self._counts.get(minute, 0) + count

    def _know(self, minute: int) -> None:
        at = bisect_right(self._minutes, minute)
        if not at or self._minutes[at - 1] != minute:
            insort(self._minutes, minute)

    # --- hours ---

    def split(self, now_ms: int) -> int:
        """Put some of the next hour that is near into its minutes; how many. Raises OSError."""
        reach = (now_ms + HOUR_AHEAD_MS) // HOUR_MS
        hour = min(self._hours, default=reach + 1)
        if hour > reach:
            self.split_hour = max(self.split_hour, reach)
            return 0
        # from now on what is new of this hour goes to its minutes
        self.split_hour = max(self.split_hour, hour)
        entries = self._files.part(hour, self._split_at, self._split_at + SPLIT_AT_ONCE, True)
        if not len(entries):
            self._split_at = 0
            del self._hours[hour]
            self._split.add(hour)
            return 1
        for (minute, _), count in self._files.append(entries).items():
            self._know(minute)
            self._counts[minute] = self._counts.get(minute, 0) + count
        self._split_at += len(entries)
        self._hours[hour] = max(0, self._hours[hour] - len(entries))
        return len(entries)

    @property
    def whole_hour(self) -> int:
        """The last hour that is split with all that come before it."""
        return min([self.split_hour, *(hour - 1 for hour in self._hours)])

    # --- what comes next ---

    def next_minute(self, minute: int) -> int:
        """The next one after this that has a file, or belongs to an hour that has; -1 for none."""
        span = self.span_after(minute)
        return -1 if span is None else max(span.first, minute + 1)

    def take(self, minute: int) -> Entries:
        """What a minute has. From now on it is in memory."""
        self._counts.pop(minute, None)
        return self._files.load(minute)

    def span_after(self, minute: int) -> Span | None:
        """The next minute after this that has timers, or the hour that has it and is not split."""
        hours = [hour for hour in self._hours if (hour + 1) * HOUR_MINUTES > minute + 1]
        found = [Span(h * HOUR_MINUTES, (h + 1) * HOUR_MINUTES - 1) for h in sorted(hours)[:1]]
        later = bisect_right(self._minutes, minute)
        # a minute of an hour that is not split is a part of that
        found += [
            Span(m, m) for m in self._minutes[later : later + 1] if m // HOUR_MINUTES not in hours
        ]
        return min(found, default=None)

    def load(self, span: Span) -> Entries:
        """What it has, each once."""
        first = bisect_left(self._minutes, span.first)
        last = bisect_right(self._minutes, span.last)
        found = [self._files.load(minute) for minute in self._minutes[first:last]]
        if span.is_hour:
            found.insert(0, self._files.load(span.first // HOUR_MINUTES, True))
        return found[0] if len(found) == 1 else each_once(np.concatenate(found))

    def recalls(self, from_ms: int, to_ms: int) -> Entries:
        """What takes messages back, in the files that have this time, and is due by then."""
        found = [np.empty(0, ENTRY)]
        minute = from_ms // MINUTE_MS - 1
        while (span := self.span_after(minute)) is not None and span.first * MINUTE_MS <= to_ms:
            entries = self.load(span)
            found.append(entries[(entries["kind"] == RECALL) & (entries["due"] <= max(0, to_ms))])
            minute = span.last
        return np.concatenate(found)

    def first_place(self, after_ms: int, waiting: Callable[[Entries], Entries]) -> int:
        """The first log offset of what is due after this time, as far as it is `waiting`; -1 for
        none."""
        found = []
        for minute in self._minutes[bisect_left(self._minutes, max(0, after_ms) // MINUTE_MS) :]:
            entries = self._files.part(minute, 0, 1 << 62)
            entries = waiting(entries[entries["due"] > max(0, after_ms)])
            # of each minute only the number stays: all of them may be hundreds of MB
            found += [int(entries["at"].min())] if len(entries) else []
        for hour in self._hours:
            # in their order, so the first part that has one that waits has the first one
            for start in range(0, self._files.count(hour, True), SPLIT_AT_ONCE):
                entries = waiting(self._files.part(hour, start, start + SPLIT_AT_ONCE, True))
                if len(entries):
                    found.append(int(entries["at"].min()))
                    break
        return min(found, default=-1)

    def tidy(self, before_ms: int, minute: int) -> None:
        """Remove the files of what was over by then, and before this minute. Raises OSError."""
        over = [m for m in self._minutes if (m + 1) * MINUTE_MS <= before_ms and m < minute]
        self._files.drop(over)
        self._minutes = self._minutes[len(over) :]
        hours = [h for h in self._split if (h + 1) * HOUR_MS <= before_ms]
        self._files.drop(hours, True)
        self._split -= {*hours}
