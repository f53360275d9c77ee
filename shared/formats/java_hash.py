"""Java's String.hashCode, which RocketMQ stores on disk (tag codes, index keys) and routes by.

One text at a time; many at once are hashed in string_hashes.py. Pure functions.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65536)
def string_hash(text: str) -> int:
    """`h = 31 * h + unit` over UTF-16 code units, as a signed 32-bit number."""
    code = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def shard_queue(shard: str, queue_count: int) -> int:
    """The queue a sharding key belongs to, chosen as RocketMQ's hash selector does."""
    code = abs(string_hash(shard))
    # Java's abs(-2**31) stays negative, and its selector then takes the absolute remainder
    return abs(code) % queue_count
