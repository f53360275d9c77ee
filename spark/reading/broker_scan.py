"""Reads a range of a queue from a running broker, as its consumers do: for executors elsewhere.

The records come as they stand in the log, and are decoded by the same code as those of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.client.arrow.decode import Batch
from penstock.client.consumer import Consumer
from penstock.client.core.message import Message
from penstock.client.where import Where
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.rows import How, Rows

BATCH_BYTES = 4 << 20


def read_from_broker(
    endpoint: str, piece: QueueRange, columns: Sequence[str], how: How
) -> Iterator[list[pa.Array]]:
    """The columns asked for, batch after batch. Raises ConnectError, BrokerTimeout,
    OffsetOutOfRange where messages have expired, StoreDamaged."""
    rows = Rows(columns, how)
    consumer = Consumer(
        topic=piece.topic,
        start={piece.queue_id: piece.start},
        queues=[piece.queue_id],
        follow=False,
        tags=how.tags,
        sql=how.sql,
        direct=False,
        **Where(None, endpoint, None).arguments("consumers"),
    )
    with consumer:
        consumer.end_at({piece.queue_id: piece.stop})
        held: list[Message] = []
        held_bytes = 0
        for message in consumer:
            held.append(message)
            held_bytes += len(message.record)
            if held_bytes >= BATCH_BYTES:
                yield from _rows_of(rows, piece, held)
                held, held_bytes = [], 0
        yield from _rows_of(rows, piece, held)
        if consumer.skipped and how.fail_on_data_loss:
            raise OffsetOutOfRange(
                "messages that were to be read have expired meanwhile",
                f"{consumer.skipped} of {piece.topic}/{piece.queue_id} from {piece.start}",
                'read again; with option("failOnDataLoss", "false") a query passes over them',
            )


def _rows_of(rows: Rows, piece: QueueRange, held: Sequence[Message]) -> Iterator[list[pa.Array]]:
    records = [message.record for message in held]
    sizes = np.array([len(record) for record in records], np.int64)
    heads = [bytes(record[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8]) for record in records]
    batch = rows.candidates(
        Batch(
            piece.topic,
            piece.queue_id,
            np.array([message.queue_offset for message in held], np.int64),
            np.frombuffer(b"".join(heads), ">i8").astype(np.int64),
            sizes,
            b"".join(records),
            np.cumsum(sizes) - sizes,
        )
    )
    if len(batch.queue_offsets):
        yield from rows.rows(batch, _damage)


def _damage(batch: Batch, index: int) -> StoreDamaged:
    return StoreDamaged(
        "a record that the broker has sent is damaged",
        f"message {batch.queue_offsets[index]} of {batch.topic}/{batch.queue_id}, "
        f"at {batch.physical_offsets[index]}",
        "see what is wrong, on the broker's machine: penstock store verify STORE",
    )
