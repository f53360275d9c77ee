"""One record of the commit log: encode, decode, examine. Pure functions on buffers.

    off  field                type      off     field                     type
      0  totalSize            i32        48     bornHost                  ip(4|16) + i32 port
      4  magic                u32        48+B   storeTimestamp ms         i64
      8  bodyCRC              i32        56+B   storeHost                 ip(4|16) + i32 port
     12  queueId              i32        56+B+S reconsumeTimes            i32
     16  flag                 i32        60+B+S preparedTransactionOffset i64
     20  queueOffset          i64        68+B+S bodyLength L              i32
     28  physicalOffset       i64        72+B+S body                      L
     36  sysFlag              i32        then   topicLength N (i8, or i16 in V2), topic
     40  bornTimestamp ms     i64        then   propertiesLength P (i16), properties

Everything is big-endian and signed; nothing is aligned. B and S are 8, or 20 where bit 4 or bit 5
of sysFlag says that the host is IPv6. This file does not know where a record is stored: callers
pass positions in.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from functools import lru_cache
from typing import NamedTuple

import msgspec
from isal import isal_zlib

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record_crc import Checksum, has_prop_crc, prop_crc_holds
from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.names import (
    MAX_PROPERTIES_BYTES,
    MAX_RETRY_TOPIC_BYTES,
    STORED_TOPIC_CHARACTERS,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

SYS_COMPRESSED = 0x001
SYS_MULTI_TAGS = 0x002
SYS_TRANSACTION_MASK = 0x00C
SYS_TRANSACTION_PREPARED = 0x004
SYS_TRANSACTION_COMMIT = 0x008
SYS_TRANSACTION_ROLLBACK = 0x00C
SYS_BORN_HOST_V6 = 0x010
SYS_STORE_HOST_V6 = 0x020

# offsets that do not depend on the hosts
AT_MAGIC, AT_BODY_CRC, AT_QUEUE_ID, AT_FLAG = 4, 8, 12, 16
AT_QUEUE_OFFSET, AT_PHYSICAL_OFFSET, AT_SYS_FLAG = 20, 28, 36
AT_BORN_TIMESTAMP, AT_BORN_HOST = 40, 48
HOST_V4_BYTES, HOST_V6_BYTES = 8, 20
# offsets in the usual record, both hosts IPv4
AT_STORE_TIMESTAMP_V4, AT_STORE_HOST_V4, AT_BODY_LENGTH_V4, AT_BODY_V4 = 56, 64, 84, 88
# totalSize of a V1 record with IPv4 hosts and nothing in it
FIXED_BYTES_V4 = 91
SMALLEST_RECORD_BYTES = FIXED_BYTES_V4

assert AT_BODY_V4 == 72 + 2 * HOST_V4_BYTES, "the IPv4 shortcuts follow from the general layout"

FIXED_HEAD = struct.Struct(">iIiiiqqiq")  # up to and with bornTimestamp
TAIL_HEAD = struct.Struct(">iqi")  # reconsumeTimes, preparedTransactionOffset, bodyLength
BLANK = struct.Struct(">iI")
_QUEUE = struct.Struct(">i4xq")  # queueId, queueOffset
_TOPIC_BYTES = "".join(sorted(STORED_TOPIC_CHARACTERS)).encode()
_NO_TOPICS = (b"", b".", b"..")
_I16 = struct.Struct(">h")

crc32 = isal_zlib.crc32


def body_crc(body: bytes | memoryview) -> int:
    """RocketMQ's body CRC: CRC-32 without its top bit; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF if len(body) else 0


class Record(msgspec.Struct, frozen=True):
    """A record's fields. Hosts are raw: 4 or 16 address bytes and a 4-byte port."""

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    total_size: int = 0
    magic: int = MAGIC_V1


class Shape(NamedTuple):
    """What a broker's records have room for: producers leave it blank, the broker fills it in."""

    store_host_bytes: int = HOST_V4_BYTES
    prop_crc: bool = False


def pack_host(address: str, port: int) -> bytes:
    """("10.1.2.3", 54321) as a record stores it; IPv6 addresses take 20 bytes, IPv4 8."""
    return ipaddress.ip_address(address).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def host_text(raw: bytes) -> str:
    """A stored host as text: `10.1.2.3:54321`, `[2001:db8::1]:1`."""
    address = ipaddress.ip_address(raw[:-4])
    port = int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def encode_record(record: Record) -> bytes:
    """The record's bytes. Sizes, CRC, version and host bits follow from the other fields."""
    topic = record.topic.encode()
    if len(record.properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(f"properties of {len(record.properties)} bytes; 32767 at most")
    long_topic = len(topic) > 127
    sys_flag = record.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
    if len(record.born_host) == HOST_V6_BYTES:
        sys_flag |= SYS_BORN_HOST_V6
    if len(record.store_host) == HOST_V6_BYTES:
        sys_flag |= SYS_STORE_HOST_V6
    size = 74 + len(record.born_host) + len(record.store_host) + len(record.body)
    size += len(topic) + len(record.properties) + (2 if long_topic else 1)
    head = FIXED_HEAD.pack(
        size,
        MAGIC_V2 if long_topic else MAGIC_V1,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_timestamp_ms,
    )
    tail = TAIL_HEAD.pack(
        record.reconsume_times, record.prepared_transaction_offset, len(record.body)
    )
    return b"".join(
        (
            head,
            record.born_host,
            record.store_timestamp_ms.to_bytes(8, "big", signed=True),
            record.store_host,
            tail,
            record.body,
            len(topic).to_bytes(2 if long_topic else 1, "big"),
            topic,
            _I16.pack(len(record.properties)),
            record.properties,
        )
    )


def decode_record(buffer: bytes | memoryview, at: int = 0) -> Record:
    """The record that starts at `at`. Raises StoreDamaged when the bytes are not one whole record.

    The CRC is not compared; `examine` does that.
    """
    found, size, reason = examine(buffer, at, len(buffer), checksum=Checksum.NONE)
    if found is not Kind.RECORD:
        raise StoreDamaged(
            "these bytes are not one whole record", f"{reason or found.name} at {at}"
        )
    total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born = (
        FIXED_HEAD.unpack_from(buffer, at)
    )
    view = memoryview(buffer)
    born_end = at + AT_BORN_HOST + (HOST_V6_BYTES if sys_flag & SYS_BORN_HOST_V6 else HOST_V4_BYTES)
    store_host_at = born_end + 8
    tail_at = store_host_at + (HOST_V6_BYTES if sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES)
    times, prepared, body_length = TAIL_HEAD.unpack_from(buffer, tail_at)
    body_at = tail_at + TAIL_HEAD.size
    topic_at = body_at + body_length + (2 if magic == MAGIC_V2 else 1)
    topic_end = topic_at + int.from_bytes(view[body_at + body_length : topic_at], "big")
    return Record(
        topic=bytes(view[topic_at:topic_end]).decode("utf-8", "replace"),
        body=bytes(view[body_at : body_at + body_length]),
        properties=bytes(view[topic_end + 2 : at + size]),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical,
        sys_flag=sys_flag,
        born_timestamp_ms=born,
        born_host=bytes(view[at + AT_BORN_HOST : born_end]),
        store_timestamp_ms=int.from_bytes(view[born_end:store_host_at], "big", signed=True),
        store_host=bytes(view[store_host_at:tail_at]),
        reconsume_times=times,
        prepared_transaction_offset=prepared,
        body_crc=crc,
        total_size=total,
        magic=magic,
    )


# Why a record is damaged that may be whole: it was written without what is asked for now.
NO_RECORD_CRC = "record without a CRC of its own"


class Kind(enum.Enum):
    """What stands at a place in the log."""

    RECORD = "record"  # one whole record
    BLANK = "blank"  # filler up to the segment's end
    END = "end"  # zeros: nothing was written here
    DAMAGED = "damaged"  # something else, or a record that is cut off


def examine(
    buffer: bytes | memoryview,
    at: int,
    end: int,
    *,
    position: int | None = None,
    checksum: Checksum = Checksum.BODY,
) -> tuple[Kind, int, str]:
    """What stands at `at`, its size in bytes, and the reason when it is DAMAGED.

    `end` is the first index that is not readable; `position` the log offset the record must name
    as its own, where it is known. Trusts no length before it has bounded it.
    """
    left = end - at
    if left < BLANK.size:
        return Kind.END if not any(buffer[at:end]) else Kind.DAMAGED, 0, "no room for a header"
    size, magic = BLANK.unpack_from(buffer, at)
    if magic == MAGIC_BLANK:
        if BLANK.size <= size <= left:
            return Kind.BLANK, size, ""
        return Kind.DAMAGED, 0, f"blank of {size} bytes where {left} are left"
    if magic not in (MAGIC_V1, MAGIC_V2):
        if size == 0 and magic == 0:
            return Kind.END, 0, ""
        return Kind.DAMAGED, 0, f"magic {magic:08x}"
    if not SMALLEST_RECORD_BYTES <= size <= left:
        return Kind.DAMAGED, 0, f"record of {size} bytes where {left} are left"
    reason = _contradiction(buffer, at, size, magic)
    if reason:
        return Kind.DAMAGED, 0, reason
    if position is not None:
        named = int.from_bytes(buffer[at + AT_PHYSICAL_OFFSET : at + AT_SYS_FLAG], "big")
        if named != position:
            return Kind.DAMAGED, 0, f"record names {named} as its own offset"
    if checksum is Checksum.BODY and not _crc_holds(buffer, at):
        return Kind.DAMAGED, 0, "body CRC differs"
    if checksum is Checksum.RECORD and not prop_crc_holds(buffer, at, at + size):
        ends_in_zeros = decode_record(buffer, at).properties.endswith(b"\0")
        torn = ends_in_zeros or has_prop_crc(buffer, at + size)
        return Kind.DAMAGED, 0, "record CRC differs" if torn else NO_RECORD_CRC
    return Kind.RECORD, size, ""


def body_span(buffer: bytes | memoryview, at: int) -> tuple[int, int]:
    """Where the body of the record at `at` begins, and its length in bytes."""
    sys_flag = int.from_bytes(buffer[at + AT_SYS_FLAG : at + AT_BORN_TIMESTAMP], "big")
    hosts = HOST_V4_BYTES * 2
    if sys_flag & SYS_BORN_HOST_V6:
        hosts += HOST_V6_BYTES - HOST_V4_BYTES
    if sys_flag & SYS_STORE_HOST_V6:
        hosts += HOST_V6_BYTES - HOST_V4_BYTES
    body_at = at + 72 + hosts
    return body_at, int.from_bytes(buffer[body_at - 4 : body_at], "big", signed=True)


def _contradiction(buffer: bytes | memoryview, at: int, size: int, magic: int) -> str:
    """Why the lengths inside do not add up to `size`, or no queue is named; "" when all is well."""
    record_end = at + size
    body_at, body_length = body_span(buffer, at)
    length_bytes = 2 if magic == MAGIC_V2 else 1
    topic_at = body_at + body_length + length_bytes
    if body_length < 0 or topic_at + 2 > record_end:
        return f"body of {body_length} bytes in a record of {size}"
    # signed like every other length: RocketMQ reads a V1 topic of 128 bytes as one of -128
    topic_length = int.from_bytes(buffer[topic_at - length_bytes : topic_at], "big", signed=True)
    topic_end = topic_at + topic_length
    if topic_length < 0 or topic_end + 2 > record_end:
        return f"topic of {topic_length} bytes in a record of {size}"
    (properties_length,) = _I16.unpack_from(buffer, topic_end)
    if properties_length < 0 or topic_end + 2 + properties_length != record_end:
        return f"lengths inside do not add up to the record's {size} bytes"
    topic = bytes(buffer[topic_at:topic_end])
    queue_id, queue_offset = _QUEUE.unpack_from(buffer, at + AT_QUEUE_ID)
    if not names_queue(topic, queue_id, queue_offset):
        return f"no record is of queue {queue_id} of {ascii(topic)}, offset {queue_offset}"
    return ""


def names_queue(topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether a record can be of this queue, whose files have the topic's name in their path, and
    an entry there.

    RocketMQ's rule for what users may call a topic is narrower; its own it names after clusters.
    """
    if not 0 <= queue_offset < MAX_QUEUE_OFFSET or queue_id < 0 or topic in _NO_TOPICS:
        return False
    return len(topic) <= MAX_RETRY_TOPIC_BYTES and not topic.translate(None, _TOPIC_BYTES)


def jumps(queue_offset: int, end: int, position: int, log_start: int) -> bool:
    """Whether a record at `position` cannot have this queue offset, where `end` was to come: there
    was no room in the log for so many messages between. No checksum covers that number."""
    return queue_offset - end > (position - log_start) // SMALLEST_RECORD_BYTES


def _crc_holds(buffer: bytes | memoryview, at: int) -> bool:
    body_at, body_length = body_span(buffer, at)
    stored = int.from_bytes(buffer[at + AT_BODY_CRC : at + AT_QUEUE_ID], "big", signed=True)
    body = memoryview(buffer)[body_at : body_at + body_length]
    # 0 is what RocketMQ stores for an empty body, and never checks
    return body_length == 0 or body_crc(body) == stored


def blank_size(view: memoryview, at: int = 0) -> int:
    """The size of the blank at `at`; 0 when there is none."""
    if len(view) - at < BLANK.size:
        return 0
    size: int
    size, magic = BLANK.unpack_from(view, at)
    return size if magic == MAGIC_BLANK else 0


def store_timestamp_ms(buffer: bytes | memoryview, at: int) -> int:
    """The store timestamp of the record at `at`."""
    sys_flag = int.from_bytes(buffer[at + AT_SYS_FLAG : at + AT_BORN_TIMESTAMP], "big")
    start = at + AT_BORN_HOST + (HOST_V6_BYTES if sys_flag & SYS_BORN_HOST_V6 else HOST_V4_BYTES)
    return int.from_bytes(buffer[start : start + 8], "big", signed=True)


def store_host(buffer: bytes | memoryview, at: int = 0) -> bytes:
    """The broker's address and port in the record at `at`, raw."""
    sys_flag = int.from_bytes(buffer[at + AT_SYS_FLAG : at + AT_BORN_TIMESTAMP], "big")
    start = at + AT_STORE_HOST_V4
    if sys_flag & SYS_BORN_HOST_V6:
        start += HOST_V6_BYTES - HOST_V4_BYTES
    size = HOST_V6_BYTES if sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES
    return bytes(buffer[start : start + size])
