"""Segments of one size in one directory, mapped on demand: a log of bytes with global offsets.

Segment n starts at n * segment_bytes and is named by that offset. A MappedFile is one of them. This
file does not create or delete segments (the allocator, the reput and the cleaner do), and does not
know how far their bytes are valid: callers bound every access by a position.

A reader of a segment holds a view of it, and a mapping lives as long as a view does. RocketMQ
counts holders by hand (hold, release, shutdown); here the mapping itself counts its views, so none
can be forgotten or be freed twice. A segment goes through these states:

    available   views are made of it
    shut down   no new view is made: its file was deleted, or other segments are used more
    gone        unmapped and closed, as soon as the last view is released

A deleted file occupies disk space until the last process has unmapped it. So `release_deleted` says
how long a deleted one has been held. The caller then makes its holders release it, because only the
caller knows them; bytes that are still being sent cannot be unmapped here.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.layout import segment_name

_LIBC = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


class LostPages(Protocol):
    """Sees to pages of a mapping that the disk cannot read: they become bytes of 0xFF. Without it,
    to touch such a page is a SIGBUS. See `loops.lost_pages`, which this room may not know."""

    @property
    def lost(self) -> int: ...

    @property
    def first(self) -> int: ...

    def end(self) -> None: ...


Watch = Callable[[mmap.mmap], LostPages]


class MappedFile:
    """One segment, mapped as a whole. `handle` serves pread, pwrite and fdatasync."""

    def __init__(
        self, path: Path, base: int, size: int, writable: bool, watch: Watch | None = None
    ) -> None:
        self.base = base
        self.size = size
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW
        self.handle = take_descriptor(lambda: os.open(path, flags))
        try:
            found = os.fstat(self.handle)
            if found.st_size != size:
                raise StoreDamaged(
                    f"a segment is not {size} bytes long", f"{path} has {found.st_size}"
                )
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            # a mapping keeps a descriptor of its own
            self._map = take_descriptor(
                lambda: mmap.mmap(self.handle, size, mmap.MAP_SHARED, access)
            )
        except BaseException:
            os.close(self.handle)
            raise
        self.view = memoryview(self._map)
        self._path, self._inode = path, found.st_ino
        self._watched = watch(self._map) if watch is not None else None
        self._is_told = False
        # when the file was first found deleted; -1 while it is not
        self.deleted_ms = -1

    def release_pages(self) -> None:
        """Release the pages that this process has mapped. Bytes and views stay; the next access
        faults them in again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def read_ahead(self, is_on: bool) -> None:
        """Whether the kernel reads ahead when it reads a page that is not in memory."""
        self._map.madvise(mmap.MADV_NORMAL if is_on else mmap.MADV_RANDOM)

    def sync(self, start: int, stop: int) -> None:
        """Write out the pages of [start, stop), which begins at a page, through the mapping."""
        self._map.flush(start, stop - start)

    def lock(self) -> int:
        """Read all of it into memory, to stay there while it is mapped. Returns 0 or an errno."""
        self._map.madvise(mmap.MADV_WILLNEED)
        # mmap does not tell its address, but a ctypes object on its first byte does
        first = ctypes.c_char.from_buffer(self._map)
        if not _LIBC.mlock(ctypes.byref(first), ctypes.c_size_t(self.size)):
            return 0
        return ctypes.get_errno()

    def tell_lost(self) -> None:
        """Log, once, that the disk cannot read all of it."""
        if self._watched is not None and self._watched.lost and not self._is_told:
            self._is_told = True
            at = self._watched.first
            _log.warning(
                "the disk cannot read %s at byte %d, and perhaps at others", self._path, at
            )

    def is_deleted(self) -> bool:
        """Whether the name is gone, or is another file's. A reused file has another name; it is
        reused once nobody has it open."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_ino != self._inode
        except FileNotFoundError:
            return True

    def close(self) -> bool:
        """Hand out no more views. Returns whether it is gone; while a view is left it is not.

        Call it again until it is. Python refuses to unmap what a view shows, and that refusal takes
        the place of counting the holders.
        """
        self.view = memoryview(b"")
        try:
            self._map.close()
        except BufferError:
            return False
        if self._watched is not None:
            self._watched.end()
        os.close(self.handle)
        return True


class MappedFileQueue:
    """The segments of a directory; at most `keep`, the most recently used ones, stay mapped."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        writable: bool = False,
        keep: int = 16,
        watch: Watch | None = None,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._writable = writable
        self._keep = keep
        self._watch = watch
        self._reads_ahead = True
        self._open: OrderedDict[int, MappedFile] = OrderedDict()
        # segments that were shut down while somebody still holds a view
        self._held: list[MappedFile] = []

    def segment(self, position: int) -> MappedFile:
        """The segment that contains this offset. Raises FileNotFoundError where there is none."""
        base = position - position % self.segment_bytes
        found = self._open.get(base)
        if found is None:
            found = MappedFile(
                self.path(position), base, self.segment_bytes, self._writable, self._watch
            )
            self._open[base] = found
            if not self._reads_ahead:
                found.read_ahead(False)
            if len(self._open) > self._keep:
                self._shut_down(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(base)
        return found

    def path(self, position: int) -> Path:
        """The file for this offset, whether it exists or not."""
        return self.directory / segment_name(position - position % self.segment_bytes)

    def view(self, position: int, limit: int) -> memoryview:
        """The bytes from `position` to `limit` or to the segment's end, whichever is first."""
        segment = self.segment(position)
        at = position - segment.base
        return segment.view[at : min(limit - segment.base, segment.size)]

    def release_pages(self) -> None:
        """Release the pages of all mapped segments."""
        for segment in self._open.values():
            segment.release_pages()

    def read_ahead(self, is_on: bool) -> None:
        """See MappedFile; for all segments that are mapped now or later."""
        self._reads_ahead = is_on
        for segment in self._open.values():
            segment.read_ahead(is_on)

    def _shut_down(self, segment: MappedFile) -> None:
        if not segment.close():
            self._held.append(segment)

    def release_deleted(self, now_ms: int) -> int:
        """Close deleted segments, and those whose last view has been released by now.

        Returns for how many ms a deleted segment has been held, for the one held longest; 0 if none
        is. The time counts from the first call that found the segment deleted.
        """
        for base, segment in list(self._open.items()):
            segment.tell_lost()
            if segment.is_deleted():
                self._shut_down(self._open.pop(base))
        self._held = [segment for segment in self._held if not segment.close()]
        longest_ms = 0
        for segment in self._held:
            if segment.deleted_ms >= 0:
                longest_ms = max(longest_ms, now_ms - segment.deleted_ms)
            elif segment.is_deleted():
                segment.deleted_ms = now_ms
        return longest_ms

    def close(self) -> None:
        """Shut all segments down. Each stays mapped until its last view is released."""
        while self._open:
            self._shut_down(self._open.popitem()[1])
