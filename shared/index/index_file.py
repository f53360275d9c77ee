"""The index directory: files in order of their names, of which the last one is being filled.

The reput writes it (or recovery and rebuild, while no reput runs); others only read. A put writes
the items, then the slots, then the header, which is one small write: if the writer is killed in
between, items that the header does not count do not exist. `cut` makes the slots forget them, so a
successor can put them again and nothing is there twice.

Items and header are written, slots are stored in the mapping: header and slots are allocated before
that, so a full disk is an OSError and not a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np

from penstock.shared.faults import crash_point
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.files.durable import (
    make_directory,
    make_file,
    sync_directory,
    write_at,
    zero_from,
)
from penstock.shared.formats.index_chains import ITEM_DTYPE, SLOT_DTYPE, Entries, counted
from penstock.shared.formats.index_layout import HEADER, Geometry, IndexHeader, decode_header
from penstock.shared.index.directory import NAME_DIGITS, check_index_size, index_files
from penstock.shared.loops.active import PageWatch, link_entries, move_slots

# The number of items that are processed in memory at once.
_PIECE = 1 << 18

# The store time in ms of the record at a log offset; None when the log no longer has it.
StoredMs = Callable[[int], int | None]


class IndexFile:
    """One file, mapped. Reads are numpy arrays on the mapping; a writer also gets `slots` to fill.

    Only one process writes a file. Others may read it meanwhile: an item is complete before a slot
    leads to it. `handle` serves pwrite and fdatasync.

    Raises StoreDamaged for a file of another length than the geometry's.
    """

    def __init__(self, path: Path, geometry: Geometry, writable: bool = False) -> None:
        self.path = path
        self.geometry = geometry
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        self.handle = take_descriptor(lambda: os.open(path, flags))
        try:
            check_index_size(path, os.fstat(self.handle).st_size, geometry)
            if writable:
                # before it is mapped: a store into a hole raises SIGBUS on a full disk
                os.posix_fallocate(self.handle, 0, geometry.table_bytes)
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            mapped = take_descriptor(
                lambda: mmap.mmap(self.handle, geometry.file_bytes, mmap.MAP_SHARED, access)
            )
            if writable:
                # slots are touched at random: the kernel should not fetch their neighbours, too
                mapped.madvise(mmap.MADV_RANDOM)
        except BaseException:
            os.close(self.handle)
            raise
        # An index can be made again, so it is watched where it is written, too.
        self._watched = PageWatch(mapped)
        # the mapping lives until the last array on it is gone
        self.view = memoryview(mapped)
        self.slots = np.frombuffer(mapped, SLOT_DTYPE, geometry.slots, HEADER.size)
        self.items = np.frombuffer(mapped, ITEM_DTYPE, geometry.items, geometry.table_bytes)

    @property
    def header(self) -> IndexHeader:
        """The header as it is now: it moves on while the file is being filled."""
        return decode_header(self.view)

    def put(self, header: IndexHeader, new: Entries) -> IndexHeader:
        """Add entries, for which there is room. Returns the new header. Raises OSError.

        In this order a crash may come anywhere: nobody finds items that no slot leads to, and `cut`
        turns back slots that lead past what the header counts.
        """
        first = header.next_item
        items, empty = link_entries(self.slots, *new, first, header.begin_timestamp_ms)
        write_at(self.handle, items, self._at(first))
        crash_point("index.after_items")
        move_slots(self.slots, new.hashes, first)
        crash_point("index.after_slots")
        header = counted(header, new, empty)
        self.write_header(header)
        return header

    def write_header(self, header: IndexHeader) -> None:
        """The commit point of a put and of a cut: one write of 40 bytes. Not synced."""
        write_at(self.handle, header.encode(), 0)

    def first_at(self, offset: int, next_item: int) -> int:
        """The first item below `next_item` of a record at or after a log offset; `next_item` where
        there is none. Entries are put in log order, so bisection finds it."""
        numbers = range(1, next_item)
        found = bisect_left(numbers, offset, key=lambda number: int(self.items[number]["offset"]))
        return 1 + found

    def cut(self, kept: int, stored_ms: StoredMs) -> IndexHeader:
        """Forget the items from number `kept` on, which is at least 2. Returns the new header.

        Their bytes stay, for the flusher may be syncing them; the next items overwrite them.
        """
        header = self.header
        # even if all items stay: a writer that was killed may have stored slots past the header
        self._unlink(kept)
        # after a kill here the header still counts the rest, and the next cut has the same result
        crash_point("index.mid_cut")
        gone = self.items["previous"][kept : header.next_item]
        last = self.items[kept - 1]
        end = int(last["offset"])
        end_ms = header.end_timestamp_ms
        if kept < header.next_item:
            found_ms = stored_ms(end)
            if found_ms is None:  # expired: use the item's time, which is exact to the second
                found_ms = header.begin_timestamp_ms + 1000 * int(last["seconds"])
            end_ms = found_ms
        # an item without a predecessor had found its slot empty, and the header counts such slots
        header = IndexHeader(
            header.begin_timestamp_ms,
            end_ms,
            header.begin_offset,
            end,
            header.slots_in_use - int(np.count_nonzero(gone == 0)),
            kept,
        )
        self.write_header(header)
        return header

    def clear(self) -> None:
        """Zero what stands after the counted items, and sync. Nobody else may be using the file."""
        start = self._at(self.header.next_item)
        # also where it is zero: an earlier start may have zeroed it, but failed to sync it
        zero_from(self.handle, start, self.geometry.file_bytes, again=True)
        self.sync()

    def repair(self, offset: int, stored_ms: StoredMs) -> None:
        """Make the file again from its items, of which those of records below `offset` are whole.

        Header and slots may be older or newer than the items, and what comes after those items may
        be anything. So only the header's begin timestamp is believed, from which items count their
        seconds. All of the file is durable on return.
        """
        kept = self.whole_items(offset)
        header = IndexHeader()
        if kept > 1:
            begin, last = int(self.items[1]["offset"]), self.items[kept - 1]
            # the header cannot be older than item 1: the file was synced when that was new
            begin_ms = self.header.begin_timestamp_ms
            end_ms = stored_ms(int(last["offset"]))
            if end_ms is None:
                end_ms = begin_ms + 1000 * int(last["seconds"])
            header = IndexHeader(
                begin_ms, end_ms, begin, int(last["offset"]), self.link_again(kept), kept
            )
        # after a kill here the header is the old one, and the next repair goes by the items again
        crash_point("index.mid_repair")
        self.write_header(header)
        self.clear()

    def whole_items(self, offset: int) -> int:
        """One more than the number of the last item that is certainly there.

        Items have no checksum. They are recognised by their log offsets, which never decrease from
        one to the next and are below `offset`: items from there on may not be on disk.
        """
        newest, kept = 0, 1
        for start in range(1, self.geometry.items, _PIECE):
            items = self.items[start : start + _PIECE]
            offsets = items["offset"].astype(np.int64)
            is_whole = (offsets >= np.maximum.accumulate(np.append(newest, offsets))[:-1]) & (
                offsets < offset
            )
            count = len(items) if is_whole.all() else int(np.argmin(is_whole))
            # zeros can be part of an item only at the log's very beginning, and never all of it
            is_written = np.flatnonzero((offsets[:count] > 0) | (items["hash"][:count] != 0))
            kept = start + int(is_written[-1]) + 1 if len(is_written) else kept
            if count < len(items) or not len(is_written):
                break
            newest = int(offsets[-1])
        return kept

    def _unlink(self, kept: int) -> None:
        """Let every slot point to its newest item before number `kept`.

        All slots of a piece step back along their chains together, until none points too far.
        """
        for start in range(0, self.geometry.slots, _PIECE):
            slots = self.slots[start : start + _PIECE]
            stale = np.flatnonzero(slots >= kept)
            while len(stale):
                numbers = slots[stale].astype(np.int64)
                # garbage leads out of the file, and is sent to item 0: that is never used, and its
                # zeros end a chain
                numbers[numbers >= self.geometry.items] = 0
                before = self.items["previous"][numbers].astype(np.int64)
                before[(before < 0) | (before >= numbers)] = 0  # chains lead to older items
                slots[stale] = before
                stale = stale[before >= kept]

    def link_again(self, next_item: int) -> int:
        """Make all slots again from the items below `next_item`. Returns how many are in use.

        The items' own links stay as they are: they were written with the items.
        """
        self.slots[:] = 0
        in_use = 0
        for start in range(1, next_item, _PIECE):
            items = self.items[start : min(start + _PIECE, next_item)]
            # where several items have one slot, the last assignment wins
            targets = items["hash"].astype(np.int64) % self.geometry.slots
            self.slots[targets] = np.arange(start, start + len(items))
            in_use += int(np.count_nonzero(items["previous"] == 0))
        return in_use

    def sync(self) -> None:
        """Make items, header and slots durable, what was stored in the mapping included. Raises
        OSError."""
        os.fdatasync(self.handle)

    def close(self) -> None:
        os.close(self.handle)
        # copies, because an array on the mapping keeps it open, even an empty array
        self.slots, self.items = self.slots[:0].copy(), self.items[:0].copy()
        self.view.release()

    def _at(self, number: int) -> int:
        return self.geometry.item_at(number)


class IndexFiles:
    """Writes the index of a store; entries come in log order. Files are made as needed.

    If there are files already, and after an error, the first call has to be `cut`: slots may lead
    to items that no header counts. And the newest file may have items past the log offset from
    which the caller goes on; they would be there twice.
    """

    def __init__(
        self, directory: Path, staging: Path, geometry: Geometry, now_ms: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._staging = staging
        self.geometry = geometry
        self._now_ms = now_ms
        self._active: IndexFile | None = None
        self._header = IndexHeader()
        self._open_last()

    def clear(self) -> None:
        """Zero what stands after the counted items; then all of the newest file is durable."""
        if self._active is not None:
            self._active.clear()

    @property
    def end_offset(self) -> int | None:
        """The log offset of the newest record in the index; None when there is none."""
        return self._header.end_offset if self._header.next_item > 1 else None

    def put(self, new: Entries) -> None:
        """Add entries. Raises OSError: then only some of them may be there, and `cut` is due."""
        done, count = 0, len(new.hashes)
        while done < count:
            room = self.geometry.items - self._header.next_item
            if self._active is None or room <= 0:
                self._make_next()
                continue
            part = new.part(done, done + room)
            self._header = self._active.put(self._header, part)
            done += len(part.hashes)

    def cut(self, offset: int, stored_ms: StoredMs) -> None:
        """Forget the items of records at or after a log offset, and items that no header counts."""
        while self._active is not None:
            kept = self._active.first_at(offset, self._header.next_item)
            if kept > 1:  # item 0 is never used, so with 1 no item would be left
                self._header = self._active.cut(kept, stored_ms)
                return
            self._active.path.unlink()
            crash_point("index.cut_file")
            # before anything is put into the previous file: a power failure must not bring this
            # one back as the newest
            sync_directory(self._directory)
            self._open_last()

    def _open_last(self) -> None:
        self.close()
        self._header = IndexHeader()
        files = index_files(self._directory)
        if files:
            self._active = IndexFile(files[-1], self.geometry, writable=True)
            self._header = self._active.header

    def _make_next(self) -> None:
        make_directory(self._directory)
        files = index_files(self._directory)
        name = _name_after(files[-1].name if files else "", self._now_ms())
        path = self._directory / name
        header = self._header.successor()
        crash_point("index.new_file")
        size = self.geometry.file_bytes
        # Sparse, since a file of the default geometry has 420 MB. Opening it allocates header and
        # slots.
        make_file(self._staging, path, size, sparse=True, head=header.encode())
        made = IndexFile(path, self.geometry, writable=True)
        # after everything that can fail: until here the full file stays the active one
        self.close()
        self._active, self._header = made, header

    def close(self) -> None:
        if self._active is not None:
            self._active.close()
            self._active = None


def _name_after(last: str, now_ms: int) -> str:
    """A name of local time, as RocketMQ gives; later than the last one whatever the clock says."""
    local = datetime.fromtimestamp(now_ms / 1000)
    name = f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
    # the last name plus one need not be a time, but files are only sorted by their names
    return name if name > last else f"{int(last) + 1:0{NAME_DIGITS}d}"
