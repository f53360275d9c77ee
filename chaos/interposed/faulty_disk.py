"""A disk with faults, for a process that is started with it: calls fail or take long, until healed.

faulty_disk.c does it, loaded into every process of the broker; it describes the three kinds of
calls. Settings made here hold from the next call on.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
GROW, FLUSH, OPEN = "grow", "flush", "open"
_KINDS = (GROW, FLUSH, OPEN)
_CALLS, _FIRST, _LAST, _ERRNO, _PER_KIND = range(5)
_DELAY_US = len(_KINDS) * _PER_KIND
_WORDS = _DELAY_US + 1
_EVER = 1 << 62


class Failed(NamedTuple):
    """A call that was made to fail, and what it was for."""

    call: str
    path: Path


class FaultyDisk:
    """The calls that a process started with `environment` makes on what lies below `root`."""

    def __init__(self, place: Path, root: Path, library: Path) -> None:
        place.mkdir(parents=True)
        self._failed = place / "failed"
        (place / "words").write_bytes(bytes(8 * _WORDS))
        self.environment = {
            "LD_PRELOAD": str(library),
            "PENSTOCK_DISK_ROOT": str(root.resolve()),
            "PENSTOCK_DISK_DIR": str(place.resolve()),
        }
        with (place / "words").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * _WORDS)
        self._words = memoryview(self._map).cast("Q")

    def calls(self, kind: str) -> int:
        """How many there were so far."""
        return self._words[_KINDS.index(kind) * _PER_KIND + _CALLS]

    def fail(self, kind: str, number: int, *, first: int = 0, once: bool = False) -> None:
        """Let calls fail with this errno: from the `first` of all on (by default the next), or only
        that one."""
        at = _KINDS.index(kind) * _PER_KIND
        first = first or self._words[at + _CALLS] + 1
        self._words[at + _LAST] = 0
        self._words[at + _ERRNO] = number
        self._words[at + _FIRST] = first
        self._words[at + _LAST] = first if once else _EVER

    def heal(self) -> None:
        """From now on nothing fails or takes longer; calls that wait go on."""
        for at in range(len(_KINDS)):
            self._words[at * _PER_KIND + _LAST] = 0
        self.delay(0)

    def delay(self, ms: float) -> None:
        """Each flush takes this much longer, including those under way."""
        self._words[_DELAY_US] = int(ms * 1000)

    def failed(self) -> list[Failed]:
        """The calls that were made to fail, in order."""
        if not self._failed.exists():
            return []
        rows = [line.split(" ", 1) for line in self._failed.read_text().splitlines()]
        return [Failed(call, Path(path)) for call, path in rows]

    def close(self) -> None:
        self._words.release()
        self._map.close()
