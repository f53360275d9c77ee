"""Where the fields of a record of the commit log are. Pure functions on buffers.

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
of sysFlag says that the host is IPv6.

Several places take records apart, because a call per field would cost more than the work that it
serves. All of them take their offsets from here, and the compiled loops compare theirs with these
when they are loaded. Nothing here checks a record: see `record_check`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

SYS_COMPRESSED = 0x001
# its topic is of the filter type MULTI_TAG
SYS_MULTI_TAGS = 0x002
SYS_TRANSACTION_MASK = 0x00C
SYS_TRANSACTION_PREPARED = 0x004
SYS_TRANSACTION_COMMIT = 0x008
SYS_TRANSACTION_ROLLBACK = 0x00C
SYS_BORN_HOST_V6 = 0x010
SYS_STORE_HOST_V6 = 0x020
# several messages in one record, which only queues of RocketMQ's type BatchCQ name
SYS_INNER_BATCH = 0x080
SYS_ANY_HOST_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

HOST_V4_BYTES = 4 + 4
HOST_V6_BYTES = 16 + 4
V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES

# Each field begins where the one before it ends.
AT_TOTAL_SIZE = 0
AT_MAGIC = AT_TOTAL_SIZE + 4
AT_BODY_CRC = AT_MAGIC + 4
AT_QUEUE_ID = AT_BODY_CRC + 4
AT_FLAG = AT_QUEUE_ID + 4
AT_QUEUE_OFFSET = AT_FLAG + 4
AT_PHYSICAL_OFFSET = AT_QUEUE_OFFSET + 8
AT_SYS_FLAG = AT_PHYSICAL_OFFSET + 8
AT_BORN_TIMESTAMP = AT_SYS_FLAG + 4
AT_BORN_HOST = AT_BORN_TIMESTAMP + 8
# That host has no fixed length, so the offsets below are those for IPv4 hosts, which nearly every
# record has. Each IPv6 host before a field moves it by V6_EXTRA_BYTES.
AT_STORE_TIMESTAMP_V4 = AT_BORN_HOST + HOST_V4_BYTES
AT_STORE_HOST_V4 = AT_STORE_TIMESTAMP_V4 + 8
AT_RECONSUME_TIMES_V4 = AT_STORE_HOST_V4 + HOST_V4_BYTES
AT_PREPARED_OFFSET_V4 = AT_RECONSUME_TIMES_V4 + 4
AT_BODY_LENGTH_V4 = AT_PREPARED_OFFSET_V4 + 8
AT_BODY_V4 = AT_BODY_LENGTH_V4 + 4

BODY_LENGTH_BYTES = AT_BODY_V4 - AT_BODY_LENGTH_V4
TOPIC_LENGTH_BYTES = {MAGIC_V1: 1, MAGIC_V2: 2}
PROPERTIES_LENGTH_BYTES = 2

# The lowest byte of sysFlag, which has the bits of transactions and hosts, and that of the magic,
# in which the two versions differ: comparing one byte is faster than unpacking a word.
AT_SYS_FLAG_LOW = AT_SYS_FLAG + 3
AT_MAGIC_LOW = AT_MAGIC + 3

# A version 1 record with IPv4 hosts and without body, topic and properties.
SMALLEST_RECORD_BYTES = AT_BODY_V4 + TOPIC_LENGTH_BYTES[MAGIC_V1] + PROPERTIES_LENGTH_BYTES

FIXED_HEAD = struct.Struct(">iIiiiqqiq")  # up to and including bornTimestamp
TAIL_HEAD = struct.Struct(">iqi")  # reconsumeTimes, preparedTransactionOffset, bodyLength
BLANK = struct.Struct(">iI")

assert FIXED_HEAD.size == AT_BORN_HOST, "the head ends where the first host begins"
assert TAIL_HEAD.size == AT_BODY_V4 - AT_RECONSUME_TIMES_V4, "the tail's head ends at the body"
assert SMALLEST_RECORD_BYTES == 91, "RocketMQ's smallest record"


class Shape(NamedTuple):
    """What records leave room for: producers leave it blank, and the broker fills it in."""

    store_host_bytes: int = HOST_V4_BYTES
    prop_crc: bool = False


def fields_at(*fields: tuple[int, str]) -> struct.Struct:
    """A Struct of some fields, each (offset, type), with the bytes between them skipped.

    So a reader that wants five fields names them, instead of counting the bytes in between.
    """
    form, at = ">", 0
    for offset, kind in fields:
        form += f"{offset - at}x{kind}"
        at = struct.calcsize(form)
    return struct.Struct(form)


def v6_extra_bytes(sys_flag: int) -> int:
    """How far the hosts of a record with this sysFlag move its body."""
    return V6_EXTRA_BYTES * (sys_flag & SYS_ANY_HOST_V6).bit_count()


def body_span(buffer: bytes | memoryview, at: int) -> tuple[int, int]:
    """Where the body of the record at `at` begins, and its length in bytes.

    Both are what the record says; they may lie outside the buffer.
    """
    body_at = at + AT_BODY_V4 + v6_extra_bytes(_sys_flag(buffer, at))
    length = int.from_bytes(buffer[body_at - BODY_LENGTH_BYTES : body_at], "big", signed=True)
    return body_at, length


def store_timestamp_ms(buffer: bytes | memoryview, at: int) -> int:
    """The store timestamp of the record at `at`. SMALLEST_RECORD_BYTES of it are enough."""
    start = at + AT_STORE_TIMESTAMP_V4
    if _sys_flag(buffer, at) & SYS_BORN_HOST_V6:
        start += V6_EXTRA_BYTES
    return int.from_bytes(buffer[start : start + 8], "big", signed=True)


def store_host(buffer: bytes | memoryview, at: int = 0) -> bytes:
    """The broker's address and port in the record at `at`, raw."""
    sys_flag = _sys_flag(buffer, at)
    start = at + AT_STORE_HOST_V4
    if sys_flag & SYS_BORN_HOST_V6:
        start += V6_EXTRA_BYTES
    size = HOST_V6_BYTES if sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES
    return bytes(buffer[start : start + size])


def blank_size(view: memoryview, at: int = 0) -> int:
    """The size of the blank at `at`; 0 where there is none."""
    if len(view) - at < BLANK.size:
        return 0
    size: int
    size, magic = BLANK.unpack_from(view, at)
    return size if magic == MAGIC_BLANK else 0


def _sys_flag(buffer: bytes | memoryview, at: int) -> int:
    # a slice, not an index: if the buffer is too short the result is 0, and not an IndexError
    return int.from_bytes(buffer[at + AT_SYS_FLAG : at + AT_BORN_TIMESTAMP], "big")
