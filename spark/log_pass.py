"""Reads the log once, from beginning to end, without keeping it in the page cache.

Pages that were cached before stay cached, for a broker's consumers; all others are dropped once
they are read. If the kernel has to ask a hypervisor for fresh pages, these cost more than reading
the disk, whereas pages that were just dropped are at hand.
"""

from __future__ import annotations

from penstock.shared.store.directory import StoreDirectory


class LogPass:
    """One pass over one store. Not thread-safe."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._cold: dict[int, int] = {}

    def expect_log(self, position: int, size: int) -> None:
        """Announce a range that one call will read next. Raises OffsetOutOfRange."""
        if self._store.expect_log(position, size):
            self._cold[position] = size

    def read_log_into(self, position: int, target: memoryview) -> None:
        """Like StoreDirectory's, and then drops the pages that were not cached before."""
        self._store.read_log_into(position, target)
        if size := self._cold.pop(position, 0):
            self._store.forget_log(position, size)
