"""Reads files at offsets, and keeps the last few of them open.

For processes that read a store without owning it, and visit far more files than they may have open.
It never maps: if a file shrinks while it is read, the read is short, and no signal is raised.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from pathlib import Path

from penstock.shared.files.bad_sectors import read_at, read_into
from penstock.shared.files.descriptors import take_descriptor

OPEN_FILES = 16


class FileCache:
    """Reads at offsets and counts what it has read. For one thread.

    The counts cover everything that was read here, whether from the disk or from the page cache.
    """

    def __init__(self, open_files: int = OPEN_FILES) -> None:
        self._open_files = open_files
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._read: set[Path] = set()
        self.bytes_read = 0

    def descriptor(self, path: Path) -> int:
        """An open descriptor, good until the next call. A link in the file's place is refused."""
        # taken out and put back in: that keeps the table in order of the last use
        fd = self._files.pop(path, -1)
        if fd < 0:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = take_descriptor(lambda: os.open(path, flags))
            # No read-ahead: reads are large anyway, and pages that the kernel reads ahead into a
            # hole count as data afterwards, so `next_data` would creep through an empty gigabyte.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            if len(self._files) >= self._open_files:
                os.close(self._files.popitem(last=False)[1])
        self._files[path] = fd
        return fd

    @property
    def files_read(self) -> int:
        """The number of files from which something was read."""
        return len(self._read)

    def exists(self, path: Path) -> bool:
        """Whether it can be read. Opening it keeps it readable for a while, even if the cleaner
        deletes it before the read."""
        try:
            self.descriptor(path)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """`size` bytes, or fewer where the file ends. Raises OSError."""
        fd = self.descriptor(path)
        try:
            raw = read_at(fd, size, offset)
        except OSError as error:
            error.filename = str(path)  # the read knows only the descriptor
            raise
        self._read.add(path)
        self.bytes_read += len(raw)
        return raw

    def read_into(self, path: Path, offset: int, target: memoryview) -> int:
        """Fill the target. Returns its bytes, fewer where the file ends. Raises OSError."""
        fd = self.descriptor(path)
        try:
            have = read_into(fd, target, offset)
        except OSError as error:
            error.filename = str(path)  # the read knows only the descriptor
            raise
        self._read.add(path)
        self.bytes_read += have
        return have

    def expect(self, path: Path, offset: int, size: int) -> bool:
        """Have the disk begin with bytes that are read next. Returns whether they were not in the
        page cache. Both are the kernel's guess. Raises OSError."""
        fd = self.descriptor(path)
        if all(_is_cached(fd, at) for at in (offset, offset + size - 1)):
            return False
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
        return True

    def forget(self, path: Path, offset: int, size: int) -> None:
        """Drop bytes from the page cache. Raises OSError."""
        os.posix_fadvise(self.descriptor(path), offset, size, os.POSIX_FADV_DONTNEED)

    def next_data(self, path: Path, offset: int) -> int | None:
        """Where the file's next written part begins; None when only a hole follows.

        This saves reading and proves nothing: a file system need not track its holes, and what is
        written may be zeros.
        """
        try:
            return os.lseek(self.descriptor(path), offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def close(self) -> None:
        """Close all files. The counts stay, and a later read opens its file again."""
        while self._files:
            os.close(self._files.popitem()[1])


def _is_cached(fd: int, offset: int) -> bool:
    """Whether this byte can be read without the disk; yes where the file system cannot tell."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
