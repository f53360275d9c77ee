"""Which minutes and hours have timers: new timers go there, and near ones come from there.

    far        an hour's file
    near       its minutes' files, from HOUR_AHEAD_MS before the hour begins: `split_hour` is the
               last hour that was split into them
    at hand    the owner of this takes one minute after the other into memory

An hour is split in steps, by number of entries, because it may have millions. Its file stays until
its time is over, as the minutes' files do. So a death during a split, or a power failure that takes
minutes' files, leaves the hour's file, and it is split again. An entry that is then in a minute
twice counts once.
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
    """The timers of one store that are not in memory yet."""

    def __init__(self, files: TimerFiles) -> None:
        self._files = files
        self._minutes: list[int] = []
        # timers that are not in memory: minute not taken yet -> how many its file has, and hour not
        # split yet -> how many its file has
        self._counts: dict[int, int] = {}
        self._hours: dict[int, int] = {}
        # hours whose files stay until their time is over
        self._split: set[int] = set()
        # how many entries of the hour being split are in their minutes
        self._split_at = 0
        self.split_hour = -1

    def start(self, split_hour: int, delivered_ms: int) -> None:
        """Go on where the last life was: hours up to `split_hour` are split."""
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
        """About how many timers wait here. One that is here twice, after a death or a repeated
        split, counts twice until its minute is taken."""
        return sum(self._counts.values()) + sum(self._hours.values())

    def put(self, entries: Entries, elsewhere: npt.NDArray[np.bool_]) -> None:
        """Store entries; those `elsewhere` are in memory too, and are taken from there. Raises
        OSError; then the call must be repeated."""
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
        """Split some more of the next near hour; returns how many entries. Raises OSError."""
        reach = (now_ms + HOUR_AHEAD_MS) // HOUR_MS
        hour = min(self._hours, default=reach + 1)
        if hour > reach:
            self.split_hour = max(self.split_hour, reach)
            return 0
        # from now on new entries of this hour go to its minutes
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
        """The last hour that is split together with all hours before it."""
        return min([self.split_hour, *(hour - 1 for hour in self._hours)])

    # --- what comes next ---

    def next_minute(self, minute: int) -> int:
        """The next minute with a file after this, or of an hour with one; -1 if there is none."""
        span = self.span_after(minute)
        return -1 if span is None else max(span.first, minute + 1)

    def take(self, minute: int) -> Entries:
        """The entries of a minute, which are in memory from now on."""
        self._counts.pop(minute, None)
        return self._files.load(minute)

    def span_after(self, minute: int) -> Span | None:
        """The next minute with timers after this, or the unsplit hour that it belongs to."""
        hours = [hour for hour in self._hours if (hour + 1) * HOUR_MINUTES > minute + 1]
        found = [Span(h * HOUR_MINUTES, (h + 1) * HOUR_MINUTES - 1) for h in sorted(hours)[:1]]
        later = bisect_right(self._minutes, minute)
        # a minute of an unsplit hour is a part of that hour
        found += [
            Span(m, m) for m in self._minutes[later : later + 1] if m // HOUR_MINUTES not in hours
        ]
        return min(found, default=None)

    def load(self, span: Span) -> Entries:
        """The entries of a span, each once."""
        first = bisect_left(self._minutes, span.first)
        last = bisect_right(self._minutes, span.last)
        found = [self._files.load(minute) for minute in self._minutes[first:last]]
        if span.is_hour:
            found.insert(0, self._files.load(span.first // HOUR_MINUTES, True))
        return found[0] if len(found) == 1 else each_once(np.concatenate(found))

    def recalls(self, from_ms: int, to_ms: int) -> Entries:
        """Recalls that are due by `to_ms`, from the files since `from_ms`."""
        found = [np.empty(0, ENTRY)]
        minute = from_ms // MINUTE_MS - 1
        while (span := self.span_after(minute)) is not None and span.first * MINUTE_MS <= to_ms:
            entries = self.load(span)
            found.append(entries[(entries["kind"] == RECALL) & (entries["due"] <= max(0, to_ms))])
            minute = span.last
        return np.concatenate(found)

    def first_place(self, after_ms: int, waiting: Callable[[Entries], Entries]) -> int:
        """The first log offset of an entry that is due later and `waiting`; -1 if there is none."""
        found = []
        for minute in self._minutes[bisect_left(self._minutes, max(0, after_ms) // MINUTE_MS) :]:
            entries = self._files.part(minute, 0, 1 << 62)
            entries = waiting(entries[entries["due"] > max(0, after_ms)])
            # only one number of each minute is kept: all entries may be hundreds of MB
            found += [int(entries["at"].min())] if len(entries) else []
        for hour in self._hours:
            # entries are in log order, so the first part with a waiting one has the first of them
            for start in range(0, self._files.count(hour, True), SPLIT_AT_ONCE):
                entries = waiting(self._files.part(hour, start, start + SPLIT_AT_ONCE, True))
                if len(entries):
                    found.append(int(entries["at"].min()))
                    break
        return min(found, default=-1)

    def tidy(self, before_ms: int, minute: int) -> None:
        """Remove files whose time was over by `before_ms`, before this minute. Raises OSError."""
        over = [m for m in self._minutes if (m + 1) * MINUTE_MS <= before_ms and m < minute]
        self._files.drop(over)
        self._minutes = self._minutes[len(over) :]
        hours = [h for h in self._split if (h + 1) * HOUR_MS <= before_ms]
        self._files.drop(hours, True)
        self._split -= {*hours}
