"""Files below a directory, compared with what they were when last looked at.

Each difference, in a file's bytes or length or in a directory's names, becomes an event of an
`UncertainDisk`. `tap` decides when to look and says what was synced; the bytes mean nothing here.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.chaos.stepped.uncertain_disk import (
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

PAGE_BYTES = 4096
# the real calls, for when no tap has replaced them
_OPEN, _CLOSE, _OPEN_FILE = os.open, os.close, io.open


class Killed(BaseException):
    """The process ends here, as by kill -9; no handler of the product may catch it."""


class SeenFiles:
    """The events so far, and the disk after the last of them. `root` is empty at first."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.disk = UncertainDisk()
        self.events: list[Event] = []
        # after this many events the process is "killed"
        self.kill_at = -1
        # descriptors of our own; files whose bytes may change without a call
        self._readers: dict[int, int] = {}
        self._mapped: set[int] = set()
        self._is_blind = False
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[int, int] = {os.stat(self.root).st_ino: ROOT}
        self._content: dict[int, bytes] = {}
        self._paths: dict[int, str] = {ROOT: self.root}

    def look(self) -> None:
        """Find what was stored into mappings since the last call."""
        for number in tuple(self._mapped):
            self._see(number, "", "store into")

    def fail_power(self, image: Image) -> None:
        """Put the disk into the state of this image, all of it certain. Nothing may be open."""
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
        self._happened("power failure", changes, pieces, fresh=True)

    def age(self) -> None:
        """Time passes: all that was written has reached the disk by itself."""
        self.look()
        self._happened("time goes by", [], self.disk.all_uncertain())

    def check(self) -> list[str]:
        """How the real disk differs: changes that no event tells of."""
        found = {path: content for path, content in self.disk.live().entries}
        wrong = []
        for directory, names, files in os.walk(self.root):
            for name in (*names, *files):
                full = os.path.join(directory, name)
                path = os.path.relpath(full, self.root)
                content = None
                if name in files:
                    with _OPEN_FILE(full, "rb") as file:
                        content = file.read()
                if path not in found or found.pop(path) != content:
                    wrong.append(f"{path} is not as it was seen")
        return wrong + [f"{path} is not there" for path in found]

    def _watch(self, number: int, path: str) -> None:
        self._reader(number, path)
        self._mapped.add(number)

    def _reader(self, number: int, path: str) -> int:
        found = self._readers.get(number)
        if found is None:
            found = self._readers[number] = int(_OPEN(path, os.O_RDONLY))
        return found

    def _short(self, number: int) -> str:
        return os.path.relpath(self._paths.get(number, "?"), self.root)

    def _renew(self, inode: int) -> None:
        """Note that a new file was made: not the one that had this inode number before."""
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
                changes += self._written_again(number, at, at + SECTOR_BYTES, but=changes)
        self._content[number] = now
        self._happened(f"{what} {self._short(number)}", changes)

    def _written_again(
        self, number: int, start: int, stop: int, but: Sequence[tuple[Piece, Value]] = ()
    ) -> list[tuple[Piece, Value]]:
        """As changes: the content of the pages of [start, stop) that the kernel took for written. A
        page goes to the disk as a whole."""
        sectors = PAGE_BYTES // SECTOR_BYTES
        first, last = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
        pieces = self.disk.missed(number, first * sectors, (last + 1) * sectors)
        known = {piece for piece, _ in but}
        return [(piece, self.disk.newest(piece)) for piece in pieces if piece not in known]

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
        fresh: bool = False,
        missed: Sequence[Piece] = (),
    ) -> None:
        event = Event(what, tuple(changes), tuple(certain), fresh, tuple(missed))
        self.events.append(event)
        self.disk.take(event)
        if len(self.events) == self.kill_at:
            raise Killed

    def _close(self) -> None:
        for handle in self._readers.values():
            _CLOSE(handle)
        self._readers.clear()
        self._mapped.clear()
