"""Makes the index durable as it grows. Used by the flusher alone.

Slots are written all over their 20 MB, so syncing them all the time would cost more than the log
does. They follow from the items, and those are appended: so only new items are synced, by writing
the same bytes once more with a sync of that range, and a start after a crash makes the slots anew.
A file is synced as a whole when it is first seen, when it is full, and at an orderly stop.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

from penstock.shared.durable_files import FlushFailed, sync_directory, sync_file
from penstock.shared.faults import crash_point
from penstock.shared.index_directory import index_files
from penstock.shared.index_header import HEADER, Geometry, decode_header

_PIECE_BYTES = 1 << 20


class IndexSync:
    """How far each file of the index is on disk, and bringing it there."""

    def __init__(self, directory: Path, geometry: Geometry) -> None:
        self._directory = directory
        self._geometry = geometry
        # the items of a file that are on disk; of a full one nothing is left to do
        self._synced: dict[str, int] = {}
        self._full: set[str] = set()

    def sync(self, dispatched: int, *, whole: bool = False) -> Generator[None, None, int]:
        """Sync every item of records below `dispatched`; `whole` also slots and headers.

        A generator, a file or a piece a step. Returns the newest time of the files that have
        become full and are whole on disk, 0 when there is none. A new reput changes nothing below
        `dispatched`, and puts back the same bytes behind it.
        """
        full_ms = 0
        for path in index_files(self._directory):
            if path.name in self._full:
                continue
            try:
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # emptied by a cut, or expired
            try:
                header = decode_header(os.pread(handle, HEADER.size, 0))
                is_full = header.next_item >= self._geometry.items
                is_full = is_full and header.end_offset < dispatched
                is_new = path.name not in self._synced
                if whole or is_full or is_new:
                    sync_file(handle)
                else:
                    yield from self._sync_items(handle, self._synced[path.name], header.next_item)
            finally:
                os.close(handle)
            if is_new:
                yield
                sync_directory(self._directory)
            self._synced[path.name] = header.next_item
            if is_full:
                self._full.add(path.name)
                full_ms = max(full_ms, header.end_timestamp_ms)
            yield
        return full_ms

    def _sync_items(self, handle: int, start: int, stop: int) -> Generator[None, None, None]:
        at, end = self._geometry.item_at(start), self._geometry.item_at(stop)
        while at < end:
            piece = os.pread(handle, min(_PIECE_BYTES, end - at), at)
            try:
                at += os.pwritev(handle, [piece], at, os.RWF_DSYNC)
            except OSError as error:  # of the writing or of the sync: nobody can tell
                raise FlushFailed(error.errno, error.strerror) from error
            crash_point("flush.mid_index")
            yield
