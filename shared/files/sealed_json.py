"""A JSON object with a checksum of itself, as its last member: ..., "crc":"1f0a44b2"}.

For files whose numbers decide what is served or deleted. A digit that has become another one leaves
them good JSON, so a decoder says nothing. Any reader of JSON reads them. What has no seal is of an
older version, and believed.
"""

from __future__ import annotations

import re
import zlib
from typing import TypeVar

import msgspec

_T = TypeVar("_T")
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"}$')


class NotAsWritten(ValueError):
    """These bytes are not what was written; the text says how that is known."""


def sealed(raw: bytes) -> bytes:
    """An encoded object, which has members, with its seal."""
    return raw[:-1] + b',"crc":"%08x"}' % zlib.crc32(raw)


def unsealed(raw: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """The object, without its seal. Raises NotAsWritten."""
    seal = _SEAL.search(raw)
    if seal is not None and zlib.crc32(raw[: seal.start()] + b"}") != int(seal[1], 16):
        raise NotAsWritten("its checksum does not fit")
    try:
        return decoder.decode(raw)
    # msgspec lets the last two through
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAsWritten(str(error)) from error
