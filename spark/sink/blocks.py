"""Messages between the task that encodes them and the driver that publishes them.

A block is published in one frame: records in the form in which the broker appends them, which
nobody decodes in between.

    staged   in the broker, as messages of the staging topic: a frame names their ids
    inline   the bytes themselves, if they are few: they travel through Spark

Pure, except for staging, which is given the producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.records import Staged
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.staged_records import Records, encode_records
from penstock.shared.messaging.system_topics import STAGING_TOPIC

# The size of one block, unless a single record is longer. A frame has room for twice as much.
BLOCK_BYTES = 512 << 10
# The most records of one block: each may be for another queue, and a frame names at most MAX_RUNS.
BLOCK_RECORDS = 4000
# The size of a part if the broker's message limit is unknown.
_PART_BYTES = 1 << 20

StoredBlock = Staged | bytes


class Staging(NamedTuple):
    """A block in flight to the broker, as messages that hold its parts."""

    parts: list[SendFuture]
    shape: Shape
    total: int

    def result(self) -> Staged:
        """Wait until the block is on disk, and return it. Raises what the sends raise."""
        return Staged(ids_of(self.parts), self.shape, self.total)


def stage(producer: BlockProducer, records: Records, queue: int) -> Staging:
    """Send a copy of the records to the staging topic."""
    parts = stage_bytes(producer, encode_records(records), queue)
    return Staging(parts, records.shape, records.total)


def stage_bytes(producer: BlockProducer, raw: bytes, queue: int) -> list[SendFuture]:
    """Send bytes to the staging topic, in as many messages as it takes."""
    part_bytes = producer.max_message_bytes or _PART_BYTES
    return [
        producer.send(STAGING_TOPIC, raw[at : at + part_bytes], queue=queue, ack="durable")
        for at in range(0, len(raw), part_bytes)
    ]


def ids_of(parts: Sequence[SendFuture]) -> tuple[str, ...]:
    """The ids by which staged bytes are found. Waits for the disk, raises what the sends raise."""
    return tuple(part.result().message_id for part in parts)
