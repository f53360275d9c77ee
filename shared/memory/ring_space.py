"""Which bytes of a ring are taken. Pure.

Spans are taken one after the other and given back in any order. A free span can be taken again only
when all spans taken before it are free, too. A span does not wrap around the ring's end: the rest
there stays unused in this round. When the ring is empty it restarts at 0, where memory is warm.
"""

from __future__ import annotations

# Spans begin at cache lines, so that writer and producer never share a line.
ALIGNMENT = 64


class RingSpace:
    """The space of a ring of `size` bytes, a multiple of ALIGNMENT."""

    def __init__(self, size: int) -> None:
        self._size = size
        # these only grow, and are taken modulo the size: all live spans lie in [tail, head)
        self._head = self._tail = 0
        # where the most recent span begins
        self._last = 0
        # offset of each live span in the ring -> the head before it was taken, oldest first
        self._live: dict[int, int] = {}

    def take(self, length: int) -> int:
        """Take `length` contiguous bytes: their offset, or -1 where there is no room."""
        at = self._head % self._size
        begin = self._head if at + length <= self._size else self._head - at + self._size
        end = begin + max(length, 1)
        if length > self._size or end - self._tail > self._size:
            return -1
        offset = begin % self._size
        self._live[offset] = self._head
        self._last, self._head = begin, _aligned(end)
        return offset

    def shorten(self, length: int) -> None:
        """Keep only `length` bytes of the most recent span, which is still held."""
        self._head = _aligned(self._last + max(length, 1))

    def give_back(self, offset: int) -> None:
        """Free the span that begins at this offset."""
        del self._live[offset]
        if self._live:
            self._tail = next(iter(self._live.values()))
        else:
            self._head = self._tail = 0

    def clear(self) -> None:
        """Free everything."""
        self._live.clear()
        self._head = self._tail = 0


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
