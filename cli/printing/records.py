"""A record as a row: which fields it has, and what each looks like."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from penstock.shared.errors import UnreadableBody
from penstock.shared.formats.compression import decompress
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from penstock.shared.formats.record import Record, host_text


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
            fields["body_error"] = str(error)  # the stored bytes follow below
        fields["body"] = _text(body)
        fields["body_base64"] = base64.b64encode(body).decode()
    return fields


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
