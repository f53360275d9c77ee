"""Compressed bodies as RocketMQ's clients make them: zlib, LZ4 and Zstandard.

    bit 0 of sysFlag      the body is compressed
    bits 8-10             0 zlib (up to RocketMQ 4), 1 LZ4, 2 Zstandard, 3 zlib

LZ4 is its frame format with independent blocks, the only one that RocketMQ's Java library reads.
The store never compresses, and checksums cover the compressed bytes. The size of a body is limited
during decompression, because a few bytes can expand to gigabytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

from isal import isal_zlib

from penstock.shared.errors import InvalidArgument, UnreadableBody
from penstock.shared.formats.record_layout import SYS_COMPRESSED

# A body may expand to this many bytes by default: 16 times RocketMQ's largest.
MAX_BODY_BYTES = 64 << 20

SYS_COMPRESSION_MASK = 0x700
_ZLIB_LEGACY, _LZ4, _ZSTD, _ZLIB = 0x000, 0x100, 0x200, 0x300
_ZLIB_LEVEL = 1  # isal has four: output within 2 % of zlib's default, in a seventh of its time


class _Decompressor(Protocol):
    """What the three libraries' decompressors have in common: a limit on the output of one call,
    and `eof`, which tells a whole body from one that is cut off."""

    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


_NAMES = {_ZLIB_LEGACY: "zlib", _LZ4: "lz4", _ZSTD: "zstd", _ZLIB: "zlib"}
# Bits to write. zlib gets explicit ones, as in RocketMQ 5, although no bits would mean zlib, too.
_FLAGS = {"zlib": _ZLIB, "lz4": _LZ4, "zstd": _ZSTD}


class _Codec(NamedTuple):
    """How to compress and decompress bodies, and what the decompressor raises."""

    compress: Callable[[bytes], bytes]
    decompressor: Callable[[], _Decompressor]
    error: Any


@cache
def _codec(name: str) -> _Codec:
    """The codec of this name, imported at its first use: most clients need none of them, and all
    would pay for the imports at their start."""
    if name == "zlib":
        return _Codec(
            lambda body: isal_zlib.compress(body, _ZLIB_LEVEL),
            isal_zlib.decompressobj,
            isal_zlib.error,
        )
    if name == "lz4":
        import lz4.frame

        # LZ4 has no error of its own: the library raises RuntimeError for invalid data.
        return _Codec(
            lambda body: lz4.frame.compress(body, block_linked=False),
            lz4.frame.LZ4FrameDecompressor,
            RuntimeError,
        )
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return _Codec(zstd.compress, zstd.ZstdDecompressor, zstd.ZstdError)


def check_compression(name: str | None) -> str | None:
    """The name of a compression, or None for none. Raises InvalidArgument."""
    if name is not None and (not isinstance(name, str) or name not in _FLAGS):
        raise InvalidArgument(
            "there is no such compression",
            repr(name),
            f"choose one of {', '.join(_FLAGS)}, or None",
        )
    return name


def compression_of(sys_flag: int) -> str | None:
    """How the body of a record with this sysFlag is compressed. Raises UnreadableBody."""
    if not sys_flag & SYS_COMPRESSED:
        return None
    name = _NAMES.get(sys_flag & SYS_COMPRESSION_MASK)
    if name is None:
        raise UnreadableBody(
            "the body is compressed in a way that is not known here",
            f"sysFlag {sys_flag:#x}",
            "known are zlib, lz4 and zstd; message.stored_body has the bytes as they are",
        )
    return name


def compress(name: str, body: bytes) -> tuple[bytes, int]:
    """(the compressed body, its bits of sysFlag), or (the body, 0) if that is not longer.

    A body that does not become smaller is stored as it is. So compression never makes a record
    longer, and one that fits as it was sent also fits as it is stored.
    """
    made = _codec(name).compress(body)
    return (made, SYS_COMPRESSED | _FLAGS[name]) if len(made) < len(body) else (body, 0)


def decompress(stored: bytes, sys_flag: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The original body of a record's stored bytes.

    Raises UnreadableBody for bytes that are damaged, cut off, or that expand to more than
    `max_bytes`. A body that is not compressed is returned whatever its size, since it is in memory
    already.
    """
    name = compression_of(sys_flag)
    if name is None:
        return stored
    codec = _codec(name)
    stream = codec.decompressor()
    try:
        # one byte more than allowed: that shows whether there is more
        body = stream.decompress(stored, max_bytes + 1)
    except codec.error as error:
        raise _damaged(name, str(error)) from None
    # First, because a stream that was stopped at the limit has not reached its end either.
    if len(body) > max_bytes:
        raise UnreadableBody(
            f"the body has more than {max_bytes} bytes when it is decompressed",
            f"from {len(stored)} bytes of {name}",
            "allow more with Consumer(max_body_bytes=...), or read message.stored_body",
        )
    if not stream.eof:
        raise _damaged(name, "it is cut off")
    return body


def _damaged(name: str, reason: str) -> UnreadableBody:
    return UnreadableBody(
        f"the body cannot be decompressed as {name}",
        reason,
        "the bytes as they are stored can still be read: message.stored_body",
    )
