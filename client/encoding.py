"""From the arguments of a send to the bytes of a record, with what the broker stamps left blank.

Everything a sender can do wrong with one message is found here, before anything is queued. Pure but
for the clock that is passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

from isal import isal_zlib

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.layout import MAX_PROPERTIES_BYTES, check_topic
from penstock.shared.message_id import unique_keys
from penstock.shared.properties import RESERVED, encode_properties
from penstock.shared.record import (
    FIXED_BYTES_V4,
    HOST_V4_BYTES,
    MAGIC_V1,
    Record,
    encode_record,
)

# totalSize magic crc queue flag (offsets) sysFlag born bornHost (stamped, times, prepared) length
_HEAD = struct.Struct(">iIiii16xiq8s28xi")
_AT_QUEUE_ID = 12
_LENGTH = struct.Struct(">h")

assert _HEAD.size == 88, "the head of a record ends where the body begins"

Body = bytes | bytearray | memoryview


class Encoder:
    """Makes records of one producer."""

    def __init__(self, ip: bytes, now_ms: Callable[[], int]) -> None:
        """`ip`: the producer's address, 4 or 16 bytes, which records name as born host."""
        self._born_host = ip + bytes(4)
        self._now_ms = now_ms
        self._unique_key = unique_keys(ip, now_ms)
        # known only once the broker has answered; it checks again
        self.max_message_bytes = 0

    def encode(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: str | None,
        shard: str | None,
        properties: Mapping[str, str] | None,
        flag: int,
    ) -> tuple[bytearray, str]:
        """(record for queue 0, UNIQ_KEY). Raises InvalidMessage or PropertiesTooLarge."""
        self._check(body, flag)
        unique_key = self._unique_key()
        raw = self._properties(tags, keys, shard, unique_key, properties)
        name = _topic_bytes(topic)
        if len(name) > 128 or len(self._born_host) != HOST_V4_BYTES:
            return self._encode_rare(topic, body, raw, flag), unique_key
        length = len(body)
        crc = isal_zlib.crc32(body) & 0x7FFFFFFF if length else 0
        head = _HEAD.pack(
            FIXED_BYTES_V4 + length + len(name) - 1 + len(raw),
            MAGIC_V1,
            crc,
            0,
            flag,
            0,
            self._now_ms(),
            self._born_host,
            length,
        )
        return bytearray().join((head, body, name, _LENGTH.pack(len(raw)), raw)), unique_key

    def _encode_rare(self, topic: str, body: Body, raw: bytes, flag: int) -> bytearray:
        """Topics over 127 bytes and IPv6 producers."""
        record = Record(
            topic=topic,
            body=bytes(body),
            properties=raw,
            flag=flag,
            born_timestamp_ms=self._now_ms(),
            born_host=self._born_host,
        )
        return bytearray(encode_record(record))

    def _check(self, body: Body, flag: int) -> None:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidMessage(
                "a body is bytes", type(body).__name__, "encode it: text.encode(), json.dumps(...)"
            )
        if self.max_message_bytes and len(body) > self.max_message_bytes:
            raise InvalidMessage(
                f"a body has at most {self.max_message_bytes} bytes",
                len(body),
                "send a smaller one, or raise max_message_size_bytes at the broker",
            )
        if not -(2**31) <= flag < 2**31:
            raise InvalidMessage("flag is a signed 32-bit number", flag)

    def _properties(
        self,
        tags: str | None,
        keys: str | None,
        shard: str | None,
        unique_key: str,
        properties: Mapping[str, str] | None,
    ) -> bytes:
        entries = {}
        if tags:
            entries["TAGS"] = tags
        if keys:
            entries["KEYS"] = keys
        if shard:
            entries["__SHARDINGKEY"] = shard
        entries["UNIQ_KEY"] = unique_key
        if properties:
            for reserved in RESERVED.intersection(properties):
                raise InvalidMessage(
                    "a property does not have one of RocketMQ's own names",
                    reserved,
                    "use the arguments tags, keys and shard, or another name",
                )
            entries.update(properties)
        raw = encode_properties(entries)
        if len(raw) > MAX_PROPERTIES_BYTES:
            raise PropertiesTooLarge(
                f"properties, tags and keys have at most {MAX_PROPERTIES_BYTES} bytes together",
                len(raw),
                "put large values into the body",
            )
        return raw


def set_queue(record: bytearray, queue_id: int) -> None:
    """Name the queue in a record that was encoded for queue 0."""
    record[_AT_QUEUE_ID : _AT_QUEUE_ID + 4] = queue_id.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def _topic_bytes(topic: str) -> bytes:
    """The topic behind its length, as a record has it. Raises InvalidMessage."""
    raw = check_topic(topic).encode()
    return len(raw).to_bytes(1 if len(raw) <= 127 else 2, "big") + raw
