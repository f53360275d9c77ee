"""Makes drafts from the arguments of a send, and from drafts the records that the broker completes.

Everything that can be wrong with one message is found when its draft is made, before anything is
queued. Records are made when a frame leaves. Pure: the time is passed in.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.client.core.arguments import (
    check_at_least,
    check_bool,
    check_keys,
    check_text,
    check_whole,
    shown,
    wrong_type,
)
from penstock.client.core.sending.selectors import SelectedBy
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.formats.compression import check_compression, compress
from penstock.shared.formats.message_id import KeyOrigin, make_unique_key
from penstock.shared.formats.properties import DELAY, RESERVED, encode_properties
from penstock.shared.formats.record_crc import PROP_CRC_BYTES
from penstock.shared.formats.record_layout import HOST_V6_BYTES, SMALLEST_RECORD_BYTES, Shape
from penstock.shared.loops.active import KeyNumbers, RecordMaker, properties_of
from penstock.shared.loops.forms import Draft, Rows
from penstock.shared.messaging.delayed import TIMER_PROPERTIES, Delay
from penstock.shared.messaging.payload import (
    CONTENT_TYPE,
    JSON,
    Payload,
    encode_payload,
    is_payload,
)
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, MAX_TOPIC_BYTES, check_topic
from penstock.shared.wire.messages import Welcome
from penstock.shared.wire.produce_rules import check_batch, check_properties_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.shared.messaging.half import HalfForm

# If a compression is chosen, bodies from this size on are compressed. [compressMsgBodyOverHowmuch]
COMPRESS_OVER_BYTES = 4096

# An empty record with an IPv4 sender, an IPv6 broker, and the two length bytes of a long topic.
BLANK_RECORD_BYTES = SMALLEST_RECORD_BYTES + HOST_V6_BYTES - 8 + 1

Body = bytes | bytearray | memoryview | Payload
# for a message that is stored in one of RocketMQ's own topics before it reaches its real one
WaitingForm: TypeAlias = "Delay | HalfForm"
# one str, in which blanks separate keys, or each key by itself
Keys = str | list[str] | tuple[str, ...] | set[str] | frozenset[str] | None


_ENCODE = "encode it: text.encode(); or send a dict, a dataclass, a msgspec.Struct"
_ACKS = '"durable" or "written"'


class BatchMessage(msgspec.Struct, frozen=True):
    """One message as a caller describes it, alone or in a batch; the fields are those of `send`."""

    body: Body
    tags: str | None = None
    keys: Keys = None
    properties: Mapping[str, str] | None = None
    flag: int = 0


# These can be iterated, but each is one message, so it is a mistake to pass one as a list.
SINGLE = (str, bytes, bytearray, memoryview, Mapping, BatchMessage)


class BrokerLimits:
    """The broker's limits for messages; until it has stated them, the usual ones."""

    __slots__ = ("max_message_bytes", "max_frame_bytes", "shape")

    def __init__(self) -> None:
        # 0: not known yet; the broker checks again
        self.max_message_bytes = self.max_frame_bytes = 0
        self.shape = Shape()

    def take(self, welcome: Welcome) -> None:
        """Take the broker's limits. `shape` stays the same object unless it has really changed."""
        self.max_message_bytes = welcome.max_message_bytes
        self.max_frame_bytes = welcome.max_frame_bytes
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

        Raises InvalidArgument for an unknown compression.
        """
        self.terms = BrokerLimits()
        self.numbers = KeyNumbers(origin)
        self._compression = check_compression(compression)
        # a body from this size on is compressed
        over_bytes = check_at_least("compress_over_bytes", compress_over_bytes, 0)
        self.compressed_bytes = over_bytes if compression else sys.maxsize
        self._shape = self.terms.shape
        self._maker = RecordMaker(ip + bytes(4), origin, self._shape)
        # A task's thread packs rows, while a sender's thread may meanwhile learn of another broker.
        self._row_shape = self._shape
        self._row_maker = RecordMaker(ip + bytes(4), origin, self._row_shape)
        self._key_bytes = len(f"UNIQ_KEY\x01{make_unique_key(origin, 0)}\x02")
        # the most bytes of a record besides its topic, its body and the sender's properties
        self.fixed_bytes = BLANK_RECORD_BYTES + len(ip) - 4 + self._key_bytes + PROP_CRC_BYTES

    def draft(
        self,
        message: BatchMessage,
        shard: str | None,
        wait: bool = True,
        compressed: bool = True,
        where: str = "",
    ) -> Draft:
        """Draft one message. Raises InvalidMessage or PropertiesTooLarge for what is wrong with it.

        `where` is put in front of the argument's name in an error.
        """
        body, tags, keys = message.body, message.tags, message.keys
        properties, flag = message.properties, message.flag
        # bytes, the usual type, pay only for this test
        if type(body) is not bytes:
            body, properties = _to_bytes(body, properties, where)
        if len(body) > self.terms.max_message_bytes > 0:
            raise too_large(len(body), self.terms.max_message_bytes)
        if type(flag) is not int or flag:
            flag = _flag(flag, where + "flag")
        if tags is not None and type(tags) is not str:
            tags = check_text(where + "tags", tags, InvalidMessage)
        if shard is not None and type(shard) is not str:
            shard = check_text(where + "shard", shard, InvalidMessage)
        if keys is not None and type(keys) is not str:
            keys = check_keys(where + "keys", keys)
        raw = b"" if properties is None and wait else _extra(properties, wait, where)
        if tags or keys or shard:
            raw = properties_of(tags, keys, shard, raw)
        if raw:
            self.check_properties(len(raw))
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
        """Draft the messages of a batch. Raises what `draft` raises, for any of them.

        Bodies in a batch are not compressed, as in RocketMQ.
        """
        if isinstance(messages, SINGLE) or not isinstance(messages, Iterable):
            hint = "pass one message in a list, or use send"
            raise wrong_type(InvalidMessage, "messages", messages, "a list of messages", hint)
        made = []
        for number, each in enumerate(messages):
            where = ""
            if isinstance(each, BatchMessage):
                message, where = each, f"messages[{number}]."
            elif isinstance(each, bytes | bytearray | memoryview) or is_payload(each):
                message = BatchMessage(each)
            else:
                name, expected = f"messages[{number}]", "a BatchMessage or bytes"
                hint = _ENCODE if isinstance(each, str) else ""
                raise wrong_type(InvalidMessage, name, each, expected, hint)
            made.append(self.draft(message, shard, wait, False, where))
        if not made:
            raise InvalidMessage("the batch holds no message", None, "put at least one into it")
        body_bytes = sum([_lengths(draft)[0] for draft in made])
        check_batch(topic, body_bytes, self.terms.max_message_bytes or body_bytes)
        return made

    def room(self, topic: str, draft: Draft, delay: WaitingForm | None = None) -> int:
        """The most bytes that the record can have, whatever broker it is made for.

        Raises PropertiesTooLarge if the properties of the `delay` are too much.
        """
        if delay is None:
            return self.fixed_bytes + len(topic) + sum(_lengths(draft))
        added = len(encode_properties(delay.properties(topic, MAX_QUEUES_PER_TOPIC)))
        self.check_properties(_lengths(draft)[1] + added)
        return self.fixed_bytes + len(delay.topic) + sum(_lengths(draft)) + added

    def check_again(self, drafts: Sequence[Draft]) -> None:
        """Check limits that were unknown when these were made. Raises what `draft` raises."""
        length = sum([_lengths(draft)[0] for draft in drafts])
        if length > self.terms.max_message_bytes > 0:
            raise too_large(length, self.terms.max_message_bytes)
        for draft in drafts:
            self.check_properties(_lengths(draft)[1])

    def check_properties(self, length: int) -> None:
        """Raise PropertiesTooLarge if the sender's own properties have too many bytes."""
        end_bytes = PROP_CRC_BYTES if self.terms.shape.prop_crc else 0
        check_properties_size(length + self._key_bytes + end_bytes)

    def pack(
        self,
        into: bytearray | memoryview,
        runs: Iterable[tuple[str, int, list[Draft], array[int]]],
    ) -> array[int]:
        """Write the records of (topic, queue id, drafts, key numbers) in the broker's shape.

        Returns where each begins, and the end of the last. Raises PropertiesTooLarge if the broker
        wants more room than was known.
        """
        self._fit()
        named = [(topic_bytes(topic), queue, drafts, keys) for topic, queue, drafts, keys in runs]
        return self._maker.pack(into, named)

    def pack_rows(
        self, into: bytearray | memoryview, rows: Rows, order: Buffer
    ) -> tuple[int, Shape]:
        """Write the records of some rows, as `RecordMaker.pack_rows` does. Returns where they end,
        and the shape of the brokers that they are for."""
        shape = self.terms.shape
        if shape is not self._row_shape:
            self._row_shape = shape
            self._row_maker.take_shape(shape)
        return self._row_maker.pack_rows(into, rows, order), shape

    def _fit(self) -> None:
        """Make records in the shape that the broker wants now."""
        if self.terms.shape is not self._shape:
            self._shape = self.terms.shape
            self._maker.take_shape(self._shape)


def waiting_form(draft: Draft, topic: str, queue_id: int, delay: WaitingForm) -> Draft:
    """The draft of a message for this queue, in the form in which it waits."""
    body, raw, flag, bits = (draft, b"", 0, 0) if isinstance(draft, bytes) else draft
    return body, raw + encode_properties(delay.properties(topic, queue_id)), flag, bits


def _lengths(draft: Draft) -> tuple[int, int]:
    """The bytes of the body, and of the properties."""
    return (len(draft), 0) if isinstance(draft, bytes) else (len(draft[0]), len(draft[1]))


def check_ack(ack: str, wait: bool = True) -> str:
    """`ack` in the protocol's form. Raises InvalidArgument.

    Without `wait` a message is acknowledged when it is written, as with RocketMQ's WAIT.
    """
    if not isinstance(ack, str):
        raise wrong_type(InvalidArgument, "ack", ack, _ACKS)
    if ack not in ("", "durable", "written"):
        raise InvalidArgument(
            "there is no such acknowledgement",
            repr(ack),
            f'ack is {_ACKS}, or "" for the broker\'s default',
        )
    if check_bool("wait", wait):
        return ack
    if ack == "durable":
        raise InvalidArgument(
            "a durable message was not to wait for the disk",
            "ack='durable', wait=False",
            "leave one of the two out",
        )
    return "written"


def check_common(
    topic: str, queue: int | SelectedBy | None, ack: str, wait: bool
) -> tuple[str, int | SelectedBy | None, str]:
    """What a message and a batch have in common, in the protocol's form.

    Raises InvalidArgument, or InvalidMessage for the queue. Errors that depend on the topic are
    found once its queues are known.
    """
    if type(topic) is not str:
        topic = check_text("topic", topic)
    if queue is not None and type(queue) is not int and type(queue) is not SelectedBy:
        queue = check_whole("queue", queue, InvalidMessage)
    if type(ack) is not str or ack or wait is not True:
        ack = check_ack(ack, wait)
    return topic, queue, ack


def too_large(length: int, limit: int, and_more: bool = False) -> InvalidMessage:
    """`and_more`: `length` bytes were read, and there are more."""
    # the whole length is unknown then, so twice as much is the next thing to try
    enough = 2 * length if and_more else length
    return InvalidMessage(
        f"the body is larger than {limit} bytes, the most that the broker takes",
        f"{length} or more" if and_more else length,
        f"send less at once, or start the broker with: penstock up --set "
        f"max_message_size_bytes={enough}",
    )


def _to_bytes(
    body: Body, properties: Mapping[str, str] | None, where: str
) -> tuple[bytes, Mapping[str, str] | None]:
    """The body as bytes, and the properties; for an object these name its content type."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), properties
    if isinstance(body, BatchMessage) or not is_payload(body):
        raise wrong_type(InvalidMessage, where + "body", body, "bytes", _ENCODE)
    if properties is not None and not isinstance(properties, Mapping):
        return b"", properties  # refused when the properties are checked
    said = {CONTENT_TYPE: JSON, **(properties or {})}
    return encode_payload(body, said[CONTENT_TYPE]), said


def _flag(flag: int, name: str) -> int:
    number = check_whole(name, flag, InvalidMessage)
    if not -(2**31) <= number < 2**31:
        raise InvalidMessage(f"{name} does not fit into 32 bits with a sign", number)
    return number


def _extra(properties: Mapping[str, str] | None, wait: bool, where: str) -> bytes:
    """The encoded properties besides tags, keys and shard."""
    raw = b"" if wait else b"WAIT\x01false\x02"
    if properties is None:
        return raw
    if type(properties) is not dict and not isinstance(properties, Mapping):
        expected = "a mapping from str to str"
        raise wrong_type(InvalidMessage, where + "properties", properties, expected)
    if not TIMER_PROPERTIES.isdisjoint(properties) or DELAY in properties:
        raise InvalidMessage(
            f"a message of a batch or transaction asks for a delay{where and ', ' + where}",
            min(properties.keys() & {*TIMER_PROPERTIES, DELAY}),
            "neither is delayed, as in RocketMQ: send the message by itself",
        )
    if not RESERVED.isdisjoint(properties):
        raise InvalidMessage(
            "a property has one of RocketMQ's own names",
            min(RESERVED.intersection(properties)),
            "use the arguments tags, keys, shard and wait, or another name",
        )
    try:
        return raw + encode_properties(properties)
    except TypeError:
        _check_texts(properties, where)
        raise  # an error of the mapping's own


def _check_texts(properties: Mapping[str, str], where: str) -> None:
    """Raise InvalidMessage for a key or a value that is not a str."""
    for key, value in properties.items():
        check_text(f"a key of {where}properties", key, InvalidMessage)
        if not isinstance(value, str):
            place = f"{where}properties[{shown(key)}]"
            raise wrong_type(InvalidMessage, place, value, "a str", "convert it: str(value)")


@lru_cache(maxsize=1024)
def topic_bytes(topic: str) -> bytes:
    """The topic after its length, as in a record. Raises InvalidArgument."""
    raw = check_topic(topic).encode()
    return len(raw).to_bytes(1 if len(raw) <= MAX_TOPIC_BYTES else 2, "big") + raw
