"""The gateway's loop: a message as nearly all of RocketMQ's clients send it, to its record. Pure
Python.

The twin of what `compiled` has under this name, and the reference for both; `active` chooses the
one that a process uses. `remoting.plain` says what a plain message is for; the letters of its
fields are those of `remoting.fields`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated

import msgspec

from penstock.shared.errors import InvalidArgument
from penstock.shared.formats.properties import UNIQ_KEY, decode_properties
from penstock.shared.formats.record_crc import body_crc
from penstock.shared.formats.record_layout import (
    FIXED_HEAD,
    HOST_V4_BYTES,
    MAGIC_V1,
    SMALLEST_RECORD_BYTES,
    SYS_ANY_HOST_V6,
    SYS_TRANSACTION_MASK,
    TAIL_HEAD,
)
from penstock.shared.loops.forms import PLAIN_CODE, PLAIN_LEAD, PLAIN_MEANT, PlainSend
from penstock.shared.names import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    check_topic,
    is_group_topic,
)

ONEWAY_FLAG = 2
_LENGTH = struct.Struct(">i")
_LEAD_END = _LENGTH.size + len(PLAIN_LEAD)
_MOST_HEADER_BYTES = 2 * (_LENGTH.size + MAX_PROPERTIES_BYTES)  # a longer one is not of this kind
_SIZE = struct.Struct(">H")
# so that no number is too large for 31 or 63 bits
_INT_DIGITS, _LONG_DIGITS = 9, 18
# storeTimestamp and storeHost, which the broker stamps
_STAMPED = bytes(8 + HOST_V4_BYTES)

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class _Fields(msgspec.Struct):
    """The texts of a send."""

    b: str
    e: str
    f: str
    g: str
    h: str
    i: str
    a: str
    c: str
    d: str
    j: str = "0"
    k: str = "false"
    l: str = "0"  # noqa: E741 - its name
    m: str = "false"


class _Header(msgspec.Struct):
    """What a command takes in a header: one that it refuses is not taken here either."""

    code: int
    extFields: _Fields  # noqa: N815 - its name
    language: str | int | None = None
    version: _Int32 | None = None
    opaque: _Int32 = 0
    flag: _Int32 | None = None
    remark: str | None = None


_header: msgspec.json.Decoder[_Header] = msgspec.json.Decoder(_Header)


def plain_send(frame: bytes, born_host: bytes, added: bytes, most_body: int) -> PlainSend | None:
    """The message of a frame, which is without its total length; None where it is not plain.

    `added` is what the broker adds to its properties, and its body has at most `most_body` bytes.
    """
    if frame[_LENGTH.size : _LEAD_END] != PLAIN_LEAD or len(born_host) != HOST_V4_BYTES:
        return None
    body_at = _LENGTH.size + _LENGTH.unpack_from(frame)[0]  # the form of JSON is 0
    if not _LEAD_END < body_at <= min(len(frame), _MOST_HEADER_BYTES):
        return None
    try:
        header = _header.decode(frame[_LENGTH.size : body_at])
    # to say what is wrong is for the general way
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    fields = header.extFields
    # before it is kept: a client may send names of any length
    name = _stored_name(fields.b) if len(fields.b) <= MAX_TOPIC_BYTES else None
    text = fields.i if fields.i.endswith("\x02") else f"{fields.i}\x02"
    properties = decode_properties(text.encode())
    key = properties.get(UNIQ_KEY, "")
    body = frame[body_at:]
    if (
        header.code != PLAIN_CODE  # a key may come twice
        or (header.flag or 0) & ~ONEWAY_FLAG  # a response, for example
        or name is None
        or not _are_numbers(fields)
        or not (fields.k == fields.m == "false")
        or not (key.isascii() and key.isalnum())
        or not PLAIN_MEANT.isdisjoint(properties)
        # every entry counts once: it is written as it would be written again
        or not len(properties) == text.count("\x01") == text.count("\x02")
        or len(body) > most_body
    ):
        return None
    sys_flag = int(fields.f) & ~SYS_ANY_HOST_V6
    raw = text.encode() + added
    if sys_flag & SYS_TRANSACTION_MASK or len(raw) > MAX_PROPERTIES_BYTES:
        return None
    queue_id = int(fields.e)
    head = FIXED_HEAD.pack(
        SMALLEST_RECORD_BYTES + len(body) + len(name) - 1 + len(raw),
        MAGIC_V1,
        body_crc(body),
        queue_id,
        int(fields.h),
        *(0, 0, sys_flag),
        int(fields.g),
    )
    tail = TAIL_HEAD.pack(int(fields.j), 0, len(body))
    parts = head, born_host, _STAMPED, tail, body, name, _SIZE.pack(len(raw)), raw
    is_oneway = bool((header.flag or 0) & ONEWAY_FLAG)
    return header.opaque, is_oneway, fields.b, queue_id, key, b"".join(parts)


def _are_numbers(fields: _Fields) -> bool:
    """Whether they can be nothing else: digits, and no more of them than a field has room for."""
    ints = fields.d, fields.e, fields.f, fields.h, fields.j, fields.l
    digits = "".join((*ints, fields.g))
    return (
        digits.isdigit()
        and digits.isascii()
        and all(map(_is_int, map(len, ints)))
        and 0 < len(fields.g) <= _LONG_DIGITS
    )


_is_int = range(1, _INT_DIGITS + 1).__contains__


@lru_cache(maxsize=4096)
def _stored_name(topic: str) -> bytes | None:
    """A topic as a record has it; None for one that is refused, or means more than others."""
    try:
        check_topic(topic)
    except InvalidArgument:
        return None
    if is_group_topic(topic):
        return None
    return bytes([len(topic)]) + topic.encode()
