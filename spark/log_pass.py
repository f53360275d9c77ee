"""The log read once, from its beginning to its end, by somebody who will not come back.

What was in the page cache before stays there, for a broker's consumers, and what was not is gone
again when it has been read. Fresh pages cost more than a read of the disk where the kernel has to
ask a hypervisor for them, and those that were just given back it has at hand.
"""

from __future__ import annotations

from penstock.shared.store.directory import StoreDirectory


class LogPass:
    """Of one store. For one thread."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._cold: dict[int, int] = {}

    def expect_log(self, position: int, size: int) -> None:
        """This is read next, and by one call. Raises OffsetOutOfRange."""
        if self._store.expect_log(position, size):
            self._cold[position] = size

    def read_log_into(self, position: int, target: memoryview) -> None:
        """As StoreDirectory's."""
        self._store.read_log_into(position, target)
        if size := self._cold.pop(position, 0):
            self._store.forget_log(position, size)
