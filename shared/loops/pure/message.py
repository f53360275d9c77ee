"""What a consumer is given: messages, each a view of a record. Pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. An answer may be anything, so no length in it is used before it has
been checked; a record that makes no sense raises when a field is read, not when it arrives.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from penstock.shared.errors import StoreDamaged, UnreadableBody
from penstock.shared.formats.compression import MAX_BODY_BYTES, compression_of, decompress
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import (
    KEYS,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    find_property,
)
from penstock.shared.formats.record import host_text
from penstock.shared.formats.record_crc import body_crc
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BODY_V4,
    AT_BORN_HOST,
    AT_BORN_TIMESTAMP,
    AT_FLAG,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_RECONSUME_TIMES_V4,
    AT_STORE_HOST_V4,
    AT_SYS_FLAG,
    AT_TOTAL_SIZE,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    body_span,
    fields_at,
)
from penstock.shared.loops import pure
from penstock.shared.messaging.payload import decoded
from penstock.shared.notebook import page_of

_T = TypeVar("_T")

# characters of tags, and of keys, in a message's repr
_MOST_SHOWN = 60
# All fields before the first host, so these offsets hold for every record.
_HEAD = fields_at(
    (AT_QUEUE_ID, "i"),
    (AT_FLAG, "i"),
    (AT_QUEUE_OFFSET, "q"),
    (AT_PHYSICAL_OFFSET, "q"),
    (AT_SYS_FLAG, "i"),
    (AT_BORN_TIMESTAMP, "q"),
)
_I64 = struct.Struct(">q")
_PLACE = fields_at((AT_TOTAL_SIZE, "i"), (AT_QUEUE_ID, "i"), (AT_QUEUE_OFFSET, "q"))


class Message:
    """A message of a topic. Attributes are read-only; two messages with equal bytes are equal.

    It keeps the bytes of its record, or of the answer that contains it. A field is decoded each
    time it is read, body and properties only once.
    """

    __slots__ = {
        "record": "The whole record as the log has it.",
        "_max_body_bytes": "",
        "_body": "None until it is read.",
        "_properties": "None until they are read.",
    }
    record: memoryview
    _max_body_bytes: int
    _body: bytes | None
    _properties: Mapping[str, str] | None

    def __init__(self, record: bytes | memoryview, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`record` is one whole record of the log; its body may expand to `max_body_bytes`."""
        # A message changes only here, and where a decoded body or properties are kept.
        keep = object.__setattr__
        keep(self, "record", memoryview(record))
        keep(self, "_max_body_bytes", max_body_bytes)
        keep(self, "_body", None)
        keep(self, "_properties", None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Message does not change; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Message does not change; {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        # The whole record, offsets and all: the same text sent twice is two messages.
        return isinstance(other, Message) and self.record == other.record

    def __hash__(self) -> int:
        # Equal records have equal offsets. Hashing their bytes would cost a pass through the body.
        return hash((self.physical_offset, self.queue_offset))

    def __repr__(self) -> str:
        try:
            return (
                f"Message({self.topic}/{self.queue_id}@{self.queue_offset}, "
                f"tags={_short(self.tags)}, keys={_short(self.keys)}, "
                f"{len(self.stored_body)} bytes)"
            )
        except (struct.error, StoreDamaged):
            # a repr is for people who look for a fault, so it must not raise an error of its own
            return f"Message(no record: {_short(bytes(self.record[:32]))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Only its own record, and not the answer that it came in, which may be megabytes. Either
        twin can load it."""
        return remade, (bytes(self.record), self._max_body_bytes)

    def __copy__(self) -> Message:
        """Itself: it does not change."""
        return self

    def __deepcopy__(self, memo: Any) -> Message:
        """A copy of its own bytes: a message is a view that keeps the whole answer alive."""
        return Message(bytes(self.record), self._max_body_bytes)

    # Unpacked for each field that is read: keeping six numbers would make every message larger.
    @property
    def _head(self) -> tuple[int, int, int, int, int, int]:
        return _HEAD.unpack_from(self.record)

    @property
    def queue_id(self) -> int:
        """The queue of its topic that it is in, from 0."""
        return self._head[0]

    @property
    def flag(self) -> int:
        """The sender's own 32 bits; the broker does not look at them."""
        return self._head[1]

    @property
    def queue_offset(self) -> int:
        """The message's number in its queue, from 0."""
        return self._head[2]

    @property
    def physical_offset(self) -> int:
        """Where the record begins in the commit log, in bytes."""
        return self._head[3]

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits: how the body is compressed, what the hosts are, transactions."""
        return self._head[4]

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made it, ms since 1970, by the producer's clock."""
        return self._head[5]

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, ms since 1970, by the broker's clock."""
        return int(_I64.unpack_from(self.record, AT_BORN_HOST + self._born_host_bytes)[0])

    @property
    def _born_host_bytes(self) -> int:
        return HOST_V6_BYTES if self.sys_flag & SYS_BORN_HOST_V6 else HOST_V4_BYTES

    @property
    def born_host(self) -> str:
        """The producer's address and port, like `10.1.2.3:54321`."""
        return host_text(bytes(self.record[AT_BORN_HOST : AT_BORN_HOST + self._born_host_bytes]))

    @property
    def _store_host_raw(self) -> bytes:
        # the only field before it without a fixed length is the born host
        at = AT_STORE_HOST_V4 - HOST_V4_BYTES + self._born_host_bytes
        size = HOST_V6_BYTES if self.sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES
        return bytes(self.record[at : at + size])

    @property
    def store_host(self) -> str:
        """The broker's address and port."""
        return host_text(self._store_host_raw)

    @property
    def reconsume_times(self) -> int:
        """How often a group has sent it back for another try."""
        body_at, _ = body_span(self.record, 0)
        at = body_at - AT_BODY_V4 + AT_RECONSUME_TIMES_V4
        return int.from_bytes(self.record[at : at + 4], "big")

    @property
    def message_id(self) -> str:
        """The broker's id, which says where the message is."""
        return offset_message_id(self._store_host_raw, self.physical_offset)

    @property
    def body(self) -> bytes:
        """What the producer sent. Raises UnreadableBody if that cannot be told any more."""
        body = self._body
        if body is None:
            body = self._whole_body()
            object.__setattr__(self, "_body", body)
        return body

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, kind: type[_T]) -> _T: ...
    def decode(self, kind: Any = Any) -> Any:
        """The object that was sent, of the type `kind`: a msgspec.Struct, a dataclass, a pydantic
        model, or any type that msgspec knows; without one, what JSON has.

        The property content-type says how to read the body; without it, as JSON. Raises
        InvalidMessage for a body of another form, and UnreadableBody.
        """
        return decoded(self, kind)

    def _repr_html_(self) -> str:
        return page_of(self)

    def _whole_body(self) -> bytes:
        # The checksum is compared here and not when the message arrives: so a body that nobody
        # reads costs nothing, and a bad body does not keep other messages from the consumer.
        stored = self.stored_body
        if body_crc(stored) != int.from_bytes(self.record[AT_BODY_CRC:AT_QUEUE_ID], "big"):
            raise UnreadableBody(
                "the body has another checksum than its record says",
                f"{self.topic}, queue {self.queue_id}, offset {self.queue_offset}",
                "its bytes have changed on disk; message.stored_body has them as they are",
            )
        return decompress(stored, self.sys_flag, self._max_body_bytes)

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        at, length = body_span(self.record, 0)
        return bytes(self.record[at : at + length])

    @property
    def _tail(self) -> tuple[bytes, bytes]:
        """Topic and properties, raw, as far as the record has them: slices do not raise."""
        at, length = body_span(self.record, 0)
        tail = bytes(self.record[at + length :])
        magic = int.from_bytes(self.record[AT_MAGIC:AT_BODY_CRC], "big")
        start = TOPIC_LENGTH_BYTES.get(magic, TOPIC_LENGTH_BYTES[MAGIC_V2])
        stop = start + int.from_bytes(tail[:start], "big")
        return tail[start:stop], tail[stop + PROPERTIES_LENGTH_BYTES :]

    @property
    def _raw_topic(self) -> bytes:
        return self._tail[0]

    @property
    def _raw_properties(self) -> bytes:
        return self._tail[1]

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        # as in all texts here, bytes that are not UTF-8 become U+FFFD, as in Java
        return self._raw_topic.decode("utf-8", "replace")

    @property
    def compression(self) -> str | None:
        """zlib, lz4, zstd, or None. Raises UnreadableBody for any other."""
        return compression_of(self.sys_flag)

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including those that hold tags, keys and the like."""
        properties = self._properties
        if properties is None:
            # read-only, because all callers get the same object
            properties = MappingProxyType(decode_properties(self._raw_properties))
            object.__setattr__(self, "_properties", properties)
        return properties

    @property
    def tags(self) -> str | None:
        """The tag that consumers filter by; None without one."""
        return text_of(self._raw_properties, TAGS)

    @property
    def keys(self) -> str | None:
        """The keys as one string; several are separated by a space. None without any."""
        return text_of(self._raw_properties, KEYS)

    @property
    def unique_key(self) -> str | None:
        """The producer's id of the message."""
        return text_of(self._raw_properties, UNIQ_KEY)

    @property
    def shard(self) -> str | None:
        """The sharding key: messages that share it are in one queue, in order."""
        return text_of(self._raw_properties, SHARDING_KEY)


def remade(record: bytes, max_body_bytes: int) -> Any:
    """A message in the form that this process uses; it may have been pickled in the other form.

    Pickles name this function by its module, so neither may be renamed.
    """
    return (pure.message_class or Message)(record, max_body_bytes)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def text_of(properties: bytes, name: str) -> str | None:
    """One of the raw properties as text; None if it is absent, or has no value."""
    return find_property(properties, name.encode()).decode("utf-8", "replace") or None
