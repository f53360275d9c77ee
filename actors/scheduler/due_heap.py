"""Timers of the minute at hand, in memory: what is due is taken in order, what is new is added.

A few sorted runs with a place in each. An entry has 28 bytes, so a minute of a million takes 28 MB
and no object for each. `late` names the look at the wheel queue that found a timer when it was due
already; 0 for all others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.timer_files import ENTRY, RECALL, Entries

HELD = np.dtype([*((name, ENTRY[name]) for name in ENTRY.names or ()), ("late", "<u4")])
# More runs than these are merged.
MOST_RUNS = 8

Held = npt.NDArray[np.void]


def held(entries: Entries, late: npt.NDArray[np.uint32] | int = 0) -> Held:
    """The entries as they are held."""
    made = np.empty(len(entries), HELD)
    for name in ENTRY.names or ():
        made[name] = entries[name]
    made["late"] = late
    return made


class DueHeap:
    """Timers by when they are due."""

    def __init__(self) -> None:
        self._runs: list[tuple[Held, int]] = []

    def __len__(self) -> int:
        return sum(len(run) - at for run, at in self._runs)

    @property
    def next_ms(self) -> int:
        """When the first one is due; -1 without any."""
        return min((int(run["due"][at]) for run, at in self._runs), default=-1)

    def add(self, entries: Held) -> None:
        if not len(entries):
            return
        self._runs.append((_in_order(entries), 0))
        if len(self._runs) > MOST_RUNS:
            rest = [run[at:] for run, at in self._runs]
            self._runs = [(_in_order(np.concatenate(rest)), 0)]

    def take(self, until_ms: int, most: int) -> Held:
        """Those that are due by then, in order: the first `most` of them."""
        pieces = []
        for run, at in self._runs:
            stop = int(np.searchsorted(run["due"], until_ms, "right"))
            pieces.append(run[at : min(stop, at + most)])
        if not any(len(piece) for piece in pieces):
            return np.empty(0, HELD)
        found = pieces[0] if len(pieces) == 1 else _in_order(np.concatenate(pieces))
        found = found[:most]
        if len(pieces) == 1:
            self._runs = [(self._runs[0][0], self._runs[0][1] + len(found))]
        else:
            self._pass(found)
        self._runs = [(run, at) for run, at in self._runs if at < len(run)]
        return found

    def _pass(self, found: Held) -> None:
        """Move each run's place past what was taken of it."""
        taken = set(found["at"].tolist())
        moved = []
        for run, at in self._runs:
            end = at
            while end < len(run) and int(run["at"][end]) in taken:
                end += 1
            moved.append((run, end))
        self._runs = moved


def _in_order(entries: Held) -> Held:
    """By time; what takes a message back stands before the message."""
    first = entries["kind"] != RECALL
    return entries[np.lexsort((entries["at"], first, entries["due"]))]
