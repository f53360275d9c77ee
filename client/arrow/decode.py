"""Decodes records to Arrow columns, a batch at a time, without a Python loop over records.

Compiled loops check the records, find their fields, and copy bodies and properties; NumPy makes the
columns of numbers. Pure: files and queues belong to `spark.scan`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.arrow.property_columns import Integers, Properties, property_columns
from penstock.shared.errors import UnreadableBody
from penstock.shared.formats.compression import MAX_BODY_BYTES, decompress
from penstock.shared.formats.record_layout import SYS_COMPRESSED
from penstock.shared.loops.active import copy_bodies, record_fields
from penstock.shared.loops.forms import FIELDS

# the range of Spark's timestamp: the years 1 to 9999
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


class Batch(NamedTuple):
    """Records, and what their consume queue entries say about them."""

    # one value for all records, or one for each
    topic: str | pa.StringArray
    queue_id: int | Integers
    queue_offsets: Integers
    physical_offsets: Integers
    sizes_bytes: Integers
    raw: bytes | memoryview = b""
    starts: Integers = np.empty(0, np.int64)  # where in `raw` each record begins
    # the most that a compressed body may expand to
    max_body_bytes: int = MAX_BODY_BYTES

    def queue_of(self, index: int) -> tuple[str, int]:
        """The topic and queue of one record."""
        topic, queue_id = self.topic, self.queue_id
        return (
            topic if isinstance(topic, str) else topic[index].as_py(),
            queue_id if isinstance(queue_id, int) else int(queue_id[index]),
        )

    def part(self, which: slice | npt.NDArray[np.bool_]) -> Self:
        """The batch of these records only."""
        topic, queue_id = self.topic, self.queue_id
        if not isinstance(topic, str):
            topic = topic[which] if isinstance(which, slice) else topic.filter(pa.array(which))
        return self._replace(
            topic=topic,
            queue_id=queue_id if isinstance(queue_id, int) else queue_id[which],
            queue_offsets=self.queue_offsets[which],
            physical_offsets=self.physical_offsets[which],
            sizes_bytes=self.sizes_bytes[which],
            starts=self.starts[which] if len(self.starts) else self.starts,
        )


class RecordMismatch(Exception):
    """A record of the batch is not the one that its entry names, or is damaged."""

    def __init__(self, index: int) -> None:
        super().__init__(f"record {index} of the batch")
        self.index = index


class _Fields(NamedTuple):
    """What `record_fields` finds in each record."""

    bodies: Integers
    body_sizes: Integers
    properties: Integers
    property_sizes: Integers
    body_crcs: Integers
    sys_flags: Integers
    born_timestamps: Integers
    store_timestamps: Integers


def entry_columns(batch: Batch) -> dict[str, Callable[[], pa.Array]]:
    """The columns that the consume queue holds, for which the log is not needed."""
    count, topic = len(batch.queue_offsets), batch.topic
    return {
        "topic": lambda: pa.repeat(topic, count) if isinstance(topic, str) else topic,
        "queue_id": lambda: pa.array(np.full(count, batch.queue_id, np.int32)),
        "queue_offset": lambda: pa.array(batch.queue_offsets),
        "physical_offset": lambda: pa.array(batch.physical_offsets),
    }


def record_columns(batch: Batch) -> dict[str, Callable[[], pa.Array]]:
    """All columns, each computed when called. Raises RecordMismatch unless every record matches its
    entry. The body column raises it unless every body matches its checksum.
    """
    fields = _located(batch)
    made: list[Properties] = []

    def properties() -> Properties:
        if not made:
            strings = fields.properties, fields.property_sizes
            made.append(property_columns(batch.raw, *strings))
        return made[0]

    return entry_columns(batch) | {
        "keys": lambda: properties().keys,
        "tags": lambda: properties().tags,
        "body": lambda: _checked_bodies(batch, fields),
        "born_timestamp": lambda: _timestamps(fields.born_timestamps),
        "store_timestamp": lambda: _timestamps(fields.store_timestamps),
        "properties": lambda: properties().maps,
    }


def _located(batch: Batch) -> _Fields:
    """Check each record against its entry, and every length before it is used."""
    topic = batch.topic
    if isinstance(topic, str):
        text: Any = topic.encode()
        ends: Any = array("q", [len(text)])
    else:
        bounds = _topic_bounds(topic)
        text = memoryview(topic.buffers()[2] or b"")[bounds[0] : bounds[-1]]
        ends = (bounds[1:] - bounds[0]).data
    queues = batch.queue_id
    named = (
        batch.starts.data,
        batch.sizes_bytes.data,
        batch.physical_offsets.data,
        batch.queue_offsets.data,
        array("q", [queues]) if isinstance(queues, int) else queues.data,
    )
    found = np.empty((FIELDS, len(batch.starts)), np.int64)
    wrong = record_fields(batch.raw, named, text, ends, found.data)
    if wrong >= 0:
        raise RecordMismatch(wrong)
    return _Fields(*found)


def _topic_bounds(topics: pa.StringArray) -> Integers:
    """Where each topic begins in the shared text, and where the last one ends."""
    bounds = np.frombuffer(topics.buffers()[1], np.int32)[topics.offset :][: len(topics) + 1]
    return bounds.astype(np.int64)


def _checked_bodies(batch: Batch, fields: _Fields) -> pa.BinaryArray:
    """The bodies, each compared with its checksum, so that no wrong byte goes unnoticed."""
    ends = np.cumsum(fields.body_sizes)
    copied = pa.allocate_buffer(int(ends[-1]) if len(ends) else 0)
    pieces = fields.bodies.data, fields.body_sizes.data
    wrong = copy_bodies(batch.raw, *pieces, fields.body_crcs.data, copied)
    if wrong >= 0:
        raise RecordMismatch(wrong)
    if not (fields.sys_flags & SYS_COMPRESSED).any():
        bounds = np.zeros(len(ends) + 1, np.int32)
        bounds[1:] = ends
        buffers = [None, pa.py_buffer(bounds), copied]
        return pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
    spans = fields.bodies.tolist(), (fields.bodies + fields.body_sizes).tolist()
    flags = fields.sys_flags.tolist()
    bodies = []
    for index, (start, end, sys_flag) in enumerate(zip(*spans, flags, strict=True)):
        try:
            bodies.append(decompress(bytes(batch.raw[start:end]), sys_flag, batch.max_body_bytes))
        except UnreadableBody as error:
            topic, queue_id = batch.queue_of(index)
            place = f"{topic}/{queue_id}@{batch.queue_offsets[index]}"
            raise UnreadableBody(error.what, f"{place}: {error.value}", error.hint) from None
    return pa.array(bodies, pa.binary())


def _timestamps(times_ms: Integers) -> pa.Array:
    """Spark timestamps; null for times outside Spark's range, as senders may write anything."""
    strange = (times_ms < _FIRST_MS) | (times_ms > _LAST_MS)
    times_us = pa.array(np.where(strange, 0, times_ms) * 1000, mask=strange)
    return times_us.view(pa.timestamp("us", tz="UTC"))
