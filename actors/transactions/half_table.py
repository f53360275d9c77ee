"""The state of each half message: a byte for each offset of the half queue, and nothing else.

    base            what is remembered begins here: outcomes of half messages that ended lately
    oldest          the first one that is open; all before it have ended
    end             the next half message gets this offset

    byte   0..127   open; how often this process has asked its producer
           128..    ended, as one of the names below

A million messages between the oldest open one and the newest take a megabyte, open or not. Pure:
the contents of the queues are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# At least this many of the ended ones before the oldest open one are remembered, for producers that
# did not hear how their transactions ended. A start reads their marks again.
REMEMBERED = 1 << 16
# Forgetting moves all remaining bytes, so it is done for many at once.
_FORGOTTEN_AT_ONCE = 1 << 14

MOST_CHECKS = 127
COMMITTED, ROLLED_BACK, DISCARDED, PUT_BACK = range(128, 132)
ENDED = 255  # RocketMQ's mark says no more than this

# outcomes, by their names in op records
STATE_OF = {
    "commit": COMMITTED,
    "rollback": ROLLED_BACK,
    "discard": DISCARDED,
    "put back": PUT_BACK,
}
NAME_OF = {state: name for name, state in STATE_OF.items()}

_OPEN = re.compile(rb"[\x00-\x7f]")


class HalfTable:
    """The half messages from `base` on."""

    def __init__(self, base: int) -> None:
        self.base = self.oldest = base
        self.open = 0
        self._states = bytearray()

    @property
    def end(self) -> int:
        return self.base + len(self._states)

    @property
    def size_bytes(self) -> int:
        return len(self._states)

    def extend(self, end: int) -> None:
        """The half queue has grown up to here, by open half messages."""
        if end > self.end:
            self.open += end - self.end
            self._states.extend(bytes(end - self.end))

    def state(self, offset: int) -> int:
        """Its byte. Raises IndexError if it is forgotten, or does not exist yet."""
        if offset < self.base:
            raise IndexError(offset)
        return self._states[offset - self.base]

    def is_open(self, offset: int) -> bool:
        return self.base <= offset < self.end and self.state(offset) <= MOST_CHECKS

    def finish(self, offset: int, state: int) -> bool:
        """It has ended like this. False, and nothing changes, if it is not open."""
        if not self.is_open(offset):
            return False
        self._states[offset - self.base] = state
        self.open -= 1
        if offset == self.oldest:
            self.oldest = next(self.open_from(offset), self.end)
        return True

    def count_check(self, offset: int) -> None:
        """Its producer is asked once more."""
        at = offset - self.base
        self._states[at] = min(self._states[at] + 1, MOST_CHECKS)

    def open_from(self, offset: int) -> Iterator[int]:
        """The open ones from an offset on. They may end during the iteration."""
        while found := _OPEN.search(self._states, max(0, offset - self.base)):
            offset = self.base + found.start()
            yield offset
            offset += 1

    def forget(self) -> int:
        """Drop what is remembered beyond the limit; returns how many bytes."""
        count = self.oldest - self.base - REMEMBERED
        if count < _FORGOTTEN_AT_ONCE:
            return 0
        del self._states[:count]
        self.base += count
        return count
