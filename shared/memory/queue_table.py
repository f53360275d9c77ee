"""The queue table: which entries each consume queue has. Shared memory with two writers.

A file of 320-byte slots in the run directory. The reput fills a slot before `queue_count` of the
positions page counts it; the slot's topic and queue never change afterwards. The reput also owns
max offsets; once a slot is counted, its min offset belongs to the cleaner.

The slot of a deleted queue is not reused in this run: a process that has looked it up may read it
at any later moment, and would get another queue's messages. A start fills a new table.

    off  field             type
      0  max offset        u64    one past the newest entry; the reput's publish word
      8  min offset        u64    the first entry that is still there
     16  queue id          u32
     20  topic length      u32
     24  topic             UTF-8, up to 255 bytes
    312  deleted           u64    1: the queue's topic was deleted; the reput's

Words are native-endian. Readers need no lock: a queue's entries below its max offset are complete.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import StoreUnavailable
from penstock.shared.loops.active import move_ends

SLOT_BYTES = 320
_DELETED = 39  # word
_IDENTITY = struct.Struct("=II")

assert 8 * _DELETED >= 24 + 255, "the mark is after the longest topic"
assert SLOT_BYTES > 8 * _DELETED and SLOT_BYTES % 64 == 0, "a slot is whole cache lines"


class QueueKey(NamedTuple):
    """The queue of a slot; its directory in `consumequeue/` is named after these."""

    topic: str
    queue_id: int


class QueueTable:
    """The table, mapped. Only the reput and the cleaner open it writable.

    A reput that dies while it fills a slot leaves anything in it, and its successor fills it again.
    So no reader asks for a slot from `queue_count` on.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._handle = -1
        try:
            size = os.fstat(handle).st_size
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._map = mmap.mmap(handle, size, mmap.MAP_SHARED, access)
            if writable:  # `add` allocates through it
                self._handle, handle = handle, -1
        finally:
            if handle >= 0:
                os.close(handle)
        self._view = memoryview(self._map)
        self._words = self._view.cast("Q")
        self.capacity = size // SLOT_BYTES

    def key(self, slot: int) -> QueueKey:
        at = slot * SLOT_BYTES + 16
        queue_id, length = _IDENTITY.unpack_from(self._view, at)
        return QueueKey(bytes(self._view[at + 8 : at + 8 + length]).decode(), queue_id)

    def max_offset(self, slot: int) -> int:
        """One past the queue's newest entry. Entries below it are complete: read it before them."""
        return self._words[slot * SLOT_BYTES // 8]

    def max_offsets(self) -> memoryview:
        """The live max offsets of all slots. Release the view before the table is closed."""
        return self._words[:: SLOT_BYTES // 8]

    def min_offset(self, slot: int) -> int:
        """The first entry that has not expired; the max offset where all entries have."""
        return self._words[slot * SLOT_BYTES // 8 + 1]

    def is_deleted(self, slot: int) -> bool:
        """Whether the queue's topic was deleted. Its files may be gone then."""
        return bool(self._words[slot * SLOT_BYTES // 8 + _DELETED])

    def mark_deleted(self, slot: int) -> None:
        """The reput calls this before it removes the queue's files."""
        self._words[slot * SLOT_BYTES // 8 + _DELETED] = 1

    def add(self, slot: int, key: QueueKey, min_offset: int, max_offset: int) -> None:
        """Fill a slot that is not counted yet.

        Raises StoreUnavailable when the table is full, OSError where memory has no room for it.
        """
        if slot >= self.capacity:
            raise StoreUnavailable(
                "the broker has as many queues as max_queues allows",
                self.capacity,
                f"start it with more: penstock up --set max_queues={2 * self.capacity}",
            )
        # the table is sparse: without this, a full /dev/shm would be a SIGBUS
        os.posix_fallocate(self._handle, slot * SLOT_BYTES, SLOT_BYTES)
        topic = key.topic.encode()
        at = slot * SLOT_BYTES + 16
        _IDENTITY.pack_into(self._view, at, key.queue_id, len(topic))
        self._view[at + 8 : at + 8 + len(topic)] = topic
        self._words[slot * SLOT_BYTES // 8 + 1] = min_offset
        self._words[slot * SLOT_BYTES // 8] = max_offset

    def move_max_offsets(self, rows: bytes) -> None:
        """Publish the max offsets of the queues in these rows, whose numbers are slots.

        The reput calls this once the entries are in their files. One loop serves a whole cycle,
        instead of a call for each of thousands of queues.
        """
        move_ends(rows, self._words, SLOT_BYTES // 8)

    def publish_min_offset(self, slot: int, min_offset: int) -> None:
        """The cleaner calls this before it deletes the files whose entries lie below."""
        self._words[slot * SLOT_BYTES // 8 + 1] = min_offset

    def keys(self, start: int, stop: int) -> Iterator[tuple[int, QueueKey]]:
        for slot in range(start, stop):
            yield slot, self.key(slot)

    def close(self) -> None:
        self._words.release()
        self._view.release()
        self._map.close()
        if self._handle >= 0:
            os.close(self._handle)


def create_queue_table(path: Path, max_queues: int) -> None:
    """Make an empty table. It stays sparse: only slots in use take memory."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(handle, max_queues * SLOT_BYTES)
    finally:
        os.close(handle)
