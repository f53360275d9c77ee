"""Files that actors of tests leave open, as processes that end do.

A test drops an actor as a crash would, and nothing of it is closed: in a broker the kernel does
that. Here thousands of descriptors would be left, each with a file that is deleted and takes room
all the same. Each process that is forked then copies the list of them, and whoever counts
descriptors reads all of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class LeftOpen:
    """Notes, as a context, what `os.open` has given and `os.close` has not had."""

    def __init__(self) -> None:
        self._open, self._close = os.open, os.close
        # path and identity of each file, by its descriptor
        self._noted: dict[int, tuple[str, int, int]] = {}

    def __enter__(self) -> LeftOpen:
        vars(os)["open"], vars(os)["close"] = self._noting_open, self._noting_close
        return self

    def __exit__(self, *error: object) -> None:
        vars(os)["open"], vars(os)["close"] = self._open, self._close

    def _noting_open(self, path: Any, *given: Any, **named: Any) -> int:
        handle = self._open(path, *given, **named)
        if isinstance(path, (str, os.PathLike)):
            found = os.fstat(handle)
            self._noted[handle] = str(path), found.st_dev, found.st_ino
        return handle

    def _noting_close(self, handle: int) -> None:
        self._noted.pop(handle, None)
        self._close(handle)

    def close_below(self, place: Path) -> int:
        """Close what was opened below this directory and is open still; how many those were.
        Nobody may use any of it afterwards, nor close it."""
        within, closed = f"{place}{os.sep}", 0
        for handle, (path, *identity) in list(self._noted.items()):
            if not path.startswith(within):
                continue
            del self._noted[handle]
            # its number may be another's by now, if it was closed by no call of Python's
            with suppress(OSError):
                found = os.fstat(handle)
                if [found.st_dev, found.st_ino] == identity:
                    self._close(handle)
                    closed += 1
        return closed
