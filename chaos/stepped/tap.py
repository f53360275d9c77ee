"""Every change that this process makes to the files below a directory, as events of a disk.

While a `Tap` is open, the calls by which Python changes files (os.pwrite, os.rename, mmap.flush and
the rest) go through it. Each makes its change as usual, and then becomes an event with the pieces
that differ from before. A sync makes pieces durable. Stores into mappings make no call, so mapped
files are compared before each event, and at each line that runs of the files in `WATCHED`, which
are all the files that store into a mapping. So each line that stores is an event of its own.

A sync can be made to fail. Then it makes nothing durable, and neither does the next one: the kernel
reports the error once and then treats the pages as clean. Such bytes count as written again when a
call writes to their place, the same bytes or others. Names and lengths belong to the file system,
and are still to be synced.

`check` finds any change that bypasses the tap: the files then differ from what the events say.

This file knows nothing of what is stored. It is for one thread.
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest.mock import patch

from penstock.actors.writer import log_appender
from penstock.chaos.stepped.seen_files import SeenFiles
from penstock.chaos.stepped.uncertain_disk import BYTES, NAME, SIZE
from penstock.shared.files import durable, mapped_area
from penstock.shared.index import index_file
from penstock.shared.loops.pure import queues
from penstock.shared.queue import windows

WATCHED = frozenset(str(each.__file__) for each in (log_appender, index_file, queues, windows))
# calls that write to the open file that is their first argument
_WRITES = ("write", "pwrite", "writev", "pwritev", "ftruncate", "posix_fallocate", "sendfile")
_REAL = {name: getattr(os, name) for name in (*_WRITES, "open", "close")}
_REAL_OPEN = io.open
_LOOKS = os.O_CREAT | os.O_TRUNC


class Tap(SeenFiles):
    """Sees files whenever this process changes one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # descriptors that are open below the root
        self._handles: set[int] = set()
        # decides whether a sync of this file or directory fails
        self.sync_fails: Callable[[str], bool] = lambda path: False

    @contextmanager
    def open(self) -> Iterator[Tap]:
        """Route this process's changes of files through the tap."""
        with ExitStack() as undo:
            for name in _WRITES:
                undo.enter_context(patch.object(os, name, self._writes(name)))
            for name in ("rename", "replace", "link"):
                undo.enter_context(patch.object(os, name, self._names_two(name)))
            for name in ("unlink", "remove", "mkdir", "rmdir"):
                undo.enter_context(patch.object(os, name, self._names_one(name)))
            for name in ("fsync", "fdatasync"):
                undo.enter_context(patch.object(os, name, self._syncs(name)))
            undo.enter_context(patch.object(os, "open", self._open))
            undo.enter_context(patch.object(os, "close", self._close_handle))
            undo.enter_context(patch.object(os, "truncate", self._truncate))
            undo.enter_context(patch.object(io, "open", self._open_file))
            undo.enter_context(patch.object(builtins, "open", self._open_file))
            undo.enter_context(patch.object(mmap, "mmap", self._mapping_class()))
            undo.enter_context(patch.object(durable, "_libc", _Exchanging(self)))
            undo.enter_context(patch.object(mapped_area, "_libc", _Mapping(self)))
            undo.callback(sys.settrace, sys.gettrace())
            undo.callback(self._close)
            sys.settrace(self._trace)
            yield self
            self.look()

    def close_handles(self) -> None:
        """Close everything: a "killed" process has no open files any more."""
        for handle in self._handles:
            _REAL["close"](handle)
        self._handles.clear()

    def _close_handle(self, handle: int) -> None:
        self._handles.discard(handle)
        _REAL["close"](handle)

    def _writes(self, name: str) -> Callable[..., Any]:
        real = _REAL[name]

        def write(handle: int, *given: Any, **named: Any) -> Any:
            number = self._numbers.get(os.fstat(handle).st_ino, 0)
            if not number:
                return real(handle, *given, **named)
            self.look()
            done = real(handle, *given, **named)
            self._see(number, f"/proc/self/fd/{handle}", name)
            if name in ("write", "pwrite", "pwritev"):
                at = os.lseek(handle, 0, os.SEEK_CUR) - done if name == "write" else given[1]
                if again := self._written_again(number, at, at + done):
                    self._happened(f"{name} again {self._short(number)}", again)
            if name == "pwritev" and given[-1] & os.RWF_DSYNC:
                self._sync_fails(number, "dsync")
                self._certain_bytes(number, given[1], given[1] + done, "dsync")
            return done

        return write

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full = self._full(path, dir_fd)
        is_new = full and not os.path.lexists(full)
        if full:
            self.look()
        handle = int(_REAL["open"](path, flags, mode, dir_fd=dir_fd))
        if full:
            self._handles.add(handle)
        if full and flags & _LOOKS:
            if is_new:
                self._renew(os.fstat(handle).st_ino)
                self._see_names(f"create {full}", os.path.dirname(full))
            self._see(self._numbers[os.fstat(handle).st_ino], full, "truncate")
        return handle

    def _open_file(self, file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        """Python's buffered files: `look` finds what they write, and when."""
        if isinstance(file, int) and file in self._handles:
            self._watch(self._numbers[os.fstat(file).st_ino], f"/proc/self/fd/{file}")
        full = None if isinstance(file, int) else self._full(file, None)
        if not full or not set(mode) & set("wax+"):
            return _REAL_OPEN(file, mode, *given, **named)
        is_new = not os.path.lexists(full)
        found = _REAL_OPEN(file, mode, *given, **named)
        inode = os.fstat(found.fileno()).st_ino
        if is_new:
            self._renew(inode)
            self._see_names(f"create {full}", os.path.dirname(full))
        self._watch(self._numbers[inode], full)
        self.look()
        return found

    def _truncate(self, path: Any, length: int) -> None:
        handle = self._open(path, os.O_RDWR)
        try:
            os.ftruncate(handle, length)
        finally:
            os.close(handle)

    def _names_one(self, name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def change(path: Any, *given: Any, dir_fd: int | None = None, **named: Any) -> None:
            full = self._full(path, dir_fd)
            if full:
                self.look()
            real(path, *given, dir_fd=dir_fd, **named)
            if full:
                if name == "mkdir":
                    self._renew(os.stat(full).st_ino)
                self._see_names(f"{name} {full}", os.path.dirname(full))

        return change

    def _names_two(self, name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def change(source: Any, target: Any, **named: Any) -> None:
            places = [self._full(each, None) for each in (source, target)]
            self.look()
            real(source, target, **named)
            inside = [os.path.dirname(place) for place in places if place]
            if inside:
                self._see_names(f"{name} {source} to {target}", *inside)

        return change

    def _syncs(self, name: str) -> Callable[[int], None]:
        real = getattr(os, name)

        def sync(handle: int) -> None:
            number = self._numbers.get(os.fstat(handle).st_ino, 0)
            if not number:
                real(handle)
                return
            self.look()
            self._sync_fails(number, name)
            real(handle)
            kinds = (NAME,) if number < 0 else (BYTES, SIZE)
            certain = self.disk.uncertain(number, *kinds)
            self._happened(f"{name} {self._short(number)}", [], certain)

        return sync

    def _sync_fails(self, number: int, name: str) -> None:
        """Raise OSError if this sync is to fail. The error may be of any page of the file."""
        path = self._short(number)
        if self.sync_fails(path):
            missed = self.disk.uncertain(number, BYTES)
            self._happened(f"{name} that fails {path}", [], missed=missed)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _mapping_class(self) -> type[mmap.mmap]:
        tap = self

        class Mapping(mmap.mmap):
            """A mapping that reports its syncs."""

            number: int

            def __new__(
                cls, handle: int, length: int, flags: int = mmap.MAP_SHARED, prot: int = 3
            ) -> Self:
                made = super().__new__(cls, handle, length, flags, prot)
                made.number = tap._numbers.get(os.fstat(handle).st_ino, 0)
                if made.number and prot & mmap.PROT_WRITE:
                    tap._watch(made.number, f"/proc/self/fd/{handle}")
                return made

            def flush(self, offset: int = 0, size: int = -1) -> None:
                tap.look()
                stop = len(self) if size < 0 else offset + size
                super().flush(offset, stop - offset)
                if self.number:
                    tap._certain_bytes(self.number, offset, stop, "msync")

        return Mapping

    # --- what has become of them ---

    def _trace(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        is_watched = code.co_filename in WATCHED and not code.co_name.startswith("<")
        return self._trace_line if is_watched else None

    def _trace_line(self, frame: FrameType, event: str, given: Any) -> Any:
        self.look()
        return self._trace_line

    def _full(self, path: Any, dir_fd: int | None) -> str:
        """The absolute path; "" if it is not below the root."""
        if self._is_blind:
            return ""
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        full = os.path.abspath(text)
        return full if full.startswith(self.root + "/") else ""


class _Mapping:
    """The C library's mmap, used where a piece of a file is mapped without Python's mmap."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._real = mapped_area._libc
        self.madvise, self.munmap = self._real.madvise, self._real.munmap

    def mmap(self, start: Any, size: Any, access: int, flags: int, handle: int, at: Any) -> Any:
        if handle >= 0 and (number := self._tap._numbers.get(os.fstat(handle).st_ino, 0)):
            self._tap._watch(number, f"/proc/self/fd/{handle}")
        return self._real.mmap(start, size, access, flags, handle, at)


class _Exchanging:
    """The C library's renameat2, which Python has no name for."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._real = durable._libc
        # makes nothing durable
        self.sync_file_range = self._real.sync_file_range

    def renameat2(self, at: int, first: bytes, there: int, second: bytes, flags: int) -> int:
        self._tap.look()
        result = int(self._real.renameat2(at, first, there, second, flags))
        if not result:
            places = [os.path.dirname(os.fsdecode(each)) for each in (first, second)]
            self._tap._see_names(f"exchange {os.fsdecode(first)}", *places)
        return result
