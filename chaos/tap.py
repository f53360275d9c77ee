"""Every change that this process makes to the files below a directory, as events of a disk.

While a `Tap` is open, the calls by which Python changes files (os.pwrite, os.rename, mmap.flush and
the rest) go through it: each makes its change as ever, and then it is an event, with the pieces
that differ from before. A sync makes pieces certain. Stores into mappings make no call: mapped
files are compared before each event, and at each line that runs of the files in `WATCHED`, which
are all that store into a mapping; so a store is an event of its own as far as it is a line.

Whatever way round the tap there is, `check` finds: the files are not as the events say.

This file knows nothing of what is stored. It is for one thread.
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest.mock import patch

from penstock.chaos.uncertain_disk import (
    BYTES,
    NAME,
    ROOT,
    SECTOR_BYTES,
    SIZE,
    Event,
    Image,
    Piece,
    UncertainDisk,
    Value,
)
from penstock.shared import commit_log, durable_files, index_files

WATCHED = frozenset(str(each.__file__) for each in (commit_log, index_files))
# calls that write to the open file that is their first argument
_WRITES = ("write", "pwrite", "writev", "pwritev", "ftruncate", "posix_fallocate", "sendfile")
_REAL = {name: getattr(os, name) for name in (*_WRITES, "open", "close")}
_REAL_OPEN = io.open
_LOOKS = os.O_CREAT | os.O_TRUNC


class Killed(BaseException):
    """The process ends here, as by kill -9; no handler of the product's may take it."""


class Tap:
    """The events so far, and the disk behind the last of them."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.disk = UncertainDisk()
        self.events: list[Event] = []
        # after so many events this process is "killed"
        self.kill_at = -1
        # descriptors of our own; files whose bytes may change without a call; what others opened
        self._readers: dict[int, int] = {}
        self._mapped: set[int] = set()
        self._handles: set[int] = set()
        self._is_blind = False
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[int, int] = {os.stat(self.root).st_ino: ROOT}
        self._content: dict[int, bytes] = {}
        self._paths: dict[int, str] = {ROOT: self.root}

    # --- what is done to files ---

    @contextmanager
    def open(self) -> Iterator[Tap]:
        """Have this process's changes of files."""
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
            undo.enter_context(patch.object(durable_files, "_libc", _Exchanging(self)))
            undo.callback(sys.settrace, sys.gettrace())
            undo.callback(self._close)
            sys.settrace(self._trace)
            yield self
            self.look()

    def _close(self) -> None:
        for handle in self._readers.values():
            _REAL["close"](handle)
        self._readers.clear()
        self._mapped.clear()

    def fail_power(self, image: Image) -> None:
        """The disk is as in this image from now on, and all of it is certain. Nothing is open."""
        self._close()
        self._begin()
        self._is_blind = True
        for name in os.listdir(self.root):
            shutil.rmtree(os.path.join(self.root, name))
        image.write(Path(self.root))
        self._is_blind = False
        before, events = self.disk, self.events
        self.disk, self.events = UncertainDisk(), []
        for directory, _, files in os.walk(self.root):
            self._see_names("", directory)
            for name in files:
                path = os.path.join(directory, name)
                self._see(self._numbers[os.stat(path).st_ino], path, "")
        changes = [change for event in self.events for change in event.changes]
        self.disk, self.events = before, events
        pieces = [piece for piece, _ in changes]
        self._happened("power failure", changes, pieces, anew=True)

    def age(self) -> None:
        """All that was written has got to the disk by itself."""
        self.look()
        self._happened("time goes by", [], self.disk.all_uncertain())

    def close_handles(self) -> None:
        """A "killed" process has no open files any more."""
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
            if name == "pwritev" and given[-1] & os.RWF_DSYNC:
                at = given[1]
                self._certain_bytes(number, at, at + done, "dsync")
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
        """Python's buffered files: what they write, and when, is seen by looking."""
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
            real(handle)
            kinds = (NAME,) if number < 0 else (BYTES, SIZE)
            certain = self.disk.uncertain(number, *kinds)
            self._happened(f"{name} {self._short(number)}", [], certain)

        return sync

    def _mapping_class(self) -> type[mmap.mmap]:
        tap = self

        class Mapping(mmap.mmap):
            """A mapping that tells when it is synced."""

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

    def look(self) -> None:
        """See what was stored into mappings since this was called last."""
        for number in tuple(self._mapped):
            self._see(number, "", "store into")

    def check(self) -> list[str]:
        """What is different on the real disk: changes that no event tells of."""
        found = {path: content for path, content in self.disk.live().entries}
        wrong = []
        for directory, names, files in os.walk(self.root):
            for name in (*names, *files):
                full = os.path.join(directory, name)
                path = os.path.relpath(full, self.root)
                content = None
                if name in files:
                    with _REAL_OPEN(full, "rb") as file:
                        content = file.read()
                if path not in found or found.pop(path) != content:
                    wrong.append(f"{path} is not as it was seen")
        return wrong + [f"{path} is not there" for path in found]

    def _trace(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        is_watched = code.co_filename in WATCHED and not code.co_name.startswith("<")
        return self._trace_line if is_watched else None

    def _trace_line(self, frame: FrameType, event: str, given: Any) -> Any:
        self.look()
        return self._trace_line

    def _watch(self, number: int, path: str) -> None:
        self._reader(number, path)
        self._mapped.add(number)

    def _reader(self, number: int, path: str) -> int:
        found = self._readers.get(number)
        if found is None:
            found = self._readers[number] = int(_REAL["open"](path, os.O_RDONLY))
        return found

    def _full(self, path: Any, dir_fd: int | None) -> str:
        """The absolute path, "" where it is not below the root."""
        if self._is_blind:
            return ""
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        full = os.path.abspath(text)
        return full if full.startswith(self.root + "/") else ""

    def _short(self, number: int) -> str:
        return os.path.relpath(self._paths.get(number, "?"), self.root)

    def _renew(self, inode: int) -> None:
        """A file was made: another one than any that had this inode number before it."""
        self._numbers.pop(inode, None)

    def _see(self, number: int, path: str, what: str) -> None:
        """Compare a file's bytes with what they were."""
        handle = self._reader(number, path)
        state = os.fstat(handle)
        if not state.st_nlink:
            self._mapped.discard(number)
        now = os.pread(handle, state.st_size, 0)
        before = self._content.get(number, b"")
        if now == before:
            return
        changes: list[tuple[Piece, Value]] = []
        if len(now) != len(before):
            changes.append(((SIZE, number, ""), len(now)))
        for at in range(0, max(len(now), len(before)), SECTOR_BYTES):
            old = before[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
            new = now[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
            if old != new:
                changes.append(((BYTES, number, at // SECTOR_BYTES), new))
        self._content[number] = now
        self._happened(f"{what} {self._short(number)}", changes)

    def _see_names(self, what: str, *directories: str) -> None:
        changes: list[tuple[Piece, Value]] = []
        for directory in dict.fromkeys(directories):
            owner = self._numbers[os.stat(directory).st_ino]
            before, now = self.disk.names(owner), {}
            for entry in os.scandir(directory):
                now[entry.name] = self._number_of(entry)
                self._paths[now[entry.name]] = entry.path
            for name in sorted(before.keys() | now.keys()):
                if before.get(name, 0) != now.get(name, 0):
                    changes.append(((NAME, owner, name), now.get(name, 0)))
        self._happened(what.replace(self.root + "/", ""), changes)

    def _number_of(self, entry: os.DirEntry[str]) -> int:
        number = self._numbers.get(entry.inode(), 0)
        if not number:
            number = len(self._paths) + 1
            if entry.is_dir(follow_symlinks=False):
                number = -number
            self._numbers[entry.inode()] = number
        self._paths[number] = entry.path
        return number

    def _certain_bytes(self, number: int, start: int, stop: int, what: str) -> None:
        pieces = [
            piece
            for piece in self.disk.uncertain(number, BYTES)
            if start < (int(piece[2]) + 1) * SECTOR_BYTES and int(piece[2]) * SECTOR_BYTES < stop
        ]
        self._happened(f"{what} {self._short(number)}", [], pieces)

    def _happened(
        self,
        what: str,
        changes: list[tuple[Piece, Value]],
        certain: Sequence[Piece] = (),
        *,
        anew: bool = False,
    ) -> None:
        event = Event(what, tuple(changes), tuple(certain), anew)
        self.events.append(event)
        self.disk.take(event)
        if len(self.events) == self.kill_at:
            raise Killed


class _Exchanging:
    """The C library's renameat2, which Python has no name for."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._real = durable_files._libc

    def renameat2(self, at: int, first: bytes, there: int, second: bytes, flags: int) -> int:
        self._tap.look()
        result = int(self._real.renameat2(at, first, there, second, flags))
        if not result:
            places = [os.path.dirname(os.fsdecode(each)) for each in (first, second)]
            self._tap._see_names(f"exchange {os.fsdecode(first)}", *places)
        return result
