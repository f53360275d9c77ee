"""Java's String.hashCode, which RocketMQ stores on disk (tag codes, index keys) and routes by.

Pure functions. The ones that need numpy import it: all others are used by processes that must not
wait for its import when they start.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Bytes that are hashed in one go: few enough for the processor's cache.
_CHUNK_BYTES = 1 << 16


# tags and sharding keys recur, and a loop over characters is slow in Python
@lru_cache(maxsize=65536)
def string_hash(text: str) -> int:
    """`h = 31 * h + unit` over UTF-16 code units, as a signed 32-bit number.

    A lone surrogate is a unit like any other, as in Java.
    """
    code = 0
    # in ASCII a byte is a unit, which saves taking pairs apart: nearly all tags and keys are ASCII
    if text.isascii():
        for unit in text.encode("ascii"):
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def shard_queue(shard: str, queue_count: int) -> int:
    """The queue of a sharding key, chosen as by RocketMQ's hash selector.

    So a key's messages go to one queue, whichever of the two sends them. If the topic gets more
    queues, a key's queue may change.
    """
    code = abs(string_hash(shard))
    # Java's abs(-2**31) stays negative, and its selector then takes the absolute remainder
    return abs(code) % queue_count


def string_hashes(texts: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """`string_hash` of many UTF-8 texts; bytes that are not UTF-8 count as U+FFFD, as in Java."""
    import numpy as np

    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths)
    joined = b"".join(texts)
    units = np.frombuffer(joined, np.uint8)
    codes = np.empty(len(texts), np.uint32)
    first, base = 0, 0
    while first < len(texts):
        # at least one text: a text that is longer than a chunk would otherwise never be passed
        last = max(int(np.searchsorted(ends, base + _CHUNK_BYTES, "right")), first + 1)
        stop = int(ends[last - 1])
        if stop - base <= _CHUNK_BYTES:
            starts = ends[first:last] - lengths[first:last] - base
            codes[first:last] = _hash_spans(units[base:stop], starts, ends[first:last] - base)
        else:
            codes[first] = string_hash(_text(texts[first])) & 0xFFFFFFFF
        first, base = last, stop
    # Above, each byte counted as a unit, which is wrong beyond ASCII. Such texts are hashed again
    # by the plain rule; a batch without any costs only one check.
    if not joined.isascii():
        for number, text in enumerate(texts):
            if not text.isascii():
                codes[number] = string_hash(_text(text)) & 0xFFFFFFFF
    return codes.view(np.int32)


def _hash_spans(
    units: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """The hashes of the spans of a chunk, of any lengths, without a loop over them.

    31 is odd, so it has an inverse modulo 2^32. If unit p is weighted by 31^-p, a span's sum is the
    difference of two running sums, and 31^(end-1) makes it the span's hash.
    Everything is modulo 2^32, so overflow is intended. An empty span at 0 takes the weight at index
    -1, times a sum of 0.
    """
    import numpy as np

    powers, inverses = _weights()
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[: len(units)], dtype=np.uint32, out=sums[1:])
    hashes: npt.NDArray[np.uint32] = (sums[ends] - sums[starts]) * powers[ends - 1]
    return hashes


@lru_cache(maxsize=1)
def _weights() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """31^p and 31^-p modulo 2^32, for every position in a chunk."""
    import numpy as np

    def powers(of: int) -> npt.NDArray[np.uint32]:
        factors = np.full(_CHUNK_BYTES, of, np.uint32)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint32)

    return powers(31), powers(pow(31, -1, 1 << 32))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
