"""The timers' files: which messages of the wheel topic are due when. One file for each minute.

    penstock/timers/<minute since 1970>      24 bytes for each message, in the order it was stored

    off  field            type
      0  due              u64    ms since 1970
      8  log offset       u64    of its record in the wheel topic
     16  size             u32    of that record
     20  kind             u32    0: a message; 1: it takes one back

Words are little-endian. A file is appended to and never changed, and goes when its minute is over.
The log is the truth: a record that stands here twice counts once, and what stands here is compared
with its record before anything is done with it. So after a crash the last part is put here again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.shared.faults import crash_point
from penstock.shared.files.durable import make_directory, opened

MINUTE_MS = 60_000
ENTRY = np.dtype([("due", "<u8"), ("at", "<u8"), ("size", "<u4"), ("kind", "<u4")])
MESSAGE, RECALL = 0, 1

Entries = npt.NDArray[np.void]

assert ENTRY.itemsize == 24, "an entry is 24 bytes"


class TimerFiles:
    """The files of one store. One process writes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)

    def append(self, entries: Entries) -> None:
        """Put entries into their files. Survives the process on return; not synced. Raises
        OSError; then some may be there."""
        minutes = entries["due"] // MINUTE_MS
        order = np.argsort(minutes, kind="stable")
        entries, minutes = entries[order], minutes[order]
        bounds = [0, *(np.flatnonzero(np.diff(minutes)) + 1).tolist(), len(entries)]
        for start, stop in zip(bounds, bounds[1:], strict=False):
            self._append(int(minutes[start]), entries[start:stop].tobytes())
            crash_point("schedule.mid_index")

    def _append(self, minute: int, raw: bytes) -> None:
        with opened(str(self._path(minute)), os.O_WRONLY | os.O_CREAT) as handle:
            size = os.fstat(handle).st_size
            # one that was cut off by a death is put here again by the next life
            size -= size % ENTRY.itemsize
            while raw:
                done = os.pwrite(handle, raw, size)
                raw, size = raw[done:], size + done

    def load(self, minute: int) -> Entries:
        """The entries of a minute, each once, in no order; none where there is no file."""
        try:
            raw = self._path(minute).read_bytes()
        except FileNotFoundError:
            return np.empty(0, ENTRY)
        found = np.frombuffer(raw, ENTRY, len(raw) // ENTRY.itemsize)
        _, first = np.unique(found["at"], return_index=True)
        # most often nothing is there twice, and then nothing is copied
        return found if len(first) == len(found) else found[np.sort(first)]

    def minutes(self) -> list[int]:
        """Those that have a file, in order."""
        return sorted(int(name) for name in os.listdir(self._directory) if name.isdigit())

    def count(self, minute: int) -> int:
        """About how many entries a minute has."""
        try:
            return self._path(minute).stat().st_size // ENTRY.itemsize
        except FileNotFoundError:
            return 0

    def drop(self, minutes: Iterator[int]) -> None:
        """Remove files whose minutes are over."""
        for minute in minutes:
            self._path(minute).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all: they are built again from the wheel topic."""
        self.drop(iter(self.minutes()))

    def open_directory(self) -> int:
        """A descriptor of the directory, for a sync of its file system."""
        return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)

    def _path(self, minute: int) -> Path:
        return self._directory / str(minute)
