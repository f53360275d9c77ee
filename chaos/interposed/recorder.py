"""A recording of what a broker has made durable, flush by flush, and how to make one.

recorder.c makes it, loaded into every process of the broker; it describes the recording's files. An
acknowledgement that is stamped with `flushes()` when it arrives must be on the disk as it was after
that flush.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096
_FILE, _DIRECTORY = 1, 2
_WORD = struct.Struct("=Q")
SOURCE = Path(__file__).with_suffix(".c")


class Flush(NamedTuple):
    """One thing made durable: pages of a file, or the names in a directory. Files have the ids that
    `file_id` in images.py gives them."""

    sequence: int
    file: int
    size: int
    pages: dict[int, bytes]
    path: str
    names: dict[str, int]


class Recorder:
    """Sets up a recording for a process that is started with `environment`."""

    def __init__(self, place: Path, root: Path, library: Path) -> None:
        (place / "shadow").mkdir(parents=True)
        (place / "clock").write_bytes(bytes(16))
        self.place = place
        self.environment = {
            "LD_PRELOAD": str(library),
            "PENSTOCK_RECORD_ROOT": str(root.resolve()),
            "PENSTOCK_RECORD_DIR": str(place),
        }
        with (place / "clock").open("rb") as file:
            self._clock = mmap.mmap(file.fileno(), 16, prot=mmap.PROT_READ)
        self._words = memoryview(self._clock).cast("Q")

    def flushes(self) -> int:
        """How many flushes have succeeded by now; acknowledgements are stamped with it."""
        return self._words[0]

    def close(self) -> None:
        self._words.release()
        self._clock.close()


def read_flushes(place: Path) -> Iterator[Flush]:
    """The flushes of a recording, in order."""
    with (place / "clock").open("rb") as file:
        end = _WORD.unpack_from(file.read(), 8)[0]
    with (place / "log").open("rb") as file:
        while file.tell() < end:
            kind, sequence = _words(file.read(16))
            if kind == _DIRECTORY:
                length, count = _words(file.read(16))
                path = os.fsdecode(file.read(length))
                names = {}
                for _ in range(count):
                    id_, size = _words(file.read(16))
                    names[os.fsdecode(file.read(size))] = id_
                yield Flush(sequence, 0, 0, {}, path, names)
            else:
                id_, size, count = _words(file.read(24))
                pages = {}
                for _ in range(count):
                    (page,) = _words(file.read(8))
                    pages[page] = file.read(PAGE_BYTES)
                yield Flush(sequence, id_, size, pages, "", {})


def _words(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(raw) // 8}Q", raw)
