"""Reads ranges of queues from a running broker, as a consumer, for executors on other machines.

The records come as they are in the log, and are decoded by the same code as those in files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.arrow.decode import Batch
from penstock.client.connecting.asker import Asker
from penstock.client.connecting.where import Where
from penstock.client.core.message import Message, read_records, without_tombstones
from penstock.client.core.selection import choose
from penstock.client.reading.consumer import Consumer
from penstock.client.reading.one_message import pull_one
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET
from penstock.shared.wire.messages import decode_consume_answer
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Mode
from penstock.spark.reading.rows import How, Rows

BATCH_BYTES = 4 << 20
# After damage, this many messages are pulled one by one, about as many as come in one answer.
ONE_BY_ONE = 1024

_Rows = Generator[list[pa.Array]]


def read_from_broker(
    endpoint: str, pieces: Sequence[QueueRange], columns: Sequence[str], how: How
) -> _Rows:
    """The requested columns, batch by batch; each queue's rows in order. Raises ConnectError,
    BrokerTimeout, OffsetOutOfRange if messages have expired, and StoreDamaged as the mode says."""
    rows = Rows(columns, how)
    for together in _at_once(pieces):
        for left in (yield from _read_together(endpoint, together, rows)):
            yield from _read_past_damage(endpoint, left, rows)


def _at_once(pieces: Sequence[QueueRange]) -> Iterator[list[QueueRange]]:
    """The pieces in groups that one consumer can read: queues of one topic, each at most once."""
    held: dict[int, QueueRange] = {}
    topic = ""
    for piece in pieces:
        if held and (piece.topic != topic or piece.queue_id in held):
            yield [*held.values()]
            held = {}
        if piece.start < piece.stop:
            held[piece.queue_id], topic = piece, piece.topic
    if held:
        yield [*held.values()]


def _read_past_damage(endpoint: str, piece: QueueRange, rows: Rows) -> _Rows:
    """A queue's rows from where damage stopped it, in this queue or in one read with it."""
    while piece.start < piece.stop:
        left = yield from _read_together(endpoint, [piece], rows)
        if not left:
            return
        careful = left[0]._replace(stop=min(left[0].start + ONE_BY_ONE, piece.stop))
        yield from _read_one_by_one(endpoint, careful, rows)
        piece = piece._replace(start=careful.stop)


def _read_together(
    endpoint: str, pieces: Sequence[QueueRange], rows: Rows
) -> Generator[list[pa.Array], None, list[QueueRange]]:
    """Rows up to the ends, or up to damage that hides how many records came. Returns what is left.

    One consumer reads them all: starting one for each queue takes longer than a batch's few rows.
    """
    how, topic = rows.how, pieces[0].topic
    consumer = Consumer(
        topic=topic,
        start={piece.queue_id: piece.start for piece in pieces},
        queues=[piece.queue_id for piece in pieces],
        follow=False,
        tags=how.tags,
        sql=how.sql,
        direct=False,
        **_arguments(endpoint),
    )
    at: Mapping[int, int] = {}
    with consumer:
        consumer.end_at({piece.queue_id: piece.stop for piece in pieces})
        held: list[Message] = []
        held_bytes = 0
        try:
            for message in consumer:
                held.append(message)
                held_bytes += len(message.record)
                if held_bytes >= BATCH_BYTES:
                    yield from _rows_of(rows, topic, held)
                    held, held_bytes = [], 0
        except StoreDamaged as error:
            if how.mode is Mode.FAILFAST or error.queue_offset is None:
                raise
            at = consumer.positions
        yield from _rows_of(rows, topic, held)
        _check_skipped(consumer.skipped, pieces, how)
    left = [piece._replace(start=at.get(piece.queue_id, piece.stop)) for piece in pieces]
    return [piece for piece in left if piece.start < piece.stop]


def _read_one_by_one(endpoint: str, piece: QueueRange, rows: Rows) -> _Rows:
    """The rows of messages pulled one by one, so that it is known which one cannot be read."""
    how, offset = rows.how, piece.start
    selection = choose(how.tags, how.sql, "", 0)
    with closing(Asker("consumers", decode_consume_answer, **_arguments(endpoint))) as asker:
        while offset < piece.stop:
            wanted = selection.subscription({piece.queue_id: offset + 1}) if selection else None
            found = pull_one(asker, piece.topic, piece.queue_id, offset, wanted)
            if found is None:
                continue
            place, record = found
            if place.next_offset < offset:  # the topic was created again, and the queue ends there
                return
            _check_skipped(place.min_offset - offset, [piece], how)
            among = range(offset, place.next_offset)
            offset = max(place.next_offset, place.min_offset)
            try:
                whole, _ = read_records(
                    record, (0, len(record)), piece.queue_id, among, MAX_BODY_BYTES
                )
            except StoreDamaged as error:
                yield from rows.reported_by_offset(piece.topic, piece.queue_id, offset - 1, error)
            else:
                held = without_tombstones(whole)
                _check_skipped(len(whole) - len(held), [piece], how)
                yield from _rows_of(rows, piece.topic, selection.pick(held) if selection else held)


def _arguments(endpoint: str) -> dict[str, Any]:
    return Where(None, endpoint, None).arguments("consumers")


def _check_skipped(count: int, pieces: Sequence[QueueRange], how: How) -> None:
    if count > 0 and how.fail_on_data_loss:
        first, others = pieces[0], len(pieces) - 1
        more = f" and of {others} queue{'s'[: others > 1]} more" if others else ""
        raise OffsetOutOfRange(
            "messages that were to be read have expired meanwhile",
            f"{count} of {first.topic}/{first.queue_id} from {first.start}{more}",
            'read again; with option("failOnDataLoss", "false") a query passes over them',
        )


def _rows_of(rows: Rows, topic: str, held: Sequence[Message]) -> Iterator[list[pa.Array]]:
    records = [message.record for message in held]
    sizes = np.array([len(record) for record in records], np.int64)
    heads = [bytes(record[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8]) for record in records]
    batch = rows.candidates(
        Batch(
            topic,
            np.array([message.queue_id for message in held], np.int64),
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
    topic, queue_id = batch.queue_of(index)
    return StoreDamaged(
        "a record that the broker has sent is damaged",
        f"message {batch.queue_offsets[index]} of {topic}/{queue_id}, "
        f"at {batch.physical_offsets[index]}",
        "see what is wrong, on the broker's machine: penstock store verify STORE",
    )
