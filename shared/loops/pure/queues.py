"""Entries on their way from the log to consume queues. Pure Python, on buffers.

The twin of what `compiled` has under the same names, and what both are held to; which of the
two a process uses is said in `active`. No files: a window is memory that somebody has mapped.

Between the walk and the files an entry is a row: whose it is, its place there, and its 20 bytes.

    off  field             type
      0  queue's number    i32   as a QueueNumbers gave it
      4  queue offset      i64
     12  entry             20 bytes, as in the file

Words are native-endian and not aligned. A queue's window is three words: its entries `first` to
below `stop` have a place there, the first one `at` that byte of the area; (0, 0, 0) is none.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from penstock.shared.layout import CQ_ENTRY_BYTES

ROW = struct.Struct(f"=iq{CQ_ENTRY_BYTES}s")
WINDOW_WORDS = 3

# (topic, queue id) -> entries that follow each other, each run with the offset of its first one
Runs = dict[tuple[bytes, int], list[tuple[int, bytearray]]]


class QueueNumbers:
    """Numbers queues in the order in which they are met, from 0 on."""

    def __init__(self, names: Iterable[tuple[bytes, int]] = ()) -> None:
        self.names: list[tuple[bytes, int]] = []
        self._numbers: dict[tuple[bytes, int], int] = {}
        for topic, queue_id in names:
            self.number(topic, queue_id)

    def number(self, topic: bytes, queue_id: int) -> int:
        """The queue's number; the next free one, if it has none yet."""
        found = self._numbers.setdefault((topic, queue_id), len(self.names))
        if found == len(self.names):
            self.names.append((topic, queue_id))
        return found


def rows_of(number: int, first: int, entries: bytes) -> bytes:
    """The rows of entries that follow each other in one queue."""
    pieces = range(0, len(entries), CQ_ENTRY_BYTES)
    return b"".join(
        [
            ROW.pack(number, first + at // CQ_ENTRY_BYTES, entries[at : at + CQ_ENTRY_BYTES])
            for at in pieces
        ]
    )


def by_queue(rows: bytes, queues: QueueNumbers) -> Runs:
    """The entries of each queue, joined where one follows the other; queues as they are met."""
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
    """Put each entry into its queue's window; the rows of those that have no place in it."""
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
    """Move the next offset of each queue behind its rows, never back.

    That of queue n is word n x `step`.
    """
    for queue, queue_offset, _ in ROW.iter_unpack(rows):
        if words[queue * step] <= queue_offset:
            words[queue * step] = queue_offset + 1
