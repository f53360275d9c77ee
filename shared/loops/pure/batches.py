"""The gateway's loops: the items of a batch of RocketMQ's clients to records, and their ids. Pure
Python.

The twins of what `compiled` has under these names, and the reference for both; `active` chooses the
form that a process uses. `remoting.batch` draws an item, and says what is wrong with one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from penstock.shared.formats.record_crc import body_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_FLAG,
    BODY_LENGTH_BYTES,
    PROPERTIES_LENGTH_BYTES,
    body_span,
)
from penstock.shared.names import MAX_PROPERTIES_BYTES

_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")
_FIXED_BYTES = _HEAD.size + _LENGTH.size
_SIZE = struct.Struct(">i")


def batch_records(raw: bytes, common: bytes, prop_crc: bool) -> tuple[bytes, list[int]] | None:
    """The records of a batch, and the size of each; None where it is not whole items, or one's
    properties do not fit into a record.

    `common` is a record with neither body nor properties, which has all that the items share. With
    `prop_crc` each record ends in the room for its checksum.
    """
    # head with sizes, flag and CRC to be filled in; what stands after the body
    body_at, _ = body_span(common, 0)
    blank, name = common[: body_at - BODY_LENGTH_BYTES], common[body_at:-PROPERTIES_LENGTH_BYTES]
    after_flag = blank[AT_FLAG + _SIZE.size :]
    parts: list[bytes] = []
    sizes: list[int] = []
    at, end = 0, len(raw)
    while at < end:
        if end - at < _FIXED_BYTES:
            return None
        size, _, _, flag, body_bytes = _HEAD.unpack_from(raw, at)
        start = at + _HEAD.size
        if not _FIXED_BYTES <= size <= end - at or not 0 <= body_bytes <= size - _FIXED_BYTES:
            return None
        body = raw[start : start + body_bytes]
        properties_at = start + body_bytes + _LENGTH.size
        (length,) = _LENGTH.unpack_from(raw, properties_at - _LENGTH.size)
        if properties_at + length != at + size:
            return None
        # a checksum that came along is taken out: it was of another record
        properties = with_prop_crc_room(raw[properties_at : at + size], prop_crc)
        if len(properties) > MAX_PROPERTIES_BYTES:
            return None
        total = len(common) + body_bytes + len(properties)
        parts += (
            *(_SIZE.pack(total), blank[_SIZE.size : AT_BODY_CRC], _SIZE.pack(body_crc(body))),
            *(blank[AT_BODY_CRC + _SIZE.size : AT_FLAG], _SIZE.pack(flag), after_flag),
            *(_SIZE.pack(body_bytes), body, name, _LENGTH.pack(len(properties)), properties),
        )
        sizes.append(total)
        at += size
    return b"".join(parts), sizes


def message_ids(lead: str, position: int, sizes: Sequence[int]) -> str:
    """The ids of records that lie one after the other from `position` on, with commas: each the
    `lead`, then the log offset in 16 hexadecimal digits."""
    places = accumulate(sizes[:-1], initial=position)
    return ",".join([f"{lead}{place:016X}" for place in places]) if sizes else ""
