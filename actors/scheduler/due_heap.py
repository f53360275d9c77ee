"""Timers of the minute at hand, in memory: due ones are taken in order, new ones are added.

It is a few sorted runs with a place in each. An entry has 36 bytes, so a minute of a million takes
36 MB and no object for each. If a timer was due already when the wheel queue had it, `late` is the
number of the look that found it; otherwise 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.timer_files import ENTRY, RECALL, Entries

HELD = np.dtype([*((name, ENTRY[name]) for name in ENTRY.names or ()), ("late", "<u4")])

Held = npt.NDArray[np.void]


def held(entries: Entries, late: npt.NDArray[np.uint32] | int = 0) -> Held:
    """The entries in the form of the heap."""
    made = np.empty(len(entries), HELD)
    for name in ENTRY.names or ():
        made[name] = entries[name]
    made["late"] = late
    return made


def unheld(taken: Held) -> Entries:
    """The entries in the form of files."""
    made = np.empty(len(taken), ENTRY)
    for name in ENTRY.names or ():
        made[name] = taken[name]
    return made


class _Run(NamedTuple):
    """Entries in order, and their times once more: searching a field of an array is slow."""

    entries: Held
    due: npt.NDArray[np.uint64]
    at: int = 0

    @classmethod
    def of(cls, entries: Held) -> _Run:
        entries = entries[_order(entries)]
        return cls(entries, np.ascontiguousarray(entries["due"]))

    @property
    def left(self) -> int:
        return len(self.due) - self.at


class DueHeap:
    """Timers, ordered by when they are due."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(run.left for run in self._runs)

    @property
    def next_ms(self) -> int:
        """When the first one is due; -1 if there is none."""
        return min((int(run.due[run.at]) for run in self._runs), default=-1)

    def add(self, entries: Held) -> None:
        if not len(entries):
            return
        runs = self._runs
        runs.append(_Run.of(entries))
        # Each run stays more than twice as long as the next. So there are few runs, and an entry is
        # merged at most log2(entries) times, however many come one by one.
        while len(runs) > 1 and runs[-2].left <= 2 * runs[-1].left:
            rest = [run.entries[run.at :] for run in runs[-2:]]
            runs[-2:] = [_Run.of(np.concatenate(rest))]

    def take(self, until_ms: int, most: int) -> Held:
        """Those that are due by then, in order, at most `most`."""
        # a run's place may be past this time already
        # some may be due later than what was taken before
        stops = [int(np.searchsorted(run.due, until_ms, "right")) for run in self._runs]
        counts = [
            max(0, min(stop - run.at, most)) for run, stop in zip(self._runs, stops, strict=True)
        ]
        pieces = [
            run.entries[run.at : run.at + count]
            for run, count in zip(self._runs, counts, strict=True)
        ]
        if not any(counts):
            return np.empty(0, HELD)
        if sum(map(bool, counts)) == 1:
            found = max(pieces, key=len)
        else:
            together = np.concatenate(pieces)
            order = _order(together)[:most]
            found = together[order]
            # the taken entries of a run are its first ones, because both orders are the same
            of_run = np.repeat(np.arange(len(counts)), counts)[order]
            counts = np.bincount(of_run, minlength=len(counts)).tolist()
        moved = [
            run._replace(at=run.at + count) for run, count in zip(self._runs, counts, strict=True)
        ]
        self._runs = [run for run in moved if run.left]
        return found


def _order(entries: Held) -> npt.NDArray[np.intp]:
    """Sort by time; a recall comes before its message, and equal ones keep their order."""
    due = np.ascontiguousarray(entries["due"])
    recalls = entries["kind"] == RECALL
    before: npt.NDArray[np.intp] | None = None
    if recalls.any():
        before = np.concatenate((np.flatnonzero(recalls), np.flatnonzero(~recalls)))
        due = due[before]
    first = due.min()
    key = due - first
    if key.max() < 1 << 16:
        # NumPy sorts two-byte keys by counting, in a tenth of the time, and usually all entries
        # are due within one minute
        key = key.astype(np.uint16)
    order = np.argsort(key, kind="stable")
    return order if before is None else before[order]
