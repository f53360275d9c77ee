"""Messages between the task that encodes them and the driver that publishes them.

A block is what is published in one frame: records as the broker appends them, which nobody takes
apart in between.

    staged   the block's bytes, cut into messages of the staging topic; it is named by their ids
    inline   the bytes themselves, where they are few: they travel through Spark

Pure, but for what stages: that is given the producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.records import Records
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.system_topics import STAGING_TOPIC

# Of records in one block, unless one alone is longer. The frame has room for twice as much.
BLOCK_BYTES = 512 << 10
# And how many: each may be for another queue, and a frame names no more than MAX_RUNS.
BLOCK_RECORDS = 4000
# Where nobody has said how long a message may be.
_PART_BYTES = 1 << 20

# ids of the messages that hold it, or its bytes
StoredBlock = tuple[str, ...] | bytes


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The fields of Records."""

    store_host_bytes: int
    prop_crc: bool
    runs: list[tuple[str, int, int]]
    payload: memoryview


_STORED = msgspec.msgpack.Decoder(_Stored)


def encode_block(records: Records) -> bytes:
    """The bytes of a block."""
    return msgspec.msgpack.encode((*records.shape, records.runs, records.payload))


def decode_block(raw: bytes) -> Records:
    """The records of a block, which `raw` holds. Raises StoreDamaged."""
    try:
        stored = _STORED.decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreDamaged("what a task has staged cannot be read", error) from error
    return Records(Shape(stored.store_host_bytes, stored.prop_crc), stored.runs, stored.payload)


def stage(producer: BlockProducer, raw: bytes, queue: int) -> list[SendFuture]:
    """Send the bytes to the staging topic; on disk when the futures say so."""
    part_bytes = producer.max_message_bytes or _PART_BYTES
    return [
        producer.send(STAGING_TOPIC, raw[at : at + part_bytes], queue=queue, ack="durable")
        for at in range(0, len(raw), part_bytes)
    ]


def ids_of(parts: Sequence[SendFuture]) -> tuple[str, ...]:
    """By what staged bytes are found again. Waits for the disk, raises what the sends raise."""
    return tuple(part.result().message_id for part in parts)
