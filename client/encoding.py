"""From the arguments of a send to a draft, and from drafts to records that the broker stamps.

Everything a sender can do wrong with one message is found when its draft is made, before anything
is queued. Records are made when a frame leaves. Pure: the time is passed in.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from penstock.shared.compression import check_compression, compress
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.frame_rules import check_batch, delay_refused
from penstock.shared.hot_loops import Draft, KeyNumbers, RecordMaker, properties_of
from penstock.shared.layout import MAX_TOPIC_BYTES, check_topic
from penstock.shared.message_id import KeyOrigin, unique_key
from penstock.shared.messages import Welcome
from penstock.shared.properties import DELAY, RESERVED, encode_properties
from penstock.shared.pure_encode import check_properties_size
from penstock.shared.record import HOST_V6_BYTES, SMALLEST_RECORD_BYTES, Shape
from penstock.shared.record_crc import PROP_CRC_BYTES

# Where a compression is chosen it is for bodies from this size on. [compressMsgBodyOverHowmuch]
COMPRESS_OVER_BYTES = 4096

# All that a record has with an IPv4 sender and an IPv6 broker, and the length of a long topic.
BLANK_RECORD_BYTES = SMALLEST_RECORD_BYTES + HOST_V6_BYTES - 8 + 1

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

    def take(self, welcome: Welcome) -> None:
        """What the broker says. The shape is another object only when it is another one."""
        self.max_message_bytes = welcome.max_message_bytes
        shape = Shape(welcome.store_host_bytes, welcome.prop_crc)
        if shape != self.shape:
            self.shape = shape


class Encoder:
    """Makes drafts of one producer's messages when they are sent, and records when they leave."""

    def __init__(
        self,
        ip: bytes,
        origin: KeyOrigin,
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
    ) -> None:
        """`ip`: the producer's address, 4 or 16 bytes, which records name as born host.

        Raises InvalidArgument for a compression that there is not.
        """
        self.terms = Terms()
        self.numbers = KeyNumbers(origin)
        self._compression = check_compression(compression)
        # a body from this size on is compressed
        self.compressed_bytes = compress_over_bytes if compression else sys.maxsize
        self._shape = self.terms.shape
        self._maker = RecordMaker(ip + bytes(4), origin, self._shape)
        self._key_bytes = len(f"UNIQ_KEY\x01{unique_key(origin, 0)}\x02")
        # more than this no record has beside topic, body and properties of its own
        self.fixed_bytes = BLANK_RECORD_BYTES + len(ip) - 4 + self._key_bytes + PROP_CRC_BYTES

    def draft(
        self,
        body: Body,
        tags: str | None,
        keys: str | None,
        shard: str | None,
        properties: Mapping[str, str] | None,
        flag: int,
        wait: bool = True,
        compressed: bool = True,
    ) -> Draft:
        """One message. Raises InvalidMessage or PropertiesTooLarge for what is wrong with it."""
        if type(body) is not bytes:
            body = _to_bytes(body)
        if len(body) > self.terms.max_message_bytes > 0:
            raise too_large(len(body), self.terms.max_message_bytes)
        if flag and not -(2**31) <= flag < 2**31:
            raise InvalidMessage(
                "the flag does not fit 32 bits", flag, "choose one from -2147483648 to 2147483647"
            )
        raw = _extra(properties, wait) if properties or not wait else b""
        if tags or keys or shard:
            raw = properties_of(tags, keys, shard, raw)
        if raw:
            self._check_properties(len(raw))
        bits = 0
        if self._compression and compressed and len(body) >= self.compressed_bytes:
            body, bits = compress(self._compression, body)
        return (body, raw, flag, bits) if raw or flag or bits else body

    def drafts(
        self,
        topic: str,
        messages: Iterable[BatchMessage | Body],
        shard: str | None,
        wait: bool = True,
    ) -> list[Draft]:
        """The messages of a batch. Raises what `draft` raises, for any.

        In a batch no body is compressed, as in RocketMQ.
        """
        made = []
        for each in messages:
            if isinstance(each, BatchMessage):
                body, tags, keys = each.body, each.tags, each.keys
                properties, flag = each.properties, each.flag
            else:
                body, tags, keys, properties, flag = each, None, None, None, 0
            draft = self.draft(body, tags, keys, shard, properties, flag, wait, False)
            made.append(draft)
        if not made:
            raise InvalidMessage("the batch holds no message", None, "put at least one into it")
        body_bytes = sum([_lengths(draft)[0] for draft in made])
        check_batch(topic, body_bytes, self.terms.max_message_bytes or body_bytes)
        return made

    def room(self, topic: str, draft: Draft) -> int:
        """How many bytes the record has at most, for whatever broker it is made."""
        return self.fixed_bytes + len(topic) + sum(_lengths(draft))

    def check_again(self, drafts: Sequence[Draft]) -> None:
        """What was not known of the broker when these were made. Raises what `draft` raises."""
        length = sum([_lengths(draft)[0] for draft in drafts])
        if length > self.terms.max_message_bytes > 0:
            raise too_large(length, self.terms.max_message_bytes)
        for draft in drafts:
            self._check_properties(_lengths(draft)[1])

    def _check_properties(self, length: int) -> None:
        end_bytes = PROP_CRC_BYTES if self.terms.shape.prop_crc else 0
        check_properties_size(length + self._key_bytes + end_bytes)

    def pack(
        self,
        into: bytearray | memoryview,
        runs: Iterable[tuple[str, int, list[Draft], array[int]]],
    ) -> array[int]:
        """Put the records of (topic, queue id, drafts, numbers of keys) there, as the broker wants.

        Where each begins, and the end of the last. Raises PropertiesTooLarge when the broker wants
        more room than was known.
        """
        if self.terms.shape is not self._shape:
            self._shape = self.terms.shape
            self._maker.take_shape(self._shape)
        named = [(topic_bytes(topic), queue, drafts, keys) for topic, queue, drafts, keys in runs]
        return self._maker.pack(into, named)


def _lengths(draft: Draft) -> tuple[int, int]:
    """How long are body and properties."""
    return (len(draft), 0) if isinstance(draft, bytes) else (len(draft[0]), len(draft[1]))


def check_ack(ack: str, wait: bool = True) -> str:
    """`ack` as the protocol has it. Raises InvalidArgument.

    A message that does not `wait` is acknowledged when it is written, as with RocketMQ's WAIT.
    """
    if ack not in ("", "durable", "written"):
        raise InvalidArgument(
            "there is no such acknowledgement",
            repr(ack),
            'ack is "durable", "written", or "" for the broker\'s default',
        )
    if wait:
        return ack
    if ack == "durable":
        raise InvalidArgument(
            "a durable message was not to wait for the disk",
            "ack='durable', wait=False",
            "leave one of the two out",
        )
    return "written"


def too_large(length: int, limit: int) -> InvalidMessage:
    return InvalidMessage(
        f"the body is larger than {limit} bytes, the most that the broker takes",
        length,
        "send less at once, or start the broker with: penstock up --set "
        f"max_message_size_bytes={length}",
    )


def _to_bytes(body: Body) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidMessage(
            "the body is not bytes",
            type(body).__name__,
            "encode it: text.encode(), or json.dumps(value).encode()",
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
                "a property has one of RocketMQ's own names",
                reserved,
                "use the arguments tags, keys, shard and wait, or another name",
            )
        raw += encode_properties(properties)
    return raw


@lru_cache(maxsize=1024)
def topic_bytes(topic: str) -> bytes:
    """The topic behind its length, as a record has it. Raises InvalidArgument."""
    raw = check_topic(topic).encode()
    return len(raw).to_bytes(1 if len(raw) <= MAX_TOPIC_BYTES else 2, "big") + raw
