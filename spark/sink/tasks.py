"""What a task attempt does with its rows: it encodes them and stages them in the broker.

    rows -> drafts -> blocks -> staging topic, on disk -> their ids go to the driver

A staged block is nothing but a message that nobody reads. It counts when the driver names it; what
an attempt has staged that failed, was killed or came second is never named, and expires with the
log. So an attempt needs to know nothing of others, nor of the batches before.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import pyarrow as pa
from pyspark import TaskContext

from penstock.client.block_producer import BlockProducer
from penstock.client.core.blocks import AROUND_BYTES
from penstock.client.core.delays import wanted_delay
from penstock.client.core.sending.encoding import BatchMessage, waiting_form
from penstock.client.core.sending.frames import SendFuture
from penstock.shared.clock import SystemClock
from penstock.shared.errors import InvalidMessage
from penstock.shared.faults import crash_point
from penstock.shared.messaging.system_topics import OWN_QUEUES, STAGING_TOPIC
from penstock.spark.sink.blocks import (
    BLOCK_BYTES,
    Made,
    StoredBlock,
    encode_block,
    ids_of,
    stage,
)
from penstock.spark.sink.columns import Row, rows
from penstock.spark.sink.options import SinkOptions

# A task with no more than this sends its rows with its answer to the driver, and stages nothing.
INLINE_BYTES = 128 << 10
# Of a frame, for the record that moves the ledger besides what a block counts itself.
_LEDGER_BYTES = 1024


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> list[StoredBlock]:
    """Stage the rows, durably; the blocks in the order of the rows.

    Raises what `Producer.send` raises for a row that cannot be sent, and names the row.
    """
    task: _Task | None = None
    number = 0
    with ExitStack() as stack:
        try:
            for batch in batches:
                for row in rows(batch, options.topic):
                    if task is None:  # without rows nobody is talked to
                        producer = options.producer()
                        stack.push(producer)
                        task = _Task(producer)
                    task.add(row)
                    number += 1
        except InvalidMessage as error:
            place = f"row {number} of partition {_partition()}"
            value = place if error.value is None else f"{error.value}, {place}"
            raise type(error)(error.what, value, error.hint) from error
        return task.finish() if task is not None else []


class _Task:
    def __init__(self, producer: BlockProducer) -> None:
        self._producer = producer
        self._clock = SystemClock()
        # the first queue has the manifests
        self._queue = 1 + _partition() % (OWN_QUEUES[STAGING_TOPIC] - 1)
        self._routed: set[str] = set()
        self._made: list[Made] = []
        self._size = 0
        self._blocks: list[tuple[str, ...]] = []
        # what is on its way: of one block, so that the next is made meanwhile
        self._staging: list[SendFuture] = []

    def add(self, row: Row) -> None:
        producer, encoder = self._producer, self._producer.encoder
        topic, message = row.topic, row.message
        if topic not in self._routed:
            producer.route(topic)
            self._routed.add(topic)
        if row.shard is not None and row.queue is not None:
            raise InvalidMessage(
                "both sharding_key and queue_id choose the message's queue",
                f"{row.shard!r} and {row.queue}",
                "leave one of them null",
            )
        delay, properties = wanted_delay(
            row.delay, row.deliver_at, row.delay_level, message.properties, self._clock.now_ms()
        )
        if properties is not message.properties:
            message = BatchMessage(message.body, message.tags, message.keys, properties)
        draft = encoder.draft(message, row.shard)
        queue = producer.queue_for(topic, row.shard, row.queue)
        size = encoder.room(topic, draft, delay)
        if delay is not None:
            draft = waiting_form(draft, topic, queue, delay)
            topic, queue = delay.topic, delay.queue_id
        limit = encoder.terms.max_frame_bytes - AROUND_BYTES - _LEDGER_BYTES
        if 0 < limit < size:
            raise InvalidMessage(f"the message takes more than {limit} bytes", size)
        if self._made and self._size + size > BLOCK_BYTES:
            self._stage()
        self._made.append((topic, queue, draft))
        self._size += size

    def _stage(self) -> None:
        raw = encode_block(self._made)
        self._await()
        self._staging = stage(self._producer, raw, self._queue)
        self._made, self._size = [], 0

    def _await(self) -> None:
        if self._staging:
            self._blocks.append(ids_of(self._staging))
            self._staging = []

    def finish(self) -> list[StoredBlock]:
        """The blocks, all of them durable, or so few bytes that they need not be."""
        if not self._staging and not self._blocks and self._size <= INLINE_BYTES:
            return [encode_block(self._made)]
        self._stage()
        self._await()
        crash_point("spark.staged")
        return list(self._blocks)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
