"""One record of the commit log as an object: encode and decode. Pure functions on buffers.

Its bytes are drawn in `record_layout`. For tools and tests: code that runs once per message takes
the fields that it needs from the buffer itself. This file does not know where a record is stored:
callers pass positions in.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum, body_crc
from penstock.shared.formats.record_layout import (
    AT_BORN_HOST,
    FIXED_HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SYS_ANY_HOST_V6,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TAIL_HEAD,
    TOPIC_LENGTH_BYTES,
)
from penstock.shared.names import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES


class Record(msgspec.Struct, frozen=True):
    """A record's fields. Hosts are raw: 4 or 16 address bytes and a 4-byte port.

    `body` is as stored, perhaps compressed; `properties` are encoded. The body's CRC, the size, the
    version and the two host bits of `sys_flag` follow from the other fields: `decode_record` fills
    them in, and `encode_record` ignores them.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(HOST_V4_BYTES)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(HOST_V4_BYTES)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    total_size: int = 0
    magic: int = MAGIC_V1


def pack_host(address: str, port: int) -> bytes:
    """("10.1.2.3", 54321) as a record stores it; IPv6 addresses take 20 bytes, IPv4 8.

    The port has 4 bytes, as in RocketMQ. Raises ValueError for a name: nothing is resolved here.
    """
    import ipaddress  # here, as most processes never turn a host into text

    return ipaddress.ip_address(address).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def host_text(raw: bytes) -> str:
    """A stored host as text: `10.1.2.3:54321`, `[2001:db8::1]:1`. Cached: few hosts write a log."""
    import ipaddress

    address = ipaddress.ip_address(raw[:-4])
    port = int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def encode_record(record: Record) -> bytes:
    """The record's bytes. Sizes, CRC, version and host bits follow from the other fields.

    Raises ValueError for properties that are too long for their length field. Nothing else is
    checked, so that tests can make records that no broker would accept; the loops that check frames
    decide what a sender may send.
    """
    topic = record.topic.encode()
    if len(record.properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"properties of {len(record.properties)} bytes; {MAX_PROPERTIES_BYTES} at most"
        )
    # version 1 has a signed byte for the topic's length, so it cannot hold a longer one
    magic = MAGIC_V1 if len(topic) <= MAX_TOPIC_BYTES else MAGIC_V2
    # The hosts decide, not the flag: every later field is found by these two bits.
    sys_flag = record.sys_flag & ~SYS_ANY_HOST_V6
    if len(record.born_host) == HOST_V6_BYTES:
        sys_flag |= SYS_BORN_HOST_V6
    if len(record.store_host) == HOST_V6_BYTES:
        sys_flag |= SYS_STORE_HOST_V6
    tail = TAIL_HEAD.pack(
        record.reconsume_times, record.prepared_transaction_offset, len(record.body)
    )
    behind_head = b"".join(
        (
            record.born_host,
            record.store_timestamp_ms.to_bytes(8, "big", signed=True),
            record.store_host,
            tail,
            record.body,
            len(topic).to_bytes(TOPIC_LENGTH_BYTES[magic], "big"),
            topic,
            len(record.properties).to_bytes(PROPERTIES_LENGTH_BYTES, "big"),
            record.properties,
        )
    )
    # packed last, because it begins with the length of everything
    head = FIXED_HEAD.pack(
        FIXED_HEAD.size + len(behind_head),
        magic,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_timestamp_ms,
    )
    return head + behind_head


def decode_record(buffer: bytes | memoryview, at: int = 0) -> Record:
    """The record that starts at `at`. Raises StoreDamaged if the bytes are not one whole record.

    The CRC is not compared; `examine` does that. Body and properties are copied, so the record does
    not keep the buffer alive, and a mapped segment can be unmapped.
    """
    # this checks all lengths once; below they are used without another check
    found, size, reason = examine(buffer, at, len(buffer), checksum=Checksum.NONE)
    if found is not Kind.RECORD:
        raise StoreDamaged(
            "these bytes are not one whole record", f"{reason or found.name} at {at}"
        )
    return decode_examined(buffer, at, size)


def decode_examined(buffer: bytes | memoryview, at: int, size: int) -> Record:
    """The same for bytes that `examine` has found to be a record of this size."""
    total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born = (
        FIXED_HEAD.unpack_from(buffer, at)
    )
    view = memoryview(buffer)
    born_end = at + AT_BORN_HOST + (HOST_V6_BYTES if sys_flag & SYS_BORN_HOST_V6 else HOST_V4_BYTES)
    store_host_at = born_end + 8
    tail_at = store_host_at + (HOST_V6_BYTES if sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES)
    times, prepared, body_length = TAIL_HEAD.unpack_from(buffer, tail_at)
    body_at = tail_at + TAIL_HEAD.size
    topic_at = body_at + body_length + TOPIC_LENGTH_BYTES[magic]
    # unsigned is safe: `examine` refuses a length that is negative as Java reads it
    topic_end = topic_at + int.from_bytes(view[body_at + body_length : topic_at], "big")
    return Record(
        topic=bytes(view[topic_at:topic_end]).decode("utf-8", "replace"),
        body=bytes(view[body_at : body_at + body_length]),
        properties=bytes(view[topic_end + PROPERTIES_LENGTH_BYTES : at + size]),
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
