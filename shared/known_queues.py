"""The queues that a store has had: STORE/penstock/queues, a line "topic/queue" for each.

A checkpoint vouches for the entries of all queues. Should one of them be gone, directory and all,
nobody would miss it, and what it held would never be dispatched again: so the flusher writes a
queue's name here before a checkpoint may count on it, and a start compares. Lines are appended; the
last one may be torn by a crash, and then does not count.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from penstock.shared.durable_files import (
    replace_file,
    sync_directory,
    sync_file,
    write_again,
    write_at,
)
from penstock.shared.faults import crash_point


def load_known_queues(file: Path) -> set[str]:
    """The names; none where there is no file."""
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return set()
    return {line.decode("ascii", "replace") for line in lines[:-1]}


def replace_known_queues(file: Path, names: Iterable[str]) -> None:
    """Begin the list anew; durable on return. While no actor runs."""
    replace_file(file, "".join(f"{name}\n" for name in sorted(names)).encode())


def make_known_queues(file: Path) -> None:
    """Make an empty list where there is none. While no actor runs."""
    if not file.exists():
        replace_file(file, b"")


class KnownQueues:
    """The list, for the flusher, which alone appends to it. A start has made the file."""

    def __init__(self, file: Path) -> None:
        self._names = load_known_queues(file)
        self._directory = file.parent
        self._handle = os.open(file, os.O_RDWR)
        content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        self._synced = False

    def sync(self) -> Generator[None, None, None]:
        """Make durable what a predecessor may have written, and died before it synced, or before it
        told of a sync that failed."""
        if not self._synced:
            write_again(self._handle, 0, self._end)
            sync_file(self._handle)
            yield
            sync_directory(self._directory)
            self._synced = True
            yield

    def add(self, names: Sequence[str]) -> bool:
        """Queues have entries; their names are durable on return. Whether one was not before.

        Raises OSError; then none is known, and the next try writes them to the same place.
        """
        new = [name for name in names if name not in self._names]
        if not new:
            return False
        lines = "".join([f"{name}\n" for name in new]).encode()
        write_at(self._handle, lines, self._end)
        crash_point("known.written")
        sync_file(self._handle)
        self._end += len(lines)
        self._names.update(new)
        return True

    def close(self) -> None:
        os.close(self._handle)
