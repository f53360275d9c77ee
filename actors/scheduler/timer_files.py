"""The timers' files: which messages of the wheel topic are due when.

    penstock/timers/<minute since 1970>      what is near: 24 bytes for each message, as stored
    penstock/timers/<hour since 1970>h       what is far, in the same form

    off  field            type
      0  due              u64    ms since 1970
      8  log offset       u64    of its record in the wheel topic
     16  size             u32    of that record
     20  kind             u32    0: a message; 1: it takes one back

Words are little-endian. A file is appended to and never changed, and is deleted when its time is
over. When an hour is near, its entries are put into the files of its minutes: 40 days have 58,000
minutes, and a file for each would cost more than the timers in it. This file does not know which
hours are split.

The log is the truth: an entry that is here twice counts once, and it is compared with its record
before anything is done with it. So after a crash the last part is appended again.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.file_sums import Sums
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.files.durable import make_directory, opened
from penstock.shared.loops import forms

MINUTE_MS = 60_000
HOUR_MINUTES = 60
HOUR_MS = HOUR_MINUTES * MINUTE_MS
ENTRY = np.dtype([("due", "<u8"), ("at", "<u8"), ("size", "<u4"), ("kind", "<u4")])
MESSAGE, RECALL = forms.MESSAGE, forms.RECALL
_HOUR = "h"
_READ_BYTES = 1 << 20

Entries = npt.NDArray[np.void]

assert ENTRY.itemsize == 24 == forms.TIMER.size, "an entry is 24 bytes"


class TimerFiles:
    """The files of one store. One process writes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The first append opens it, and may find a full disk: a start creates nothing.
        self._handle = -1
        # of files that were looked at, or appended to, in this life
        self._sums: Sums = {}

    def append(self, entries: Entries, hours_from: int = 1 << 62) -> dict[tuple[int, bool], int]:
        """Append entries to their files. Returns how many went into each, by (number, whether it is
        an hour); hours `hours_from` and later have one file, earlier ones a file for each minute.

        Survives the process on return; not synced. Raises OSError; then some may be there.
        """
        self.open_directory()
        minutes = (entries["due"] // MINUTE_MS).astype(np.int64)
        hours = minutes // HOUR_MINUTES
        # one number for each file: hours are the negative ones
        file_of = np.where(hours >= hours_from, -1 - hours, minutes)
        order = np.argsort(file_of, kind="stable")
        entries, file_of = entries[order], file_of[order]
        bounds = [0, *(np.flatnonzero(np.diff(file_of)) + 1).tolist(), len(entries)]
        counts: dict[tuple[int, bool], int] = {}
        for start, stop in zip(bounds, bounds[1:], strict=False):
            number = int(file_of[start])
            file = (number, False) if number >= 0 else (-1 - number, True)
            self._append(*file, entries[start:stop].tobytes())
            counts[file] = stop - start
            crash_point("schedule.mid_index")
        return counts

    def _append(self, number: int, hour: bool, raw: bytes) -> None:
        name = _name(number, hour)
        with opened(f"{self._directory}/{name}", os.O_RDWR | os.O_CREAT) as handle:
            size = os.fstat(handle).st_size
            # a death may have cut off the last entry; the next life appends it again
            size -= size % ENTRY.itemsize
            # what a disk refuses half way leaves a file of which nothing is known
            known = self._sums.pop(name, None)
            _, crc = known if known is not None else (size, _crc(handle, size))
            crc = zlib.crc32(raw, crc)
            while raw:
                done = os.pwrite(handle, raw, size)
                raw, size = raw[done:], size + done
            self._sums[name] = size, crc

    def load(self, number: int, hour: bool = False) -> Entries:
        """The entries of a minute or hour, each once, in the order in which they came; none if
        there is no file."""
        return each_once(self.part(number, 0, 1 << 62, hour))

    def part(self, number: int, start: int, stop: int, hour: bool = False) -> Entries:
        """Entries `start` to below `stop` by their place in the file, as they are."""
        try:
            with open(self._path(number, hour), "rb") as file:
                file.seek(start * ENTRY.itemsize)
                most = min(os.fstat(file.fileno()).st_size, (stop - start) * ENTRY.itemsize)
                raw = file.read(most)
        except FileNotFoundError:
            return np.empty(0, ENTRY)
        return np.frombuffer(raw, ENTRY, len(raw) // ENTRY.itemsize)

    def sums(self) -> Sums:
        """What each file holds. Raises OSError."""
        names = self._names()
        for name in names:
            if name not in self._sums:
                with opened(f"{self._directory}/{name}", os.O_RDONLY) as handle:
                    size = os.fstat(handle).st_size
                    size -= size % ENTRY.itemsize
                    self._sums[name] = size, _crc(handle, size)
        self._sums = {name: self._sums[name] for name in names}
        return dict(self._sums)

    def begin_with(self, noted: Sums, over_ms: int) -> bool:
        """Whether all files begin with what was noted of them, but for those of a time that was
        over by then, which may be gone. What a disk does not give back is not there either."""
        there = set(self._names())
        try:
            for name, (size, crc) in noted.items():
                if name in there:
                    with opened(f"{self._directory}/{name}", os.O_RDONLY) as handle:
                        there_bytes = os.fstat(handle).st_size
                        if there_bytes < size or _crc(handle, size) != crc:
                            return False
                    if there_bytes == size:
                        self._sums[name] = size, crc  # the first sync need not read it again
                elif not _is_name(name) or _end_ms(name) > over_ms:
                    return False
        except OSError:
            return False
        return True

    def end_with(self, noted: Sums) -> bool:
        """Whether these are all files, and as long as was noted."""
        sizes = {name: os.stat(f"{self._directory}/{name}").st_size for name in self._names()}
        return sizes == {name: size for name, (size, _) in noted.items()}

    def minutes(self) -> list[int]:
        """Those that have a file, in order."""
        return sorted(int(name) for name in self._names() if not name.endswith(_HOUR))

    def hours(self) -> list[int]:
        """Those that have a file, in order."""
        return sorted(int(name[:-1]) for name in self._names() if name.endswith(_HOUR))

    def _names(self) -> list[str]:
        """Of the files; anything else that somebody has put there is left alone."""
        try:
            with os.scandir(self._directory) as found:
                return [each.name for each in found if _is_name(each.name) and each.is_file()]
        except FileNotFoundError:
            return []

    def count(self, number: int, hour: bool = False) -> int:
        """How many entries a minute or an hour has."""
        try:
            return os.stat(self._path(number, hour)).st_size // ENTRY.itemsize
        except FileNotFoundError:
            return 0

    def drop(self, numbers: Iterable[int], hour: bool = False) -> None:
        """Remove files whose time is over."""
        for number in numbers:
            self._sums.pop(_name(number, hour), None)
            Path(self._path(number, hour)).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all: they are built again from the wheel topic."""
        self.drop(self.minutes())
        self.drop(self.hours(), True)

    def open_directory(self) -> int:
        """A descriptor of the directory, for a sync of its file system. Raises OSError.

        It stays open: the kernel reports a failed write to descriptors that were open at that time.
        """
        if self._handle < 0:
            make_directory(self._directory)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._handle = take_descriptor(lambda: os.open(self._directory, flags))
        return self._handle

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def _path(self, number: int, hour: bool) -> str:
        return f"{self._directory}/{_name(number, hour)}"


def _name(number: int, hour: bool) -> str:
    return f"{number}{_HOUR if hour else ''}"


def _is_name(name: str) -> bool:
    number = name.removesuffix(_HOUR)
    return number.isascii() and number.isdigit()


def _end_ms(name: str) -> int:
    """When the time of a file is over."""
    each_ms = HOUR_MS if name.endswith(_HOUR) else MINUTE_MS
    return (int(name.removesuffix(_HOUR)) + 1) * each_ms


def _crc(handle: int, size: int) -> int:
    """Of a file's first bytes, as far as they are there."""
    crc = at = 0
    while at < size and (raw := read_at(handle, min(_READ_BYTES, size - at), at)):
        crc, at = zlib.crc32(raw, crc), at + len(raw)
    return crc


def each_once(entries: Entries) -> Entries:
    """The entries without repetitions, in their order.

    Two different entries for one place are both kept: after a power failure another record may be
    there, and only the record shows which entry is its own.
    """
    at = entries["at"]
    if (at[1:] > at[:-1]).all():
        return entries  # in queue order, so none is there twice
    order = np.lexsort([entries[name] for name in ENTRY.names or ()])
    once = np.ones(len(at), np.bool_)
    once[1:] = entries[order][1:] != entries[order][:-1]
    return entries[np.sort(order[once])]
