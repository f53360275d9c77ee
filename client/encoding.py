"""From the arguments of a send to the bytes of a record, with what the broker stamps left blank.

Everything a sender can do wrong with one message is found here, before anything is queued. Pure:
the time is passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from isal import isal_zlib

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.layout import MAX_PROPERTIES_BYTES, check_topic
from penstock.shared.message_id import unique_keys
from penstock.shared.properties import RESERVED, encode_properties
from penstock.shared.record import (
    AT_QUEUE_ID,
    FIXED_BYTES_V4,
    HOST_V4_BYTES,
    MAGIC_V1,
    Record,
    encode_record,
)

# totalSize magic crc queue flag (offsets) sysFlag born bornHost (stamped, times, prepared) length
_HEAD = struct.Struct(">iIiii16xiq8s28xi")
_LENGTH = struct.Struct(">h")
_LONGEST_V1_TOPIC = 127

assert _HEAD.size == 88, "the head of a record ends where the body begins"

Body = bytes | bytearray | memoryview


class Encoder:
    """Makes records of one producer."""

    def __init__(self, ip: bytes, now_ms: int) -> None:
        """`ip`: the producer's address, 4 or 16 bytes, which records name as born host."""
        self._born_host = ip + bytes(4)
        self._unique_key = unique_keys(ip, now_ms)
        # known only once the broker has answered; it checks again
        self.max_message_bytes = 0

    def encode(
        self,
        topic: str,
        queue_id: int,
        body: Body,
        tags: str | None,
        keys: str | None,
        shard: str | None,
        properties: Mapping[str, str] | None,
        flag: int,
        now_ms: int,
    ) -> tuple[bytes, str]:
        """(record, UNIQ_KEY). Raises InvalidMessage or PropertiesTooLarge."""
        name = _topic_bytes(topic)
        if not isinstance(body, bytes):
            body = _to_bytes(body)
        length = len(body)
        if length > self.max_message_bytes > 0:
            raise too_large(length, self.max_message_bytes)
        if flag and not -(2**31) <= flag < 2**31:
            raise InvalidMessage("flag is a signed 32-bit number", flag)
        unique_key = self._unique_key(now_ms)
        raw = _properties(tags, keys, shard, unique_key, properties)
        if len(name) > _LONGEST_V1_TOPIC + 1 or len(self._born_host) != HOST_V4_BYTES:
            record = Record(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=raw,
                flag=flag,
                born_timestamp_ms=now_ms,
                born_host=self._born_host,
            )
            return encode_record(record), unique_key
        head = _HEAD.pack(
            FIXED_BYTES_V4 - 1 + length + len(name) + len(raw),
            MAGIC_V1,
            isal_zlib.crc32(body) & 0x7FFFFFFF if length else 0,
            queue_id,
            flag,
            0,
            now_ms,
            self._born_host,
            length,
        )
        return b"".join((head, body, name, _LENGTH.pack(len(raw)), raw)), unique_key


def too_large(length: int, limit: int) -> InvalidMessage:
    return InvalidMessage(
        f"a body has at most {limit} bytes",
        length,
        "send a smaller one, or raise max_message_size_bytes at the broker",
    )


def with_queue(record: bytes, queue_id: int) -> bytes:
    """The record, for another queue."""
    return record[:AT_QUEUE_ID] + queue_id.to_bytes(4, "big") + record[AT_QUEUE_ID + 4 :]


def _to_bytes(body: Body) -> bytes:
    if not isinstance(body, bytearray | memoryview):
        raise InvalidMessage(
            "a body is bytes", type(body).__name__, "encode it: text.encode(), json.dumps(...)"
        )
    return bytes(body)


def _properties(
    tags: str | None,
    keys: str | None,
    shard: str | None,
    unique_key: str,
    properties: Mapping[str, str] | None,
) -> bytes:
    text = f"UNIQ_KEY\x01{unique_key}\x02"
    if keys:
        text = f"KEYS\x01{keys}\x02{text}"
    if shard:
        text = f"__SHARDINGKEY\x01{shard}\x02{text}"
    if tags:
        text = f"TAGS\x01{tags}\x02{text}"
    entries = 1 + bool(keys) + bool(shard) + bool(tags)
    # each entry has brought one of each separator; more of them came out of a value
    if text.count("\x01") != entries or text.count("\x02") != entries:
        raise InvalidMessage(
            "tags, keys and shard do not contain the separators 0x01 and 0x02",
            repr((tags, keys, shard)),
            "remove those characters",
        )
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            "tags, keys and shard are valid Unicode",
            repr(error.object[error.start : error.end]),
            "remove lone surrogates",
        ) from error
    if properties:
        for reserved in RESERVED.intersection(properties):
            raise InvalidMessage(
                "a property does not have one of RocketMQ's own names",
                reserved,
                "use the arguments tags, keys and shard, or another name",
            )
        raw += encode_properties(properties)
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(
            f"properties, tags and keys have at most {MAX_PROPERTIES_BYTES} bytes together",
            len(raw),
            "put large values into the body",
        )
    return raw


@lru_cache(maxsize=1024)
def _topic_bytes(topic: str) -> bytes:
    """The topic behind its length, as a record has it. Raises InvalidMessage."""
    raw = check_topic(topic).encode()
    return len(raw).to_bytes(1 if len(raw) <= _LONGEST_V1_TOPIC else 2, "big") + raw
