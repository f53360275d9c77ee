"""Disks after a power failure, as values: what is durable, what may be; and as directories again.

A `Disk` has files by id and names by directory. Flushes move it on: it has only pages that were
flushed, and only names whose directory was synced. `mixed` adds what was written and not flushed,
as a disk may: page by page, whole, torn at 512 bytes, or not at all; and likewise for names.

This file knows files, pages and names, but nothing of what a store has in them.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.interposed.recorder import PAGE_BYTES, Flush

SECTOR_BYTES = 512
# The share of those unflushed pages that reached the disk which reached it only partly.
TORN_SHARE = 0.3
_ZERO_PAGE = bytes(PAGE_BYTES)
# statx(2): its arguments, and the size of what it fills in
_AT_FDCWD, _NO_FOLLOW, _INODE, _MADE, _STATX_BYTES = -100, 0x100, 0x100, 0x800, 256
_libc = ctypes.CDLL(None, use_errno=True)


class FileState(NamedTuple):
    """A file on the disk: its size, and its pages that are not zero."""

    size: int
    pages: dict[int, bytes]


class Disk:
    """Contents below one root. Names map to ids of files, those of directories to 0."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.files: dict[int, FileState] = {}
        self.names: dict[str, dict[str, int]] = {}

    def take(self, flush: Flush) -> None:
        """Move on by one flush."""
        if flush.path:
            self.names[flush.path] = flush.names
            return
        known = self.files.get(flush.file)
        pages = {**known.pages, **flush.pages} if known else flush.pages
        self.files[flush.file] = FileState(flush.size, pages)

    def copy(self) -> Disk:
        other = Disk(Path(self.root))
        other.files, other.names = dict(self.files), dict(self.names)
        return other

    def write(self, target: Path) -> None:
        """Write the contents as a directory, which is made."""
        self._write(self.root, target)

    def _write(self, path: str, target: Path) -> None:
        target.mkdir(parents=True)
        for name, file in self.names.get(path, {}).items():
            child = f"{path}/{name}"
            if not file:
                self._write(child, target / name)
                continue
            # a name may be durable before any of its file's content is
            size, pages = self.files.get(file, FileState(0, {}))
            handle = os.open(target / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.ftruncate(handle, size)
            for page, content in pages.items():
                at = page * PAGE_BYTES
                if at < size:
                    os.pwrite(handle, content[: size - at], at)
            os.close(handle)


def file_id(path: str) -> int:
    """A number that no other file has or had: id_of() of recorder.c, which says why the inode is
    not enough. Python does not tell when a file was made. Raises OSError."""
    state = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _INODE | _MADE, state):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    (mask,), (inode,) = struct.unpack_from("=I", state), struct.unpack_from("=Q", state, 32)
    seconds, ns = struct.unpack_from("=qI", state, 80)
    made = seconds * 1_000_000_000 + ns if mask & _MADE else 0
    return int((inode * 0x9E3779B97F4A7C15 ^ made) & 0xFFFFFFFFFFFFFFFF)


def read_disk(root: Path) -> Disk:
    """What a directory has now: what every process would read."""
    disk = Disk(root)
    for directory, _, files in os.walk(disk.root):
        disk.names[directory] = {
            entry.name: 0 if entry.is_dir() else file_id(entry.path)
            for entry in os.scandir(directory)
        }
        for name in files:
            path = os.path.join(directory, name)
            disk.files[file_id(path)] = _read_file(path)
    return disk


def _read_file(path: str) -> FileState:
    handle = os.open(path, os.O_RDONLY)
    try:
        size, pages, at = os.fstat(handle).st_size, {}, 0
        while at < size:
            try:
                at = os.lseek(handle, at, os.SEEK_DATA) // PAGE_BYTES * PAGE_BYTES
            except OSError:
                break  # only a hole is left
            stop = min(os.lseek(handle, at, os.SEEK_HOLE), size)
            while at < stop:
                content = os.pread(handle, PAGE_BYTES, at).ljust(PAGE_BYTES, b"\0")
                if content != _ZERO_PAGE:
                    pages[at // PAGE_BYTES] = content
                at += PAGE_BYTES
        return FileState(size, pages)
    finally:
        os.close(handle)


def mixed(durable: Disk, live: Disk, share: float, dice: random.Random) -> Disk:
    """A disk with all that is durable, and randomly with pieces of what was only written."""
    disk = durable.copy()
    for path, names in live.names.items():
        disk.names[path] = _mixed_names(durable.names.get(path, {}), names, share, dice)
    for file, state in live.files.items():
        disk.files[file] = _mixed_file(
            durable.files.get(file, FileState(0, {})), state, share, dice
        )
    return disk


def _mixed_names(
    durable: dict[str, int], live: dict[str, int], share: float, dice: random.Random
) -> dict[str, int]:
    found = dict(durable)
    for name in sorted(durable.keys() | live.keys()):
        if durable.get(name) != live.get(name) and dice.random() < share:
            if name in live:
                found[name] = live[name]
            else:
                del found[name]
    return found


def _mixed_file(
    durable: FileState, live: FileState, share: float, dice: random.Random
) -> FileState:
    size = live.size if dice.random() < share else durable.size
    pages = dict(durable.pages)
    for page in sorted(durable.pages.keys() | live.pages.keys()):
        old = durable.pages.get(page, _ZERO_PAGE)
        new = live.pages.get(page, _ZERO_PAGE)
        if old != new and dice.random() < share:
            pages[page] = _torn(old, new, dice) if dice.random() < TORN_SHARE else new
    return FileState(size, pages)


def _torn(old: bytes, new: bytes, dice: random.Random) -> bytes:
    """Some sectors of the new page, and the others of the old one."""
    sectors = range(0, PAGE_BYTES, SECTOR_BYTES)
    return b"".join((new if dice.random() < 0.5 else old)[at : at + SECTOR_BYTES] for at in sectors)
