"""The checksums of a record: of its body, and of the whole, which RocketMQ 5.2 and later keep as
the record's last property. Pure functions on buffers.

    "__CRC32#" 0x01 d d d d d d d d d d 0x02        20 bytes, the end of the record

The digits are those of CRC-32 without its top bit, over everything before these 20 bytes: the least
significant first, padded with "0" on the right. It also covers the fields that the broker stamps,
so it is put in last.
"""

from __future__ import annotations

import enum

from isal import isal_zlib

PROP_CRC = "__CRC32#"
PROP_CRC_LEAD = PROP_CRC.encode() + b"\x01"
PROP_CRC_BYTES = 20
# what a producer leaves at the end of a record's properties, for the broker to fill in
PROP_CRC_ROOM = PROP_CRC_LEAD + b"0" * 10 + b"\x02"

_DIGITS_AT = PROP_CRC_BYTES - len(PROP_CRC_LEAD)

assert len(PROP_CRC_ROOM) == PROP_CRC_BYTES, "room and checksum have one size"


crc32 = isal_zlib.crc32


class Checksum(enum.Enum):
    """Which checksum of a record is compared."""

    NONE = "none"
    BODY = "body"
    BOTH = "both"  # the body's, and the record's own where it has one
    RECORD = "record"  # the last property; a record without it does not pass, as in RocketMQ


def body_crc(body: bytes | memoryview) -> int:
    """RocketMQ's body CRC: CRC-32 without its top bit; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF if len(body) else 0


def has_prop_crc(buffer: bytes | bytearray | memoryview, end: int) -> bool:
    """Whether the record that ends at `end` has the property, or the room for it, as its last."""
    at = end - PROP_CRC_BYTES
    return buffer[at : at + len(PROP_CRC_LEAD)] == PROP_CRC_LEAD and buffer[end - 1] == 2


def prop_crc(record: memoryview) -> bytes:
    """The ten digits for a whole record that ends in the room for them."""
    crc: int = crc32(record[:-PROP_CRC_BYTES]) & 0x7FFFFFFF
    return b"%010d" % crc


def complete_prop_crc(buffer: bytearray, at: int, end: int) -> None:
    """Put the checksum of the record [at, end) into the room at its end."""
    with memoryview(buffer) as view:
        digits = prop_crc(view[at:end])
    buffer[end - _DIGITS_AT : end - 1] = digits[::-1]


def prop_crc_holds(buffer: bytes | memoryview, at: int, end: int) -> bool:
    """Whether the record [at, end) ends in its checksum."""
    if not has_prop_crc(buffer, end):
        return False
    return bytes(buffer[end - _DIGITS_AT : end - 1]) == prop_crc(memoryview(buffer)[at:end])[::-1]


def with_prop_crc_room(properties: bytes, room: bool) -> bytes:
    """The properties without any checksum that came with them; with `room`, followed by the room
    for the broker's. A forwarded message must not carry the checksum of its first record."""
    if PROP_CRC_LEAD in properties:
        entries = properties.split(b"\x02")
        kept = [entry for entry in entries if not entry.startswith(PROP_CRC_LEAD)]
        properties = b"\x02".join(kept)
    if not room:
        return properties
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + PROP_CRC_ROOM
