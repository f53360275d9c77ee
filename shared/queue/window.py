"""Entries of a queue with their neighbours, which give lost messages away.

If nobody knows what a slot of a queue held, a start lets its entry lead to the next record of the
queue, or to the last one (see build_queues.py). So two neighbours lead to one place, and the record
there says which of them it belongs to. Pure functions on bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES


class Window(NamedTuple):
    """Entries, and the one before and after them: b"" where there is none, or none can be read."""

    raw: bytes
    before: bytes
    after: bytes

    def before_lost(self, count: int, is_own: Callable[[int], bool]) -> int:
        """How many of the first `count` entries come before one of a lost message of which no
        damage is known. `is_own` says whether the record at a log offset is the first entry's.

        The caller has ended `count` before the first entry that leads to the same place as the one
        after it.
        """
        raw = self.raw
        is_all = 0 < count == len(raw) // CQ_ENTRY_BYTES
        if is_all and have_one_place(raw[-CQ_ENTRY_BYTES:], self.after):
            count -= 1
        if raw and (not count or have_one_place(raw, self.before)):
            count = int(is_own(ENTRY.unpack_from(raw)[0]))
        return count


def have_one_place(entry: bytes, other: bytes) -> bool:
    """Whether two entries, of which the other may be b"", lead to the same place of the log."""
    return entry[:8] == other[:8] and 0 < ENTRY.unpack_from(entry)[1] < BLANK_SIZE
