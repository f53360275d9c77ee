"""Records to Arrow columns, a batch at a time, without a Python loop over records.

The positions of all fields of all records are computed as NumPy arrays; numbers are read through
unaligned views, and bodies and properties are copied by a compiled loop.
IPv6 hosts and two-byte topic lengths only shift positions, so they take the same path.

The record layout is that of `record_layout`. Pure: files and queues are those of `spark.scan`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.arrow.property_columns import Integers, Properties, property_columns
from penstock.shared.errors import UnreadableBody
from penstock.shared.formats.compression import MAX_BODY_BYTES, decompress
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BODY_V4,
    AT_BORN_HOST,
    AT_BORN_TIMESTAMP,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SYS_FLAG,
    BODY_LENGTH_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
)
from penstock.shared.loops.active import copy_bodies

# what Spark's timestamp can show: the years 1 to 9999
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


class Batch(NamedTuple):
    """Records, and what their consume queue entries say about them."""

    # of all, or of each
    topic: str | pa.StringArray
    queue_id: int | Integers
    queue_offsets: Integers
    physical_offsets: Integers
    sizes_bytes: Integers
    raw: bytes | memoryview = b""
    starts: Integers = np.empty(0, np.int64)  # where in `raw` each record begins
    # what a compressed body expands to at most
    max_body_bytes: int = MAX_BODY_BYTES

    def queue_of(self, index: int) -> tuple[str, int]:
        """Of one record."""
        topic, queue_id = self.topic, self.queue_id
        return (
            topic if isinstance(topic, str) else topic[index].as_py(),
            queue_id if isinstance(queue_id, int) else int(queue_id[index]),
        )

    def part(self, which: slice | npt.NDArray[np.bool_]) -> Self:
        """Those of the records."""
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
    """A record of the batch is not the one its entry names, or is damaged."""

    def __init__(self, index: int) -> None:
        super().__init__(f"record {index} of the batch")
        self.index = index


class _Places(NamedTuple):
    """Where the variable parts of each record are in the buffer."""

    store_timestamps: Integers
    bodies: Integers
    body_sizes: Integers
    properties: Integers
    property_sizes: Integers


def entry_columns(batch: Batch) -> dict[str, Callable[[], pa.Array]]:
    """The columns that the consume queue holds: the log is not needed for them."""
    count, topic = len(batch.queue_offsets), batch.topic
    return {
        "topic": lambda: pa.repeat(topic, count) if isinstance(topic, str) else topic,
        "queue_id": lambda: pa.array(np.full(count, batch.queue_id, np.int32)),
        "queue_offset": lambda: pa.array(batch.queue_offsets),
        "physical_offset": lambda: pa.array(batch.physical_offsets),
    }


def record_columns(batch: Batch) -> dict[str, Callable[[], pa.Array]]:
    """All columns, each computed when called. Raises RecordMismatch unless every record is as
    named, and the body column unless every body has its checksum.
    """
    places = _locate(batch)
    made: list[Properties] = []

    def properties() -> Properties:
        if not made:
            strings = places.properties, places.property_sizes
            made.append(property_columns(batch.raw, *strings))
        return made[0]

    born = batch.starts + AT_BORN_TIMESTAMP
    return entry_columns(batch) | {
        "keys": lambda: properties().keys,
        "tags": lambda: properties().tags,
        "body": lambda: _checked_bodies(batch, places),
        "born_timestamp": lambda: _timestamps(_numbers(batch.raw, ">i8", born)),
        "store_timestamp": lambda: _timestamps(_numbers(batch.raw, ">i8", places.store_timestamps)),
        "properties": lambda: properties().maps,
    }


def _locate(batch: Batch) -> _Places:
    """Check each record against its entry, every length before it is used."""
    raw, starts, sizes = batch.raw, batch.starts, batch.sizes_bytes
    ends = starts + sizes
    _require(sizes >= SMALLEST_RECORD_BYTES)
    magic = _numbers(raw, ">u4", starts + AT_MAGIC)
    _require(_numbers(raw, ">i4", starts) == sizes)
    _require((magic == MAGIC_V1) | (magic == MAGIC_V2))
    _require(_numbers(raw, ">i8", starts + AT_PHYSICAL_OFFSET) == batch.physical_offsets)
    _require(_numbers(raw, ">i8", starts + AT_QUEUE_OFFSET) == batch.queue_offsets)
    _require(_numbers(raw, ">i4", starts + AT_QUEUE_ID) == batch.queue_id)

    sys_flag = _numbers(raw, ">i4", starts + AT_SYS_FLAG)
    born_bytes = np.where(sys_flag & SYS_BORN_HOST_V6, HOST_V6_BYTES, HOST_V4_BYTES)
    store_bytes = np.where(sys_flag & SYS_STORE_HOST_V6, HOST_V6_BYTES, HOST_V4_BYTES)
    lengths = TOPIC_LENGTH_BYTES
    length_bytes = np.where(magic == MAGIC_V2, lengths[MAGIC_V2], lengths[MAGIC_V1])
    bodies = starts + AT_BODY_V4 - 2 * HOST_V4_BYTES + born_bytes + store_bytes
    room = ends - bodies - length_bytes - PROPERTIES_LENGTH_BYTES  # for body, topic and properties
    _require(room >= 0)
    body_sizes = _numbers(raw, ">i4", bodies - BODY_LENGTH_BYTES)
    _require((body_sizes >= 0) & (body_sizes <= room))

    topics = bodies + body_sizes + length_bytes
    topic_sizes = _topic_sizes(batch)
    # the last byte of either length; a topic is at most 255 bytes, so the first of two is 0
    _require(_numbers(raw, ">u1", topics - 1) == topic_sizes)
    _require((length_bytes == 1) | (_numbers(raw, ">u1", topics - 2) == 0))
    _require(body_sizes + topic_sizes <= room)
    _require(_are_topics(batch, topics))

    properties = topics + topic_sizes + PROPERTIES_LENGTH_BYTES
    property_sizes = _numbers(raw, ">i2", properties - PROPERTIES_LENGTH_BYTES)
    _require((property_sizes >= 0) & (properties + property_sizes == ends))
    return _Places(
        starts + AT_BORN_HOST + born_bytes, bodies, body_sizes, properties, property_sizes
    )


def _topic_sizes(batch: Batch) -> int | Integers:
    if isinstance(batch.topic, str):
        return len(batch.topic.encode())
    sizes: Integers = np.diff(_topic_bounds(batch.topic))
    return sizes


def _topic_bounds(topics: pa.StringArray) -> Integers:
    """Where each begins in their text, and the last one ends."""
    bounds = np.frombuffer(topics.buffers()[1], np.int32)[topics.offset :][: len(topics) + 1]
    return bounds.astype(np.int64)


def _are_topics(batch: Batch, at: Integers) -> npt.NDArray[np.bool_]:
    """Which records have at these places, where there is room for it, the topic they should."""
    found = np.frombuffer(batch.raw, np.uint8)
    if isinstance(batch.topic, str):
        topic = np.frombuffer(batch.topic.encode(), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(found, len(topic))
        are: npt.NDArray[np.bool_] = (windows[at] == topic).all(axis=1)
        return are
    # a place for each byte of each topic, to have it beside the byte that should be there
    bounds = _topic_bounds(batch.topic)
    within = np.arange(bounds[0], bounds[-1])
    text = np.frombuffer(batch.topic.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    same = found[within + np.repeat(at - bounds[:-1], np.diff(bounds))] == text
    whole: npt.NDArray[np.bool_] = np.logical_and.reduceat(same, bounds[:-1] - bounds[0])
    return whole


def _checked_bodies(batch: Batch, places: _Places) -> pa.BinaryArray:
    """The bodies, each compared with its checksum: a wrong byte must not go unnoticed."""
    ends = np.cumsum(places.body_sizes)
    copied = pa.allocate_buffer(int(ends[-1]) if len(ends) else 0)
    crcs = _numbers(batch.raw, ">i4", batch.starts + AT_BODY_CRC)
    wrong = copy_bodies(batch.raw, places.bodies.data, places.body_sizes.data, crcs.data, copied)
    if wrong >= 0:
        raise RecordMismatch(wrong)
    sys_flags = _numbers(batch.raw, ">i4", batch.starts + AT_SYS_FLAG)
    if not (sys_flags & SYS_COMPRESSED).any():
        bounds = np.zeros(len(ends) + 1, np.int32)
        bounds[1:] = ends
        buffers = [None, pa.py_buffer(bounds), copied]
        return pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
    spans = places.bodies.tolist(), (places.bodies + places.body_sizes).tolist()
    bodies = []
    for index, (start, end, sys_flag) in enumerate(zip(*spans, sys_flags.tolist(), strict=True)):
        try:
            bodies.append(decompress(bytes(batch.raw[start:end]), sys_flag, batch.max_body_bytes))
        except UnreadableBody as error:
            topic, queue_id = batch.queue_of(index)
            place = f"{topic}/{queue_id}@{batch.queue_offsets[index]}"
            raise UnreadableBody(error.what, f"{place}: {error.value}", error.hint) from None
    return pa.array(bodies, pa.binary())


def _numbers(raw: bytes | memoryview, kind: str, at: Integers) -> Integers:
    """The big-endian numbers that begin at these places, aligned or not."""
    dtype = np.dtype(kind)
    count = len(raw) - dtype.itemsize + 1
    everywhere: npt.NDArray[Any] = np.ndarray((count,), dtype, raw, 0, (1,))
    return everywhere[at].astype(np.int64)


def _require(holds: npt.NDArray[np.bool_]) -> None:
    if not holds.all():
        raise RecordMismatch(int(holds.argmin()))


def _timestamps(times_ms: Integers) -> pa.Array:
    """Spark timestamps; null for a time that Spark cannot show (senders may write anything)."""
    strange = (times_ms < _FIRST_MS) | (times_ms > _LAST_MS)
    times_us = pa.array(np.where(strange, 0, times_ms) * 1000, mask=strange)
    return times_us.view(pa.timestamp("us", tz="UTC"))
