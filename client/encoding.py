"""From the arguments of a send to the bytes of a record, with what the broker stamps left blank.

Everything a sender can do wrong with one message is found here, before anything is queued. Pure:
the time is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from penstock.shared.compression import check_compression, compress
from penstock.shared.errors import InvalidMessage
from penstock.shared.frame_rules import check_batch, delay_refused
from penstock.shared.hot_loops import Draft, RecordMaker
from penstock.shared.layout import MAX_TOPIC_BYTES, check_topic
from penstock.shared.message_id import key_origin
from penstock.shared.properties import DELAY, RESERVED, encode_properties
from penstock.shared.record import AT_QUEUE_ID, Shape

# Where a compression is chosen it is for bodies from this size on. [compressMsgBodyOverHowmuch]
COMPRESS_OVER_BYTES = 4096

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
        self._compression = check_compression(compression)
        self._compress_over_bytes = compress_over_bytes
        self._shape = terms.shape
        self._maker = RecordMaker(ip + bytes(4), key_origin(ip, now_ms), terms.shape)

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
    ) -> tuple[bytes, str]:
        """(record, UNIQ_KEY). Raises InvalidMessage or PropertiesTooLarge."""
        name = self._begin(topic)
        bits = 0
        body = self._checked(body, flag)
        if self._compression is not None and len(body) >= self._compress_over_bytes:
            body, bits = compress(self._compression, body)
        extra = _extra(properties, wait) if properties or not wait else b""
        draft = (body, tags, keys, extra, flag, bits)
        return self._maker.record(name, queue_id, draft, shard, now_ms)

    def encode_batch(
        self,
        topic: str,
        queue_id: int,
        messages: Iterable[BatchMessage | Body],
        shard: str | None,
        now_ms: int,
        wait: bool = True,
    ) -> tuple[list[bytes], str]:
        """(records, their UNIQ_KEYs joined by commas). Raises what `encode` raises, for any.

        In a batch no body is compressed, as in RocketMQ.
        """
        name = self._begin(topic)
        drafts: list[Draft] = []
        body_bytes = 0
        for each in messages:
            message = each if isinstance(each, BatchMessage) else BatchMessage(each)
            body = self._checked(message.body, message.flag)
            own = message.properties
            extra = _extra(own, wait) if own or not wait else b""
            drafts.append((body, message.tags, message.keys, extra, message.flag, 0))
            body_bytes += len(body)
        if not drafts:
            raise InvalidMessage("a batch has at least one message", 0)
        check_batch(topic, body_bytes, self._terms.max_message_bytes or body_bytes)
        records, unique_keys = self._maker.records(name, queue_id, drafts, shard, now_ms)
        return records, ",".join(unique_keys)

    def _begin(self, topic: str) -> bytes:
        """The topic as a record has it; what is made next has the shape the broker wants."""
        if self._terms.shape is not self._shape:
            self._shape = self._terms.shape
            self._maker.take_shape(self._shape)
        return _topic_bytes(topic)

    def _checked(self, body: Body, flag: int) -> bytes:
        if not isinstance(body, bytes):
            body = _to_bytes(body)
        if len(body) > self._terms.max_message_bytes > 0:
            raise too_large(len(body), self._terms.max_message_bytes)
        if flag and not -(2**31) <= flag < 2**31:
            raise InvalidMessage("flag is a signed 32-bit number", flag)
        return body


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


def _extra(properties: Mapping[str, str] | None, wait: bool) -> bytes:
    """The properties that are not a message's own."""
    raw = b"" if wait else b"WAIT\x01false\x02"
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
