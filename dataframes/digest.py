"""A checksum of bodies that does not depend on the form of a file or on where they come from.

It depends on the order within each queue, but not on how the queues interleave, which differs from
store to store. A file without a column of topics, or of queues, counts as if it had only one.

    queue 0 of topic a: SHA-256 of all lengths, SHA-256 of all bytes --+
    queue 1 of topic a: the same                                     --+--> SHA-256
    ...                                                              --+
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

_PLACE = {"topic": pa.string(), "queue_id": pa.int32()}
_Place = tuple[str | None, int | None]


class Digest:
    """For each queue a SHA-256 of the bodies' lengths (8 bytes each, big endian) and one of their
    bytes, so that no body is touched by itself; and a SHA-256 over these, by topic and queue."""

    def __init__(self) -> None:
        self._queues: dict[_Place, tuple[Any, Any]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, which must have a column `body`."""
        for place, bodies in _by_queue(rows):
            if place not in self._queues:
                self._queues[place] = hashlib.sha256(), hashlib.sha256()
            of_lengths, of_bytes = self._queues[place]
            _, ends, data = bodies.buffers()
            offsets = np.frombuffer(ends, np.int32)[bodies.offset :][: len(bodies) + 1]
            of_lengths.update(np.diff(offsets).astype(">i8").tobytes())
            if data is not None:
                of_bytes.update(memoryview(data)[offsets[0] : offsets[-1]])

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        # nulls come first
        in_order = sorted(self._queues, key=lambda place: [(x is not None, x) for x in place])
        for place in in_order:
            for part in self._queues[place]:
                whole.update(part.digest())
        return whole.hexdigest()


def _by_queue(rows: pa.RecordBatch) -> Iterator[tuple[_Place, pa.BinaryArray]]:
    """The bodies of each queue, in their order."""
    bodies, count = rows.column("body"), rows.num_rows
    topics, queue_ids = (
        rows.column(name) if name in rows.schema.names else pa.nulls(count, kind)
        for name, kind in _PLACE.items()
    )
    by_topic, by_id = (each.dictionary_encode("encode") for each in (topics, queue_ids))
    numbers = by_topic.indices.to_numpy() * len(by_id.dictionary) + by_id.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    if len(by_topic.dictionary) * len(by_id.dictionary) > 1:
        bodies = bodies.take(pa.array(order))
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for first, end in pairwise((0, *cuts.tolist(), count)):
        if first < end:
            row = int(order[first])
            yield (topics[row].as_py(), queue_ids[row].as_py()), bodies[first:end]
