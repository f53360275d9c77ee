"""Reading files of which the disk cannot read some sectors: the rest is read all the same.

A disk loses single sectors, most often in what was written long ago, and a read of them fails with
EIO. That must not hide the rest of a file, nor end the process that reads it. So such pages are
read as bytes of 0xFF. No format takes these for its own, so whatever handles damage handles this,
too. They are not zeros: where a log or a queue has zeros, nothing was written.

This file does not know what is read. It logs a file once, with the first place that fails, and
counts the pages, for `penstock status`.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.layout import PAGE_BYTES

FILL = 0xFF
_log = logging.getLogger(__name__)
# by device and inode
_told: set[tuple[int, int]] = set()
_pages = 0


def unreadable_pages() -> int:
    """How many pages this process has read in vain. One that is read again counts again."""
    return _pages


def read_file(file: Path) -> bytes:
    """All bytes of a file. A process with clients may call it. Raises OSError."""
    return take_descriptor(lambda: _read_file(file))


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(handle, os.fstat(handle).st_size, 0)
    finally:
        os.close(handle)


def read_at(handle: int, size: int, at: int) -> bytes:
    """`size` bytes from `at` on, or fewer where the file ends. Raises OSError."""
    try:
        raw = os.pread(handle, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raw = b""
    if len(raw) == size:
        return raw
    # One call moves at most 2 GiB, may be interrupted, and ends before a page that cannot be read.
    target = bytearray(size)
    target[: len(raw)] = raw
    rest = memoryview(target)[len(raw) :]
    return bytes(target[: len(raw) + read_into(handle, rest, at + len(raw))])


def read_into(handle: int, target: memoryview, at: int) -> int:
    """Fill the target. Returns its bytes, fewer where the file ends. Raises OSError."""
    done = 0
    while done < len(target):
        try:
            got = os.preadv(handle, [target[done:]], at + done)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            got = _read_page(handle, target[done:], at + done)
        if not got:
            break
        done += got
    return done


def _read_page(handle: int, target: memoryview, at: int) -> int:
    """Fill the target up to the end of this page, or of the file. Returns how many bytes it got.

    A longer read may also fail for a page that follows in the kernel's cache.
    """
    left = os.fstat(handle).st_size - at
    page = target[: max(0, min(PAGE_BYTES - at % PAGE_BYTES, left))]
    try:
        return os.preadv(handle, [page], at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    _count(handle, at)
    page[:] = bytes([FILL]) * len(page)
    return len(page)


def _count(handle: int, at: int) -> None:
    global _pages
    _pages += 1
    found = os.fstat(handle)
    if (found.st_dev, found.st_ino) not in _told:
        _told.add((found.st_dev, found.st_ino))
        name = os.readlink(f"/proc/self/fd/{handle}")
        _log.warning("the disk cannot read %s at byte %d, and perhaps at others", name, at)
