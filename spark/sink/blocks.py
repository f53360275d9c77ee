"""Messages between the task that encodes them and the driver that publishes them.

A block is what is published in one frame. Its messages are drafts, which no broker's address or
settings have gone into yet: the broker may be another one by the time they are published.

    staged   the block's bytes, cut into messages of the staging topic; it is named by their ids
    inline   the bytes themselves, where they are few: they travel through Spark

Pure, but for what stages: that is given the producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from penstock.client.block_producer import BlockProducer
from penstock.client.core.blocks import Block
from penstock.client.core.sending.frames import SendFuture
from penstock.shared.errors import StoreDamaged
from penstock.shared.loops.forms import Draft
from penstock.shared.messaging.system_topics import STAGING_TOPIC

# Of drafts in one block, unless one alone is longer. The frame has room for twice as much.
BLOCK_BYTES = 512 << 10
# Where nobody has said how long a message may be.
_PART_BYTES = 1 << 20

# ids of the messages that hold it, or its bytes
StoredBlock = tuple[str, ...] | bytes
# topic, queue, draft
Made = tuple[str, int, Draft]


class _Run(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one queue that follow each other."""

    topic: str
    queue_id: int
    drafts: list[tuple[bytes, bytes, int, int]]


_RUNS = msgspec.msgpack.Decoder(list[_Run])


def encode_block(made: Sequence[Made]) -> bytes:
    """The bytes of a block; within a queue the messages keep their order."""
    in_order = sorted(made, key=lambda each: each[:2])  # stable
    runs = [
        _Run(topic, queue_id, [_whole(draft) for _, _, draft in group])
        for (topic, queue_id), group in groupby(in_order, key=lambda each: each[:2])
    ]
    return msgspec.msgpack.encode(runs)


def decode_block(raw: bytes, into: Block) -> None:
    """Put the messages into a block of the client. Raises StoreDamaged, InvalidMessage."""
    try:
        runs = _RUNS.decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreDamaged("what a task has staged cannot be read", error) from error
    for run in runs:
        for body, properties, flag, bits in run.drafts:
            plain = not properties and not flag and not bits
            draft = body if plain else (body, properties, flag, bits)
            into.put(run.topic, run.queue_id, draft)


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


def _whole(draft: Draft) -> tuple[bytes, bytes, int, int]:
    return (draft, b"", 0, 0) if isinstance(draft, bytes) else draft
