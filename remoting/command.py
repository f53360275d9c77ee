"""A command and its frame, in both forms of header. Pure functions on buffers.

    total length i32   of what follows
    header word  i32   highest byte 0: the header is JSON, 1: binary; then its length
    header, body

A binary header:

    code i16, language i8, version i16, opaque i32, flag i32
    remark length i32, remark, fields length i32, then for each field: length i16, key,
    length i32, value

Each frame says which form it has, and an answer has the form of its request. Reading accepts
whatever real clients send: fields that are numbers or booleans, unknown languages, a line feed
after the JSON. Writing makes text fields only, and always writes `extFields`, as some clients crash
without. Any input is a command or raises ProtocolError, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated

import msgspec

from penstock.remoting.codes import VERSION, Language
from penstock.shared.errors import ProtocolError

# The size of a frame without its first four bytes, as in RocketMQ.
MAX_FRAME_BYTES = 16 << 20
LENGTH = struct.Struct(">i")

RESPONSE_FLAG, ONEWAY_FLAG = 1, 2
_BINARY = 1 << 24
_HEADER_LENGTH = _BINARY - 1
_HEAD = struct.Struct(">hbhii")
_KEY_LENGTH = struct.Struct(">h")

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_LANGUAGES = {each.name: each for each in Language}
_BY_NUMBER = {int(each): each for each in Language}


class Command(msgspec.Struct, frozen=True):
    """A request or a response. `opaque` of a response is that of its request; it may be negative.

    `code` is one of `codes`, or any other number. `is_binary` is the form of the header that it
    came with, or is to have.
    """

    code: int
    opaque: int
    fields: Mapping[str, str] = {}
    body: bytes | memoryview = b""
    flag: int = 0
    remark: str = ""
    language: Language = Language.JAVA
    version: int = VERSION
    is_binary: bool = False

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer, not even for an error."""
        return bool(self.flag & ONEWAY_FLAG)


class _JsonHeader(msgspec.Struct):
    code: Int32
    language: str | int | None = None
    version: Int32 | None = None
    opaque: Int32 = 0
    flag: Int32 | None = None
    remark: str | None = None
    # clients' libraries write values in any of these types
    extFields: dict[str, str | int | float | bool | None] | None = None  # noqa: N815 - its name


_header: msgspec.json.Decoder[_JsonHeader] = msgspec.json.Decoder(_JsonHeader)
_json = msgspec.json.Encoder()


def decode_command(frame: bytes | memoryview) -> Command:
    """Decode a frame, given without its total length. Raises ProtocolError."""
    if len(frame) < LENGTH.size:
        raise _bad("a frame is too short for a header", f"{len(frame)} bytes")
    (word,) = LENGTH.unpack_from(frame)
    form, end = word >> 24, LENGTH.size + (word & _HEADER_LENGTH)
    if form not in (0, 1):
        raise _bad("a header is neither JSON nor binary", f"its form is {form}")
    if end > len(frame):
        raise _bad("a header does not end inside its frame", f"{end} of {len(frame)} bytes")
    header, body = bytes(frame[LENGTH.size : end]), bytes(frame[end:])
    try:
        return _decode_binary(header, body) if form else _decode_json(header, body)
    # besides its own errors msgspec lets UnicodeDecodeError and RecursionError through, and a
    # number of many digits is a ValueError
    except (msgspec.MsgspecError, ValueError, RecursionError, struct.error) as error:
        raise _bad("a header cannot be read", str(error)[:200]) from None


def _decode_json(header: bytes, body: bytes) -> Command:
    found = _header.decode(header)
    language = found.language
    known = (
        _BY_NUMBER.get(language) if isinstance(language, int) else _LANGUAGES.get(language or "")
    )
    fields = {
        key: value if isinstance(value, str) else _text(value)
        for key, value in (found.extFields or {}).items()
        if value is not None
    }
    return Command(
        found.code,
        found.opaque,
        fields,
        body,
        found.flag or 0,
        found.remark or "",
        Language.OTHER if known is None else known,
        found.version or 0,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag = _HEAD.unpack_from(header)
    remark, at = _piece(header, _HEAD.size, LENGTH)
    block, end = _piece(header, at, LENGTH)
    if end != len(header):
        raise ValueError("it goes on after its fields")
    fields, at = {}, 0
    while at < len(block):
        key, at = _piece(block, at, _KEY_LENGTH)
        value, at = _piece(block, at, LENGTH)
        fields[key.decode()] = value.decode()
    known = _BY_NUMBER.get(language, Language.OTHER)
    return Command(code, opaque, fields, body, flag, remark.decode(), known, version, True)


def _piece(buffer: bytes, at: int, length: struct.Struct) -> tuple[bytes, int]:
    """The bytes at `at` that a length precedes, and where they end."""
    (size,) = length.unpack_from(buffer, at)
    start = at + length.size
    if not 0 <= size <= len(buffer) - start:
        raise ValueError(f"a length is {size}, and {len(buffer) - start} bytes are left")
    return buffer[start : start + size], start + size


def encode_command(command: Command) -> bytes:
    """The whole frame, with its total length."""
    return encode_head(command, len(command.body)) + command.body


def encode_head(command: Command, body_bytes: int) -> bytes:
    """All of a frame before a body of this size: so the body need not be copied.

    A code of more than 16 bits does not fit a binary header, nor does a very long key: such a
    command gets a JSON header. Raises ProtocolError for what fits neither.
    """
    is_binary = command.is_binary and -(1 << 15) <= command.code < 1 << 15
    is_binary = is_binary and all(len(key) < 1 << 13 for key in command.fields)
    header = _encode_binary(command) if is_binary else _encode_json(command)
    if len(header) > _HEADER_LENGTH:
        raise _bad(f"a header is longer than {_HEADER_LENGTH} bytes", f"{len(header)} bytes")
    word = len(header) | (_BINARY if is_binary else 0)
    return (
        LENGTH.pack(LENGTH.size + len(header) + body_bytes) + word.to_bytes(LENGTH.size, "big")
    ) + header


def _encode_json(command: Command) -> bytes:
    header: dict[str, object] = {
        "code": command.code,
        "language": command.language.name,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
    }
    if command.remark:
        header["remark"] = command.remark
    return _json.encode(header | {"extFields": command.fields})


def _encode_binary(command: Command) -> bytes:
    remark = command.remark.encode()
    block = bytearray()
    for key, value in command.fields.items():
        name, text = key.encode(), value.encode()
        block += _KEY_LENGTH.pack(len(name)) + name + LENGTH.pack(len(text)) + text
    head = _HEAD.pack(command.code, command.language, command.version, command.opaque, command.flag)
    sizes = LENGTH.pack(len(remark)), LENGTH.pack(len(block))
    return head + sizes[0] + remark + sizes[1] + block


def _text(value: int | float | bool) -> str:
    """A field as text, as JSON writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad(what: str, value: str) -> ProtocolError:
    return ProtocolError(what, value)
