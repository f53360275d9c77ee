"""Which records `store inspect` shows, and a record as a row.

The consume queue is only the short way to the first record wanted; from there the log is walked.
So records that are not dispatched yet are found, and so are those of a store without queues.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.shared.errors import PenstockError, UnreadableBody
from penstock.shared.formats.compression import decompress
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from penstock.shared.formats.record import Record, host_text
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_outline import outline

if TYPE_CHECKING:
    # rows are made elsewhere than on Linux, too, which these need
    from penstock.shared.log.scan import Step
    from penstock.shared.store.directory import StoreDirectory


def select(
    store: StoreDirectory, topic: str | None, queue_id: int | None, first_offset: int
) -> Iterator[Step]:
    """The steps of the log for the records asked for, and every damaged range on the way; perhaps
    blanks and the log's end, too."""
    wanted = None if topic is None else topic.encode()
    start = None
    if topic is not None and queue_id is not None:
        start = _start(store, topic, queue_id, first_offset)
    if wanted is None and queue_id is None:
        yield from store.scan_log(start)
        return
    for step in store.scan_log(start):
        if step[1] is Kind.DAMAGED:
            yield step
        elif step[1] is Kind.RECORD:
            fields = outline(step[3])
            if (
                (wanted is None or fields.topic == wanted)
                and (queue_id is None or fields.queue_id == queue_id)
                and fields.queue_offset >= first_offset
            ):
                yield step


def _start(store: StoreDirectory, topic: str, queue_id: int, offset: int) -> int | None:
    """The log offset of the queue's first record wanted, where the queue's files name it."""
    for queue in store.queues():
        if (queue.topic, queue.queue_id) != (topic, queue_id):
            continue
        slot = max(offset, queue.min_offset)
        if slot >= queue.max_offset:
            return None
        position = int(queue.entries(slot, slot + 1)["offset"][0])
        try:
            record = store.record_at(position)
        except PenstockError:
            return None  # a wrong entry; the walk does without, `verify` reports it
        named = record.topic, record.queue_id, record.queue_offset
        return position if named == (topic, queue_id, slot) else None
    return None


def row(record: Record, *, with_body: bool) -> dict[str, Any]:
    """The record as `inspect -o json` prints it."""
    properties = decode_properties(record.properties)
    fields: dict[str, Any] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.total_size,
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_timestamp_ms": record.born_timestamp_ms,
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "unique_key": properties.get(UNIQ_KEY),
        "message_id": offset_message_id(record.store_host, record.physical_offset),
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_size": len(record.body),
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "properties": properties,
    }
    if with_body:
        body = record.body
        try:
            body = decompress(record.body, record.sys_flag)
        except UnreadableBody as error:
            fields["body_error"] = str(error)  # and the stored bytes below
        fields["body"] = _text(body)
        fields["body_base64"] = base64.b64encode(body).decode()
    return fields


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
