"""A disk with sectors that cannot be read: a file system of its own in a file, by the loop device.

The disk grows once the store is there, and the pages that are to be lost move to its new blocks.
Then these are cut off. What reads them gets EIO from the kernel, or SIGBUS through a mapping, and
what writes them as a whole has them again, as with a sector that a disk replaces.

Needs root, loop devices and ext4's tools: see `lacks`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.shared.layout import PAGE_BYTES

# A small store has room in the first ones.
_BLOCKS, _MORE_BLOCKS = 16 << 10, 1 << 10
_WRITE_BYTES = 1 << 20
# requests to the file system, and fallocate's mode that frees pages and keeps the length
_FIBMAP, _MOVE_EXTENT, _PUNCH = 1, 0xC028660F, 0x03
_libc = ctypes.CDLL(None, use_errno=True)


class Lost(NamedTuple):
    """Pages [first, stop) of a file, by its path in the store."""

    file: Path
    first: int
    stop: int


@cache
def lacks() -> str:
    """What this machine lacks for it; "" where it can be done. Tries it, if nothing is known."""
    tools = ("mkfs.ext4", "resize2fs", "mount", "umount")
    missing = [each for each in tools if shutil.which(each) is None]
    if missing:
        return f"{missing[0]} on PATH"
    if os.geteuid():
        return "root, who may mount"
    if not os.path.exists("/dev/loop-control"):
        return "loop devices"
    with tempfile.TemporaryDirectory(prefix="bad-disk-") as scratch:
        store = Path(scratch, "store")
        store.mkdir()
        (store / "file").write_bytes(bytes(PAGE_BYTES))
        try:
            with bad_disk(Path(scratch), store, [Lost(Path("file"), 0, 1)]) as root:
                (root / "file").read_bytes()
        except subprocess.CalledProcessError:  # a container's root may not
            return "the right to mount"
        except OSError as error:
            return "" if error.errno == errno.EIO else f"a disk for it: {error.strerror}"
    return "a file system that loses pages"


@contextmanager
def bad_disk(place: Path, store: Path, lost: Sequence[Lost]) -> Iterator[Path]:
    """A copy of the store on a disk that cannot read these pages; gone with the block."""
    image, mount = place / "disk", place / "mount"
    mount.mkdir()
    # no journal and no reserve, so that all blocks are for files
    make_disk(image, _BLOCKS * PAGE_BYTES, "-O", "^has_journal", "-m", "0")
    try:
        with mounted(image, mount):
            shutil.copytree(store, mount / "store")
        os.truncate(image, (_BLOCKS + _MORE_BLOCKS) * PAGE_BYTES)
        subprocess.run(["resize2fs", "-f", image], check=True, capture_output=True)
        with mounted(image, mount):
            _lose(mount, lost)
        # mounted again, so that the kernel has none of the pages in memory
        with mounted(image, mount, lazily=True):
            os.truncate(image, _BLOCKS * PAGE_BYTES)
            yield mount / "store"
    finally:
        image.unlink()
        mount.rmdir()


def make_disk(image: Path, size: int, *options: str) -> None:
    """A file system in a file."""
    with image.open("wb") as file:
        file.truncate(size)
    command = ("mkfs.ext4", "-q", "-F", "-b", str(PAGE_BYTES), *options, str(image))
    subprocess.run(command, check=True)


@contextmanager
def mounted(image: Path, mount: Path, *, lazily: bool = False) -> Iterator[None]:
    """Mount it. Where it is unmounted `lazily`, a process may still have a file there mapped, or
    open; it is not to be mounted again then."""
    subprocess.run(["mount", "-o", "loop", image, mount], check=True, capture_output=True)
    try:
        yield
    finally:
        how = ["--lazy"] if lazily else []
        subprocess.run(["umount", *how, mount], check=True)


def _lose(mount: Path, lost: Sequence[Lost]) -> None:
    """Exchange these pages for pages in the new blocks."""
    file = mount / "taken"
    with file.open("wb", buffering=0) as handle, suppress(OSError):  # until the disk is full
        while handle.write(bytes(_WRITE_BYTES)):
            pass
    with file.open("rb+") as taken:
        os.fsync(taken.fileno())
        pages = range(file.stat().st_size // PAGE_BYTES)
        new = [page for page in pages if _block(taken.fileno(), page) >= _BLOCKS]
        # It keeps the new ones, where a write would make the disk long enough for all before it.
        for before, after in pairwise([-1, *new, pages.stop]):
            _free(taken.fileno(), before + 1, after)
        rest = iter(new)
        for each in lost:
            with (mount / "store" / each.file).open("rb+") as store:
                for page in range(each.first, each.stop):
                    _exchange(store.fileno(), page, taken.fileno(), next(rest))
                    assert _block(store.fileno(), page) >= _BLOCKS, "it has moved"


def _free(handle: int, first: int, stop: int) -> None:
    """Free pages of a file."""
    at, length = (ctypes.c_long(pages * PAGE_BYTES) for pages in (first, stop - first))
    if stop > first and _libc.fallocate(handle, _PUNCH, at, length):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _exchange(file: int, page: int, donor: int, at: int) -> None:
    """Exchange the blocks of two pages; the bytes stay where they are."""
    for handle in (file, donor):
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # else it may be busy
    told = struct.pack("=IIQQQQ", 0, donor, page, at, 1, 0)  # reserved ... length, moved
    fcntl.ioctl(file, _MOVE_EXTENT, told)


def _block(handle: int, page: int) -> int:
    """The disk's block that has this page of a file."""
    found: int = struct.unpack("=i", fcntl.ioctl(handle, _FIBMAP, struct.pack("=i", page)))[0]
    return found
