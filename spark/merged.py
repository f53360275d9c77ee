"""Reads ranges of several queues together, in the order in which their messages were stored.

Queues interleave in the log. Read one after the other, each would need its own pass over the log,
in small pieces. So their entries are merged by log offset, and the log is read once, in order.

    queue 0: entries, some ahead --+
    queue 1: entries, some ahead --+--> by log offset --> Scan --> rows
    ...                          --+
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.arrow.decode import Batch
from penstock.client.arrow.property_columns import Integers
from penstock.shared.files.file_cache import FileCache
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.spark import scan
from penstock.spark.log_pass import LogPass
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.rows import How, Rows
from penstock.spark.scan import Scan, held_range, named_by

# Entries that are read ahead for all queues together, and the least for each queue
ENTRIES_AHEAD, FEWEST_ENTRIES = 1 << 18, 64
# How much log a batch covers: an export passes batches between threads, and each costs some waits.
BATCH_BYTES = 8 << 20
_END = np.iinfo(np.int64).max


def read_merged(
    store: StoreDirectory, pieces: Sequence[QueueRange], columns: Sequence[str], how: How
) -> Iterator[list[pa.Array]]:
    """The requested columns, batch by batch. Raises StoreDamaged, OffsetOutOfRange."""
    files, log_start = FileCache(), store.log_start
    queues = [
        QueueFiles(files, store.paths.queue(topic, queue_id), topic, queue_id, log_start)
        for topic, queue_id, _, _ in pieces
    ]
    by_name = {(queue.topic, queue.queue_id): queue for queue in queues}
    reading = Scan(store, by_name, Rows(columns, how), LogPass(store), BATCH_BYTES)
    ranges = [held_range(*each, how) for each in zip(queues, pieces, strict=True)]
    try:
        ahead = [_Ahead(queue, *held) for queue, held in zip(queues, ranges, strict=True)]
        for named, codes in merged(ahead):
            yield from reading.rows_of(named, codes)
    finally:
        files.close()


class _Part(NamedTuple):
    """Entries of one queue: what they name, their tags codes, and their sort keys."""

    named: Batch
    codes: Integers
    keys: Integers

    def sliced(self, which: slice) -> _Part:
        return _Part(self.named.part(which), self.codes[which], self.keys[which])


class _Ahead:
    """A queue's entries that were read and are not taken yet."""

    def __init__(self, queue: QueueFiles, start: int, stop: int) -> None:
        self._queue, self._next, self._stop = queue, start, stop
        self._last_key = 0
        self.held = _Part(*named_by(queue, start, start), np.empty(0, np.int64))

    @property
    def is_all(self) -> bool:
        """Whether all entries of the queue were read."""
        return self._next >= self._stop

    def read(self, count: int) -> None:
        """Read the next entries, once all earlier ones are taken. Only at the queue's end is
        nothing held afterwards."""
        while not len(self.held.keys) and not self.is_all:
            upto = min(self._next + count, self._stop)
            named, codes = named_by(self._queue, self._next, upto)
            # a damaged entry may name a lower offset than its predecessor, but the order must stay
            keys = np.maximum(np.maximum.accumulate(named.physical_offsets), self._last_key)
            self.held, self._next = _Part(named, codes, keys), upto
            self._last_key = int(keys[-1]) if len(keys) else self._last_key

    def take(self, horizon: int) -> _Part:
        """Take the entries that name nothing past the horizon."""
        count = int(np.searchsorted(self.held.keys, horizon, "right"))
        taken, self.held = self.held.sliced(slice(count)), self.held.sliced(slice(count, None))
        return taken


def merged(queues: Sequence[_Ahead]) -> Iterator[tuple[Batch, Integers]]:
    """What the entries of all queues name, by log offset, and their tags codes."""
    at_once = min(max(ENTRIES_AHEAD // max(len(queues), 1), FEWEST_ENTRIES), scan.ENTRIES_AT_ONCE)
    firsts, lasts = list[tuple[int, int]](), list[tuple[int, int]]()  # heaps: key, queue
    parts, count = list[_Part](), 0

    def hold(number: int) -> None:
        queue = queues[number]
        if not len(queue.held.keys):
            queue.read(at_once)
            if not queue.is_all:
                heapq.heappush(lasts, (int(queue.held.keys[-1]), number))
        if len(queue.held.keys):
            heapq.heappush(firsts, (int(queue.held.keys[0]), number))

    for number in range(len(queues)):
        hold(number)
    while firsts:
        # every unread entry comes after the lowest of the queues' last read keys
        horizon = heapq.heappop(lasts)[0] if lasts else _END
        while firsts and firsts[0][0] <= horizon:
            _, number = heapq.heappop(firsts)
            parts.append(queues[number].take(horizon))
            count += len(parts[-1].keys)
            hold(number)
        if count >= scan.ENTRIES_AT_ONCE or not firsts:
            yield _in_order(parts)
            parts, count = [], 0


def _in_order(parts: Sequence[_Part]) -> tuple[Batch, Integers]:
    """Join parts of several queues, sorted by key."""
    order = np.argsort(np.concatenate([each.keys for each in parts]), kind="stable")
    named = [each.named for each in parts]
    lengths = [len(each.keys) for each in parts]
    numbers = np.repeat(np.arange(len(parts)), lengths)[order]
    batch = Batch(
        pa.array([each.topic for each in named], pa.string()).take(pa.array(numbers)),
        np.array([each.queue_id for each in named], np.int64)[numbers],
        np.concatenate([each.queue_offsets for each in named])[order],
        np.concatenate([each.physical_offsets for each in named])[order],
        np.concatenate([each.sizes_bytes for each in named])[order],
    )
    return batch, np.concatenate([each.codes for each in parts])[order]
