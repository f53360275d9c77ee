"""Prepares a new segment for a writer that stores into its mapping: touches all pages, locks them.

The first store to a page of a file costs its writer a fault: the kernel finds memory, clears it and
asks the file system for blocks. After a touch, the writer pays only a short fault that enters the
page into its tables. A touch writes a zero over a zero, so it is only for segments that nobody else
writes to yet. With sync flushing, touched pages are written out bit by bit; otherwise the writer's
first flush would find a gigabyte to write.

A lock belongs to the process that asks for it, but keeps the pages in memory for all processes,
since they are the file's. Used by the allocator alone.
"""

from __future__ import annotations

from pathlib import Path

from penstock.shared.files.mapped_file_queue import MappedFile
from penstock.shared.layout import PAGE_BYTES

# Pages that one step touches at most; the heartbeat comes between steps.
STEP_PAGES = 4096


class WarmSegment:
    """One segment, mapped to be warmed and locked; closing it unlocks it."""

    def __init__(self, path: Path, base: int, size: int, sync_pages: int) -> None:
        self.end = base + size
        self._file = MappedFile(path, base, size, writable=True)
        self._sync_bytes = sync_pages * PAGE_BYTES
        self._touched = self._synced = 0

    def step(self) -> bool:
        """Touch some more pages; whether all are touched, and synced if that is wanted."""
        size = self._file.size
        stop = min(size, self._touched + STEP_PAGES * PAGE_BYTES)
        pages = self._file.view[self._touched : stop : PAGE_BYTES]
        pages[:] = bytes(len(pages))
        self._touched = stop
        done = stop == size
        if self._sync_bytes and (done or stop - self._synced >= self._sync_bytes):
            self._file.sync(self._synced, stop)
            self._synced = stop
        return done

    def lock(self) -> int:
        """Keep the pages in memory while this is open; 0, or the errno of the failure."""
        return self._file.lock()

    def close(self) -> None:
        self._file.close()
