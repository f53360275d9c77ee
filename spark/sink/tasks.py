"""What a task attempt does with its rows: it makes records of them and stages them in the broker.

    rows -> records -> blocks -> staging topic, on disk -> their ids go to the driver

A staged block is just a message that nobody reads. It counts once the driver names it. The blocks
of an attempt that failed, was killed or came second are never named, and expire with the log. So an
attempt needs to know nothing of other attempts or of earlier batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.client.core.blocks import AROUND_BYTES
from penstock.client.core.sending.records import Staged
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.clock import SystemClock
from penstock.shared.errors import InvalidMessage
from penstock.shared.faults import crash_point
from penstock.shared.messaging.staged_records import Records, encode_records
from penstock.shared.messaging.system_topics import OWN_QUEUES, STAGING_TOPIC
from penstock.spark.sink.blocks import (
    BLOCK_BYTES,
    BLOCK_RECORDS,
    Staging,
    StoredBlock,
    stage,
)
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.rows import BadRow, Messages, messages_of

# A task with no more than this sends its rows with its answer to the driver, and stages nothing.
INLINE_BYTES = 128 << 10
# Blocks in flight at once while the next is made: one flush covers everything that came meanwhile,
# whereas a few blocks would wait for a flush each.
STAGING = 16
# Key numbers distinguish this many messages of one ms, and all rows of a batch get the same ms.
KEYS_IN_A_MS = 1 << 16
# Room in a frame for the record that moves the ledger, besides what a block counts itself.
_LEDGER_BYTES = 1024
# From this size on a block counts as full: records take a little less than estimated, but each look
# for more that fit costs as much as many records.
_FULL_BYTES = BLOCK_BYTES * 15 // 16


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> list[StoredBlock]:
    """Stage the rows durably. Returns the blocks, in the order of the rows.

    For a row that cannot be sent, raises what `Producer.send` raises, and names the row.
    """
    task: _Task | None = None
    number = 0
    with ExitStack() as stack:
        for batch in _slices(batches):
            if task is None:  # without rows there is no need to connect
                producer = options.producer()
                stack.push(producer)
                task = _Task(producer)
            try:
                task.add(batch, options.topic)
            except BadRow as bad:
                error = bad.error
                place = f"row {number + bad.index} of partition {_partition()}"
                value = place if error.value is None else f"{error.value}, {place}"
                raise type(error)(error.what, value, error.hint) from error
            number += batch.num_rows
        return task.finish() if task is not None else []


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that have rows, in pieces small enough that each row gets a unique key."""
    for batch in batches:
        for at in range(0, batch.num_rows, KEYS_IN_A_MS):
            yield batch.slice(at, KEYS_IN_A_MS)


class _Task:
    def __init__(self, producer: BlockProducer) -> None:
        self._producer = producer
        self._clock = SystemClock()
        # the first queue has the manifests
        self._queue = 1 + _partition() % (OWN_QUEUES[STAGING_TOPIC] - 1)
        # the next block's memory; reused, as new memory costs as much as making the records
        self._room = bytearray(BLOCK_BYTES)
        self._shape = producer.encoder.terms.shape
        self._runs: list[tuple[str, int, int]] = []
        self._size = self._count = 0
        self._blocks: list[Staged] = []
        # blocks in flight
        self._staging: deque[Staging] = deque()

    def add(self, batch: pa.RecordBatch, topic: str) -> None:
        """Take rows. Raises BadRow for one that cannot be sent."""
        messages = messages_of(batch, topic, self._producer, self._clock.now_ms())
        self._check_sizes(messages)
        ends = np.cumsum(messages.sizes)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            fitting = before + BLOCK_BYTES - self._size
            last = int(np.searchsorted(ends, fitting, "right"))
            last = min(last, first + BLOCK_RECORDS - self._count)
            if last <= first and self._count:
                self._stage()
                continue
            last = max(last, first + 1)
            self._take(messages, first, last, int(ends[last - 1]) - before)
            first = last
            if self._size >= _FULL_BYTES and first < len(ends):
                self._stage()

    def _check_sizes(self, messages: Messages) -> None:
        limit = self._producer.encoder.terms.max_frame_bytes - AROUND_BYTES - _LEDGER_BYTES
        if 0 < limit < int(messages.sizes.max()):
            index = int((messages.sizes > limit).argmax())
            size = int(messages.sizes[index])
            raise BadRow(index, InvalidMessage(f"the message takes more than {limit} bytes", size))

    def _take(self, messages: Messages, first: int, last: int, most_bytes: int) -> None:
        """Make records of some rows, grouped by queue, each queue's in their order."""
        order, runs = messages.by_queue(first, last)
        encoder = self._producer.encoder
        if self._size and self._shape != encoder.terms.shape:  # the broker was replaced meanwhile
            self._stage()
        if self._size + most_bytes > len(self._room):
            assert not self._size, "a block with other records is not filled beyond its size"
            self._room = bytearray(most_bytes)
        room = memoryview(self._room)[self._size :]
        size, shape = encoder.pack_rows(room, messages.rows, order.data)
        if self._size and shape != self._shape:  # it changed just now, and a block has one shape
            self._stage()
            self._take(messages, first, last, most_bytes)
            return
        self._shape = shape
        self._runs += runs
        self._size += size
        self._count += last - first

    def _block(self) -> Records:
        payload = memoryview(self._room)[: self._size]
        return Records(self._shape, self._runs, payload)

    def _stage(self) -> None:
        if len(self._staging) == STAGING:
            self._blocks.append(self._staging.popleft().result())
        self._staging.append(stage(self._producer, self._block(), self._queue))
        self._runs, self._size, self._count = [], 0, 0

    def finish(self) -> list[StoredBlock]:
        """The blocks: all of them durable, or a single inline one, too small to be staged."""
        if not self._staging and self._size <= INLINE_BYTES:
            return [encode_records(self._block())]
        self._stage()
        self._blocks += [each.result() for each in self._staging]
        crash_point("spark.staged")
        return list(self._blocks)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
