"""Entries on their way from the log to consume queues. Pure Python, on buffers.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. No files are opened: a window is memory that the caller has mapped.

`forms` draws rows and windows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.loops.forms import ROW, WINDOW_WORDS, Runs


class QueueNumbers:
    """Numbers queues in the order in which they are first seen, from 0 on.

    A row has the number instead of a name, which would cost a look-up for each entry. The reput
    begins with the queues of its table, so there a queue's number is its slot.
    """

    def __init__(self, names: Iterable[tuple[bytes, int]] = ()) -> None:
        self.names: list[tuple[bytes, int]] = []
        self._numbers: dict[tuple[bytes, int], int] = {}
        for topic, queue_id in names:
            self.number(topic, queue_id)

    def number(self, topic: bytes, queue_id: int) -> int:
        """The queue's number; the next free one if it has none yet."""
        found = self._numbers.setdefault((topic, queue_id), len(self.names))
        if found == len(self.names):
            self.names.append((topic, queue_id))
        return found


def by_queue(rows: bytes, queues: QueueNumbers) -> Runs:
    """The entries of each queue, joined where consecutive; queues in the order of their first row.

    A queue has several runs where its offsets jump. Nothing is sorted: the log is in order.
    """
    runs: Runs = {}
    number, expected, entries = -1, -1, bytearray()
    for queue, queue_offset, entry in ROW.iter_unpack(rows):
        if queue != number or queue_offset != expected:
            number, expected = queue, queue_offset
            pieces = runs.setdefault(queues.names[queue], [])
            if not pieces or pieces[-1][0] + len(pieces[-1][1]) // CQ_ENTRY_BYTES != queue_offset:
                pieces.append((queue_offset, bytearray()))
            entries = pieces[-1][1]
        entries += entry
        expected += 1
    return runs


def put_entries(rows: bytes, windows: array[int], area: memoryview) -> bytes:
    """Put each entry into its queue's window. Returns the rows that have no place in one.

    An entry that comes again is stored over itself, so a cycle can be repeated. Raises IndexError
    or ValueError for a queue without words in `windows`, or a window that is not in `area`: even if
    the caller makes a mistake, nothing is stored outside.
    """
    missed = []
    for queue, queue_offset, entry in ROW.iter_unpack(rows):
        first, stop, at = windows[WINDOW_WORDS * queue : WINDOW_WORDS * queue + WINDOW_WORDS]
        if first <= queue_offset < stop:
            at += (queue_offset - first) * CQ_ENTRY_BYTES
            area[at : at + CQ_ENTRY_BYTES] = entry
        else:
            missed.append(ROW.pack(queue, queue_offset, entry))
    return b"".join(missed)


def move_ends(rows: bytes, words: memoryview, step: int) -> None:
    """Raise the next offset of each queue past its rows; it is never lowered.

    That of queue n is word n x `step`. If a row comes again, after a crash, it changes nothing.
    """
    for queue, queue_offset, _ in ROW.iter_unpack(rows):
        if words[queue * step] <= queue_offset:
            words[queue * step] = queue_offset + 1
