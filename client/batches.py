"""The messages of one batch as records: all for one queue, with one future and one receipt."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.encoding import BatchMessage, Body, Encoder, Terms
from penstock.shared.errors import InvalidMessage
from penstock.shared.frame_rules import check_batch


def encode_messages(
    encoder: Encoder,
    terms: Terms,
    topic: str,
    queue_id: int,
    messages: Iterable[BatchMessage | Body],
    shard: str | None,
    wait: bool,
    now_ms: int,
) -> tuple[list[bytes], str]:
    """(records, their UNIQ_KEYs joined by commas). Raises InvalidMessage for any of them."""
    records, unique_keys, body_bytes = [], [], 0
    for each in messages:
        message = each if isinstance(each, BatchMessage) else BatchMessage(each)
        record, unique_key = encoder.encode(
            topic,
            queue_id,
            message.body,
            message.tags,
            message.keys,
            shard,
            message.properties,
            message.flag,
            now_ms,
            wait,
            batch=True,
        )
        records.append(record)
        unique_keys.append(unique_key)
        body_bytes += len(message.body)
    if not records:
        raise InvalidMessage("a batch has at least one message", 0)
    check_batch(topic, body_bytes, terms.max_message_bytes or body_bytes)
    return records, ",".join(unique_keys)
