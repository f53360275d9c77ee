"""Makes the index durable as it grows. Used by the flusher alone.

Writes to slots are spread all over their 20 MB, so syncing slots all the time would cost more than
syncing the log. They follow from the items, and items are appended. So only new items are synced,
by writing the same bytes again with a sync of that range, and a start after a crash rebuilds the
slots. A file is synced as a whole when it is first seen, when it is full, and at an orderly stop.

The kernel reports a failed sync once, and a predecessor may have died before it passed that on. So
whatever it left and the checkpoint does not vouch for is written again first: a file's items; and
its slots once nobody stores there any more, because the file is full or the broker stops.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Generator
from pathlib import Path

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.durable import FlushFailed, sync_directory, sync_file, write_again
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.index_layout import HEADER, Geometry, IndexHeader, decode_header
from penstock.shared.index.directory import index_files

_PIECE_BYTES = 1 << 20
# where an item has its log offset, as index_header.py draws it
_OFFSET_AT = 4


class IndexSync:
    """How far each file of the index is on disk, and syncing the rest."""

    def __init__(self, directory: Path, geometry: Geometry, known: Checkpoint) -> None:
        self._directory = directory
        self._geometry = geometry
        self._known = known
        self._in_doubt = {path.name for path in index_files(directory)}
        # file -> items that are on disk; full files that need nothing more
        self._synced: dict[str, int] = {}
        self._full: set[str] = set()

    def sync(self, dispatched: int, *, whole: bool = False) -> Generator[None, None, int]:
        """Sync all items of records below `dispatched`; with `whole` also slots and headers.

        A generator; a step is a file or a piece. Returns the newest time of the files that have
        become full and are whole on disk, 0 if there is none. A new reput changes nothing below
        `dispatched`, and writes the same bytes again above it.
        """
        full_ms = 0
        for path in index_files(self._directory):
            if path.name in self._full:
                continue
            try:
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # a cut emptied it, or it has expired
            try:
                header = decode_header(read_at(handle, HEADER.size, 0))
                is_full = header.next_item >= self._geometry.items
                is_full = is_full and header.end_offset < dispatched
                is_new = path.name not in self._synced
                if is_new and path.name in self._in_doubt:
                    yield from self._write_items_again(handle, header)
                if (is_full or whole) and path.name in self._in_doubt:
                    yield from self._write_slots_again(handle, header)
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

    def _is_known(self, header: IndexHeader) -> bool:
        """Whether the checkpoint vouches for a whole file."""
        is_full = header.next_item >= self._geometry.items
        return is_full and header.end_timestamp_ms <= self._known.index_timestamp_ms

    def _write_items_again(self, handle: int, header: IndexHeader) -> Generator[None, None, None]:
        if self._is_known(header):
            return
        confirmed = self._known.confirm_offset or -1  # 0 means that nothing is confirmed yet

        def is_unknown(number: int) -> bool:
            offset = read_at(handle, 8, self._geometry.item_at(number) + _OFFSET_AT)
            return int.from_bytes(offset, "big") > confirmed

        numbers = range(1, header.next_item)
        first = numbers.start + bisect_left(numbers, True, key=is_unknown)
        start, stop = self._geometry.item_at(first), self._geometry.item_at(header.next_item)
        yield from _write_again(handle, start, stop)

    def _write_slots_again(self, handle: int, header: IndexHeader) -> Generator[None, None, None]:
        if not self._is_known(header):
            yield from _write_again(handle, 0, self._geometry.table_bytes)

    def _sync_items(self, handle: int, start: int, stop: int) -> Generator[None, None, None]:
        at, end = self._geometry.item_at(start), self._geometry.item_at(stop)
        while at < end:
            piece = os.pread(handle, min(_PIECE_BYTES, end - at), at)
            if not piece:
                return  # somebody has truncated it; the reput, which stores there, finds out
            try:
                at += os.pwritev(handle, [piece], at, os.RWF_DSYNC)
            except OSError as error:  # from the write or from the sync: nobody can tell
                raise FlushFailed(error.errno, error.strerror) from error
            crash_point("flush.mid_index")
            yield


def _write_again(handle: int, start: int, stop: int) -> Generator[None, None, None]:
    """Write again in pieces, up to the end of the file at most."""
    stop = min(stop, os.fstat(handle).st_size)
    for at in range(start, stop, _PIECE_BYTES):
        # an index can be made again
        write_again(handle, at, min(at + _PIECE_BYTES, stop), replaces=True)
        yield
