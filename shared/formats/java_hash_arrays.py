"""Java's String.hashCode of many texts at once, as an array. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.shared.formats.java_hash import string_hash

# What is hashed in one go: small enough for the processor's cache.
_CHUNK_BYTES = 1 << 16


def string_hashes(texts: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """`string_hash` of many UTF-8 texts; bytes that are not UTF-8 count as U+FFFD, as in Java."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths)
    joined = b"".join(texts)
    units = np.frombuffer(joined, np.uint8)
    codes = np.empty(len(texts), np.uint32)
    first, base = 0, 0
    while first < len(texts):
        last = max(int(np.searchsorted(ends, base + _CHUNK_BYTES, "right")), first + 1)
        stop = int(ends[last - 1])
        if stop - base <= _CHUNK_BYTES:
            starts = ends[first:last] - lengths[first:last] - base
            codes[first:last] = _hash_spans(units[base:stop], starts, ends[first:last] - base)
        else:
            codes[first] = string_hash(_text(texts[first])) & 0xFFFFFFFF
        first, base = last, stop
    if not joined.isascii():
        for number, text in enumerate(texts):
            if not text.isascii():
                codes[number] = string_hash(_text(text)) & 0xFFFFFFFF
    return codes.view(np.int32)


def _hash_spans(
    units: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """The hashes of the spans of a chunk, whatever their lengths, without a loop over them.

    31 is odd, so it has an inverse modulo 2^32. With unit p weighted by 31^-p, a span's sum is a
    difference of two running sums, and 31^(end-1) makes it the span's hash.
    """
    powers, inverses = _weights()
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[: len(units)], dtype=np.uint32, out=sums[1:])
    hashes: npt.NDArray[np.uint32] = (sums[ends] - sums[starts]) * powers[ends - 1]
    return hashes


@lru_cache(maxsize=1)
def _weights() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """31^p and 31^-p modulo 2^32, for every place in a chunk."""

    def powers(of: int) -> npt.NDArray[np.uint32]:
        factors = np.full(_CHUNK_BYTES, of, np.uint32)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint32)

    return powers(31), powers(pow(31, -1, 1 << 32))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
