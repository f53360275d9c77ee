"""From the arguments of a send to the bytes of a record, with what the broker stamps left blank.

Everything a sender can do wrong with one message is found here, before anything is queued. Pure:
the time is passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

import msgspec
from isal import isal_zlib

from penstock.shared.compression import check_compression, compress
from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.frame_rules import delay_refused
from penstock.shared.layout import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, check_topic
from penstock.shared.message_id import unique_keys
from penstock.shared.properties import DELAY, RESERVED, encode_properties
from penstock.shared.record import (
    AT_QUEUE_ID,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    Shape,
)
from penstock.shared.record_crc import PROP_CRC_ROOM

# Where a compression is chosen it is for bodies from this size on. [compressMsgBodyOverHowmuch]
COMPRESS_OVER_BYTES = 4096

_LENGTH = struct.Struct(">h")

Body = bytes | bytearray | memoryview


class BatchMessage(msgspec.Struct, frozen=True):
    """One message of a batch; as in `send`."""

    body: Body
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0


class Terms:
    """What the broker has said of the messages it takes; until it has, what is usual."""

    __slots__ = ("max_message_bytes", "shape")

    def __init__(self) -> None:
        # 0: not known yet; the broker checks again
        self.max_message_bytes = 0
        self.shape = Shape()


class Encoder:
    """Makes records of one producer."""

    def __init__(
        self,
        ip: bytes,
        now_ms: int,
        terms: Terms,
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
    ) -> None:
        """`ip`: the producer's address, 4 or 16 bytes, which records name as born host.

        Raises InvalidMessage for a compression that there is not.
        """
        self._terms = terms
        self._born_host = ip + bytes(4)
        self._unique_key = unique_keys(ip, now_ms)
        self._compression = check_compression(compression)
        self._compress_over_bytes = compress_over_bytes
        self._shape: Shape | None = None

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
        wait: bool = True,
        batch: bool = False,
    ) -> tuple[bytes, str]:
        """(record, UNIQ_KEY). Raises InvalidMessage or PropertiesTooLarge.

        In a batch no body is compressed, as in RocketMQ.
        """
        terms = self._terms
        if terms.shape is not self._shape:
            self._take_shape(terms.shape)
        name = _topic_bytes(topic)
        if not isinstance(body, bytes):
            body = _to_bytes(body)
        length = len(body)
        if length > terms.max_message_bytes > 0:
            raise too_large(length, terms.max_message_bytes)
        if flag and not -(2**31) <= flag < 2**31:
            raise InvalidMessage("flag is a signed 32-bit number", flag)
        sys_flag = self._sys_flag
        if self._compression is not None and length >= self._compress_over_bytes and not batch:
            body, bits = compress(self._compression, body)
            sys_flag |= bits
            length = len(body)
        unique_key = self._unique_key(now_ms)
        raw = _properties(tags, keys, shard, unique_key, properties, wait)
        if self._properties_end:
            raw += self._properties_end
        if len(raw) > MAX_PROPERTIES_BYTES:
            raise PropertiesTooLarge(
                f"properties, tags and keys have at most {MAX_PROPERTIES_BYTES} bytes together",
                len(raw),
                "put large values into the body",
            )
        head = self._head.pack(
            self._fixed_bytes + length + len(name) + len(raw),
            MAGIC_V1 if len(name) <= MAX_TOPIC_BYTES + 1 else MAGIC_V2,
            isal_zlib.crc32(body) & 0x7FFFFFFF if length else 0,
            queue_id,
            flag,
            sys_flag,
            now_ms,
            self._born_host,
            length,
        )
        return b"".join((head, body, name, _LENGTH.pack(len(raw)), raw)), unique_key

    def _take_shape(self, shape: Shape) -> None:
        """What follows from the addresses' sizes, once and not for each message."""
        self._shape = shape
        born_bytes, store_bytes = len(self._born_host), shape.store_host_bytes
        # totalSize magic crc queue flag (offsets) sysFlag born bornHost (store time and host,
        # times, prepared) length
        self._head = struct.Struct(f">iIiii16xiq{born_bytes}s{20 + store_bytes}xi")
        self._fixed_bytes = self._head.size + _LENGTH.size
        self._sys_flag = SYS_BORN_HOST_V6 if born_bytes == HOST_V6_BYTES else 0
        if store_bytes == HOST_V6_BYTES:
            self._sys_flag |= SYS_STORE_HOST_V6
        self._properties_end = PROP_CRC_ROOM if shape.prop_crc else b""


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
    wait: bool,
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
    if not wait:
        raw += b"WAIT\x01false\x02"
    if properties:
        if DELAY in properties:
            raise delay_refused(properties[DELAY])
        for reserved in RESERVED.intersection(properties):
            raise InvalidMessage(
                "a property does not have one of RocketMQ's own names",
                reserved,
                "use the arguments tags, keys, shard and wait, or another name",
            )
        raw += encode_properties(properties)
    return raw


@lru_cache(maxsize=1024)
def _topic_bytes(topic: str) -> bytes:
    """The topic behind its length, as a record has it. Raises InvalidMessage."""
    raw = check_topic(topic).encode()
    return len(raw).to_bytes(1 if len(raw) <= MAX_TOPIC_BYTES else 2, "big") + raw
