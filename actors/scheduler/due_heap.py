"""Timers of the minute at hand, in memory: what is due is taken in order, what is new is added.

A few sorted runs with a place in each. An entry has 36 bytes, so a minute of a million takes 36 MB
and no object for each. `late` names the look at the wheel queue that found a timer when it was due
already; 0 for all others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.timer_files import ENTRY, RECALL, Entries

HELD = np.dtype([*((name, ENTRY[name]) for name in ENTRY.names or ()), ("late", "<u4")])

Held = npt.NDArray[np.void]


def held(entries: Entries, late: npt.NDArray[np.uint32] | int = 0) -> Held:
    """The entries as they are held."""
    made = np.empty(len(entries), HELD)
    for name in ENTRY.names or ():
        made[name] = entries[name]
    made["late"] = late
    return made


def unheld(taken: Held) -> Entries:
    """The entries as files have them."""
    made = np.empty(len(taken), ENTRY)
    for name in ENTRY.names or ():
        made[name] = taken[name]
    return made


class _Run(NamedTuple):
    """Entries in order, and their times once more: in a field of an array nothing is found fast."""

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
    """Timers by when they are due."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(run.left for run in self._runs)

    @property
    def next_ms(self) -> int:
        """When the first one is due; -1 without any."""
        return min((int(run.due[run.at]) for run in self._runs), default=-1)

    def add(self, entries: Held) -> None:
        if not len(entries):
            return
        runs = self._runs
        runs.append(_Run.of(entries))
        # Each run stays more than twice as long as the next. So there are few, and an entry is
        # merged as often as the number of entries can be halved, however many come one by one.
        while len(runs) > 1 and runs[-2].left <= 2 * runs[-1].left:
            rest = [run.entries[run.at :] for run in runs[-2:]]
            runs[-2:] = [_Run.of(np.concatenate(rest))]

    def take(self, until_ms: int, most: int) -> Held:
        """Those that are due by then, in order: the first `most` of them."""
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
            # what is taken of a run are its first ones, for all orders are the same
            of_run = np.repeat(np.arange(len(counts)), counts)[order]
            counts = np.bincount(of_run, minlength=len(counts)).tolist()
        moved = [
            run._replace(at=run.at + count) for run, count in zip(self._runs, counts, strict=True)
        ]
        self._runs = [run for run in moved if run.left]
        return found


def _order(entries: Held) -> npt.NDArray[np.intp]:
    """By time; what takes a message back stands before the message, and of equal ones the first
    that is here."""
    due = np.ascontiguousarray(entries["due"])
    recalls = entries["kind"] == RECALL
    before: npt.NDArray[np.intp] | None = None
    if recalls.any():
        before = np.concatenate((np.flatnonzero(recalls), np.flatnonzero(~recalls)))
        due = due[before]
    first = due.min()
    key = due - first
    if key.max() < 1 << 16:
        # two bytes are sorted by counting, which takes a tenth of the time: most often all are due
        # within one minute
        key = key.astype(np.uint16)
    order = np.argsort(key, kind="stable")
    return order if before is None else before[order]
