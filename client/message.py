"""One stored message, as a consumer sees it: a view of a record, decoded field by field on demand.

A Message is immutable and holds the record's bytes; reading a field costs only that field. It knows
no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from penstock.shared.compression import MAX_BODY_BYTES, compression_of, decompress
from penstock.shared.errors import StoreDamaged, UnreadableBody
from penstock.shared.hot_loops import split
from penstock.shared.message_id import offset_message_id
from penstock.shared.properties import (
    KEYS,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    find_property,
)
from penstock.shared.record import (
    AT_BODY_CRC,
    AT_BORN_HOST,
    AT_QUEUE_ID,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    body_crc,
    body_span,
    host_text,
)

_HEAD = struct.Struct(">iiqqiq")  # queueId, flag, queueOffset, physicalOffset, sysFlag, born
_ANY_OFFSET = range((1 << 63) - 1)
_I64 = struct.Struct(">q")


class Message:
    """A message of a topic. Attributes are read-only; two messages with equal bytes are equal."""

    def __init__(self, record: bytes | memoryview, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`record` is one whole record of the log; its body expands to `max_body_bytes` at most."""
        vars(self)["record"] = memoryview(record)
        if max_body_bytes != MAX_BODY_BYTES:
            vars(self)["_max_body_bytes"] = max_body_bytes

    record: memoryview
    _max_body_bytes = MAX_BODY_BYTES

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Message does not change; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Message does not change; {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.record == other.record

    def __hash__(self) -> int:
        return hash((self.physical_offset, self.queue_offset))

    def __repr__(self) -> str:
        return (
            f"Message({self.topic}/{self.queue_id}@{self.queue_offset}, tags={self.tags!r}, "
            f"keys={self.keys!r}, {self._body_at[1]} bytes)"
        )

    @cached_property
    def _head(self) -> tuple[int, int, int, int, int, int]:
        return _HEAD.unpack_from(self.record, AT_QUEUE_ID)

    @cached_property
    def _body_at(self) -> tuple[int, int]:
        return body_span(self.record, 0)

    @cached_property
    def _tail(self) -> tuple[bytes, bytes]:
        """Topic and properties, raw."""
        at, length = self._body_at
        tail = bytes(self.record[at + length :])
        start = 1 if int.from_bytes(self.record[4:8], "big") == MAGIC_V1 else 2
        stop = start + int.from_bytes(tail[:start], "big")
        return tail[start:stop], tail[stop + 2 :]

    @property
    def queue_id(self) -> int:
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
        at = AT_BORN_HOST + self._born_host_bytes + 8
        size = HOST_V6_BYTES if self.sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES
        return bytes(self.record[at : at + size])

    @property
    def store_host(self) -> str:
        """The broker's address and port."""
        return host_text(self._store_host_raw)

    @property
    def reconsume_times(self) -> int:
        """How often a group has sent it back for another try."""
        return int.from_bytes(self.record[self._body_at[0] - 16 : self._body_at[0] - 12], "big")

    @property
    def message_id(self) -> str:
        """The broker's id, which says where the message is."""
        return offset_message_id(self._store_host_raw, self.physical_offset)

    @cached_property
    def topic(self) -> str:
        return self._tail[0].decode("utf-8", "replace")

    @cached_property
    def body(self) -> bytes:
        """What the producer sent. Raises UnreadableBody where that cannot be told any more."""
        stored = self.stored_body
        if body_crc(stored) != int.from_bytes(self.record[AT_BODY_CRC:AT_QUEUE_ID], "big"):
            raise UnreadableBody(
                "a body has the checksum that its record says",
                f"{self.topic}, queue {self.queue_id}, offset {self.queue_offset}",
                "its bytes have changed on disk; stored_body has them as they are",
            )
        return decompress(stored, self.sys_flag, self._max_body_bytes)

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        at, length = self._body_at
        return bytes(self.record[at : at + length])

    @property
    def compression(self) -> str | None:
        """zlib, lz4, zstd, or None. Raises UnreadableBody for any other."""
        return compression_of(self.sys_flag)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """All properties, those that tags, keys and the like stand in included."""
        return MappingProxyType(decode_properties(self._tail[1]))

    def _property(self, name: str) -> str | None:
        return find_property(self._tail[1], name.encode()).decode("utf-8", "replace") or None

    @cached_property
    def tags(self) -> str | None:
        return self._property(TAGS)

    @cached_property
    def keys(self) -> str | None:
        """The keys as one string; several are separated by a space."""
        return self._property(KEYS)

    @cached_property
    def unique_key(self) -> str | None:
        """The producer's id of the message."""
        return self._property(UNIQ_KEY)

    @cached_property
    def shard(self) -> str | None:
        """The sharding key: messages that share it are in one queue, in order."""
        return self._property(SHARDING_KEY)


def split_records(
    payload: bytes | memoryview,
    max_body_bytes: int = MAX_BODY_BYTES,
    *,
    queue_id: int | None = None,
    offsets: range = _ANY_OFFSET,
) -> list[Message]:
    """The messages of a payload of whole records.

    With `queue_id` they are of that queue, with growing offsets among `offsets`. Raises
    StoreDamaged where they are not: a queue entry that has changed on disk leads anywhere.
    """
    view = memoryview(payload)
    starts = split(view, queue_id, offsets.start, offsets.stop)
    messages = [Message(view[at:stop], max_body_bytes) for at, stop in pairwise(starts)]
    if starts[-1] != len(view):
        least = messages[-1].queue_offset + 1 if messages else offsets.start
        raise _led_astray(queue_id, least)
    return messages


def _led_astray(queue_id: int | None, offset: int) -> StoreDamaged:
    return StoreDamaged(
        "an entry of a consume queue leads to its message",
        f"queue {queue_id}, offset {offset}",
        "see penstock store verify; to make the queues anew: penstock store rebuild",
    )
