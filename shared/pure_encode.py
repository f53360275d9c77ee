"""Make records of what a producer sends, with what the broker stamps left blank. In pure Python.

The twin of what `native_loops` has under the same names, and what both are held to; which of the
two a process uses is said in `hot_loops`. It knows nothing of queues, frames and answers: sizes of
bodies and names of topics are checked before.
"""

from __future__ import annotations

import struct

from isal import isal_zlib

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.layout import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES
from penstock.shared.message_id import KeyOrigin, unique_keys
from penstock.shared.record import (
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    Shape,
)
from penstock.shared.record_crc import PROP_CRC_ROOM

_LENGTH = struct.Struct(">h")


# One message to be made a record: body, tags, keys, further properties encoded, flag, sysFlag.
# A plain tuple: making a named one takes longer than making the record.
Draft = tuple[bytes, str | None, str | None, bytes, int, int]


class RecordMaker:
    """Makes the records of one producer, each with a UNIQ_KEY of its own."""

    def __init__(self, born_host: bytes, origin: KeyOrigin, shape: Shape) -> None:
        """`born_host`: address and port as records store them, 8 or 20 bytes."""
        self._born_host = born_host
        self._unique_key = unique_keys(origin)
        self.take_shape(shape)

    def take_shape(self, shape: Shape) -> None:
        """Leave this room in the records from now on."""
        born_bytes, store_bytes = len(self._born_host), shape.store_host_bytes
        # totalSize magic crc queue flag (offsets) sysFlag born bornHost (store time and host,
        # times, prepared) length
        self._head = struct.Struct(f">iIiii16xiq{born_bytes}s{20 + store_bytes}xi")
        self._fixed_bytes = self._head.size + _LENGTH.size
        self._host_bits = SYS_BORN_HOST_V6 if born_bytes == HOST_V6_BYTES else 0
        if store_bytes == HOST_V6_BYTES:
            self._host_bits |= SYS_STORE_HOST_V6
        self._end = PROP_CRC_ROOM if shape.prop_crc else b""

    def record(
        self, name: bytes, queue_id: int, draft: Draft, shard: str | None, now_ms: int
    ) -> tuple[bytes, str]:
        """(record, UNIQ_KEY). `name` is the topic behind its length, as a record has it.

        Raises InvalidMessage or PropertiesTooLarge.
        """
        body, tags, keys, extra, flag, sys_flag = draft
        unique_key = self._unique_key(now_ms)
        raw = properties_of(tags, keys, shard, unique_key, extra + self._end)
        length = len(body)
        head = self._head.pack(
            self._fixed_bytes + length + len(name) + len(raw),
            MAGIC_V1 if len(name) <= MAX_TOPIC_BYTES + 1 else MAGIC_V2,
            isal_zlib.crc32(body) & 0x7FFFFFFF if length else 0,
            queue_id,
            flag,
            sys_flag | self._host_bits,
            now_ms,
            self._born_host,
            length,
        )
        return b"".join((head, body, name, _LENGTH.pack(len(raw)), raw)), unique_key

    def records(
        self, name: bytes, queue_id: int, drafts: list[Draft], shard: str | None, now_ms: int
    ) -> tuple[list[bytes], list[str]]:
        """`record` of each."""
        made = [self.record(name, queue_id, draft, shard, now_ms) for draft in drafts]
        return [record for record, _ in made], [unique_key for _, unique_key in made]


def properties_of(
    tags: str | None, keys: str | None, shard: str | None, unique_key: str, end: bytes
) -> bytes:
    """The properties of a message, `end` as it is behind the others."""
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
        raw = text.encode() + end
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            "tags, keys and shard are valid Unicode",
            repr(error.object[error.start : error.end]),
            "remove lone surrogates",
        ) from error
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(
            f"properties, tags and keys have at most {MAX_PROPERTIES_BYTES} bytes together",
            len(raw),
            "put large values into the body",
        )
    return raw
