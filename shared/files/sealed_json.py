"""A JSON object with a checksum of itself, as its last member: ..., "crc":"1f0a44b2"}.

For files whose numbers decide what is served or deleted. A digit that has become another one leaves
them good JSON, so a decoder says nothing. Any reader of JSON reads them. What has no seal is of an
older version, and believed.
"""

from __future__ import annotations

import re
import zlib

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"}$')


def sealed(raw: bytes) -> bytes:
    """An encoded object, which has members, with its seal."""
    return raw[:-1] + b',"crc":"%08x"}' % zlib.crc32(raw)


def is_bent(raw: bytes) -> bool:
    """Whether a seal says that other bytes were written."""
    seal = _SEAL.search(raw)
    return seal is not None and zlib.crc32(raw[: seal.start()] + b"}") != int(seal[1], 16)
