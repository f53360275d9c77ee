"""From a message or batch in the usual form of RocketMQ's clients to its records. Pure Python.

The reference for what `compiled` makes of one, and what it calls for one that is unusual.
`remoting.plain` says what a plain message is for; the letters of its fields are those in
`remoting.fields`. `batch_records` has a twin of its own there, and `active` chooses one of both:
`remoting.batch` draws an item, and says what is wrong with one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from penstock.shared.errors import InvalidArgument
from penstock.shared.formats.properties import UNIQ_KEY, decode_properties
from penstock.shared.formats.record_crc import body_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_FLAG,
    BODY_LENGTH_BYTES,
    FIXED_HEAD,
    HOST_V4_BYTES,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_ANY_HOST_V6,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    TAIL_HEAD,
    body_span,
)
from penstock.shared.loops.forms import (
    BATCH_CODE,
    PLAIN_LEADS,
    PLAIN_MEANT,
    PlainRules,
    PlainSent,
)
from penstock.shared.names import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    check_topic,
    is_group_topic,
)

ONEWAY_FLAG = 2
_LENGTH = struct.Struct(">i")
_LEAD_END = _LENGTH.size + len(next(iter(PLAIN_LEADS)))
_MOST_HEADER_BYTES = 2 * (_LENGTH.size + MAX_PROPERTIES_BYTES)  # no plain message has a longer one
_SHORT = struct.Struct(">h")
# the fixed fields of a batch's item, apart from its body and its properties
_ITEM_HEAD = struct.Struct(">iiiii")
_ITEM_BYTES = _ITEM_HEAD.size + _SHORT.size
# digits that fit into 31 and 63 bits in any case
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
    """What a command's header may have: what a command refuses is not taken here either."""

    code: int
    extFields: _Fields  # noqa: N815 - its name
    language: str | int | None = None
    version: _Int32 | None = None
    opaque: _Int32 = 0
    flag: _Int32 | None = None
    remark: str | None = None


_header: msgspec.json.Decoder[_Header] = msgspec.json.Decoder(_Header)


def plain_sent(frame: bytes, born_host: bytes, rules: PlainRules) -> PlainSent | None:
    """What was sent in a frame, given without its total length; None if it is not plain."""
    code = PLAIN_LEADS.get(frame[_LENGTH.size : _LEAD_END])
    if code is None or len(born_host) != HOST_V4_BYTES:
        return None
    body_at = _LENGTH.size + _LENGTH.unpack_from(frame)[0]  # the form of JSON is 0
    if not _LEAD_END < body_at <= min(len(frame), _MOST_HEADER_BYTES):
        return None
    try:
        header = _header.decode(frame[_LENGTH.size : body_at])
    # the general way says what is wrong
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    fields = header.extFields
    # checked before it is cached: a client may send names of any length
    name = _stored_name(fields.b) if len(fields.b) <= MAX_TOPIC_BYTES else None
    body = frame[body_at:]
    if (
        header.code != code  # a key may come twice
        or (header.flag or 0) & ~ONEWAY_FLAG  # a response, for example
        or name is None
        or not _are_numbers(fields)
        or fields.k != "false"
        or len(body) > rules.most_body
        or int(fields.f) & (SYS_TRANSACTION_MASK | SYS_INNER_BATCH)
    ):
        return None
    made = (_batch if code == BATCH_CODE else _single)(fields, name, body, born_host, rules)
    if made is None:
        return None
    key, records, sizes = made
    is_oneway = bool((header.flag or 0) & ONEWAY_FLAG)
    said = header.opaque, is_oneway, fields.b, int(fields.e)
    return PlainSent(*said, key, records, sizes, code == BATCH_CODE)


# UNIQ_KEY, records, sizes
_Made = tuple[str, bytes, Sequence[int]]


def _single(
    fields: _Fields, name: bytes, body: bytes, born_host: bytes, rules: PlainRules
) -> _Made | None:
    text = fields.i if fields.i.endswith("\x02") else f"{fields.i}\x02"
    properties = decode_properties(text.encode())
    key = properties.get(UNIQ_KEY, "")
    raw = text.encode() + rules.added
    if (
        fields.m != "false"
        or not (key.isascii() and key.isalnum())
        or not PLAIN_MEANT.isdisjoint(properties)
        # each entry counts once: then encoding it again would give the same text
        or not len(properties) == text.count("\x01") == text.count("\x02")
        or len(raw) > MAX_PROPERTIES_BYTES
    ):
        return None
    record = _record(fields, int(fields.h), name, body, raw, born_host)
    return key, record, (len(record),)


def _batch(
    fields: _Fields, name: bytes, body: bytes, born_host: bytes, rules: PlainRules
) -> _Made | None:
    """To a broker the properties of the send mean nothing; flags are those of the items."""
    if fields.m not in ("true", "false"):
        return None
    made = batch_records(body, _record(fields, 0, name, b"", b"", born_host), rules.prop_crc)
    return ("", *made) if made is not None and made[1] else None


def _record(
    fields: _Fields, flag: int, name: bytes, body: bytes, raw: bytes, born_host: bytes
) -> bytes:
    head = FIXED_HEAD.pack(
        SMALLEST_RECORD_BYTES + len(body) + len(name) - 1 + len(raw),
        MAGIC_V1,
        body_crc(body),
        int(fields.e),
        flag,
        *(0, 0, int(fields.f) & ~SYS_ANY_HOST_V6),
        int(fields.g),
    )
    tail = TAIL_HEAD.pack(int(fields.j), 0, len(body))
    return b"".join((head, born_host, _STAMPED, tail, body, name, _SHORT.pack(len(raw)), raw))


def _are_numbers(fields: _Fields) -> bool:
    """Whether these are all digits, and no more of them than each field has room for."""
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
    """A topic as a record has it; None for one that is refused, or has a special meaning."""
    try:
        check_topic(topic)
    except InvalidArgument:
        return None
    if is_group_topic(topic):
        return None
    return bytes([len(topic)]) + topic.encode()


def batch_records(raw: bytes, common: bytes, prop_crc: bool) -> tuple[bytes, list[int]] | None:
    """The records of a batch, and the size of each; None where it does not consist of whole items,
    or an item's properties do not fit into a record.

    `common` is a record with neither body nor properties, with everything that the items share.
    With `prop_crc` each record ends in the room for its checksum.
    """
    # head in which sizes, flag and CRC are filled in; and what stands after the body
    body_at, _ = body_span(common, 0)
    blank, name = common[: body_at - BODY_LENGTH_BYTES], common[body_at:-PROPERTIES_LENGTH_BYTES]
    after_flag = blank[AT_FLAG + _LENGTH.size :]
    parts: list[bytes] = []
    sizes: list[int] = []
    at, end = 0, len(raw)
    while at < end:
        if end - at < _ITEM_BYTES:
            return None
        size, _, _, flag, body_bytes = _ITEM_HEAD.unpack_from(raw, at)
        start = at + _ITEM_HEAD.size
        if not _ITEM_BYTES <= size <= end - at or not 0 <= body_bytes <= size - _ITEM_BYTES:
            return None
        body = raw[start : start + body_bytes]
        properties_at = start + body_bytes + _SHORT.size
        (length,) = _SHORT.unpack_from(raw, properties_at - _SHORT.size)
        if properties_at + length != at + size:
            return None
        # a checksum that came along is removed: it was another record's
        properties = with_prop_crc_room(raw[properties_at : at + size], prop_crc)
        if len(properties) > MAX_PROPERTIES_BYTES:
            return None
        total = len(common) + body_bytes + len(properties)
        parts += (
            *(_LENGTH.pack(total), blank[_LENGTH.size : AT_BODY_CRC], _LENGTH.pack(body_crc(body))),
            *(blank[AT_BODY_CRC + _LENGTH.size : AT_FLAG], _LENGTH.pack(flag), after_flag),
            *(_LENGTH.pack(body_bytes), body, name, _SHORT.pack(len(properties)), properties),
        )
        sizes.append(total)
        at += size
    return b"".join(parts), sizes
