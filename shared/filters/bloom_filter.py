"""The bloom filter of RocketMQ's consumer filters: the bits that stand for a group on a topic.

RocketMQ sizes it by its configuration, 20 % error and 32 consumers by default, which makes 112 bits
and 3 positions. A position is `h1 + i * h2` for i from 1, from the two 32-bit halves of guava's
murmur3_128 of `group#topic`. Tests compare both with RocketMQ's own classes. Penstock does not use
the bits itself; they stand in consumerFilter.json for a RocketMQ that reads the file.
"""

from __future__ import annotations

BITS = 112
POSITIONS = 3

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def bit_positions(group: str, topic: str) -> list[int]:
    """The bits of a group on a topic: POSITIONS numbers below BITS, in RocketMQ's order; two may
    be equal."""
    hash64 = murmur3_low(f"{group}#{topic}".encode("utf-8", "replace"))
    first, second = hash64 & 0xFFFFFFFF, hash64 >> 32
    found = []
    for number in range(1, POSITIONS + 1):
        # guava computes in a Java int, which overflows
        combined = (first + number * second) & 0xFFFFFFFF
        # guava inverts a negative Java int, where other code takes the absolute value
        if combined & 0x80000000:
            combined ^= 0xFFFFFFFF
        found.append(combined % BITS)
    return found


def murmur3_low(raw: bytes) -> int:
    """The first 64 bits of murmur3's 128-bit x64 hash, with seed 0."""
    h1 = h2 = 0
    whole = len(raw) - len(raw) % 16
    for at in range(0, whole, 16):
        k1 = int.from_bytes(raw[at : at + 8], "little")
        k2 = int.from_bytes(raw[at + 8 : at + 16], "little")
        h1 = _rotated(h1 ^ _first(k1), 27)
        h1 = ((h1 + h2) * 5 + 0x52DCE729) & _MASK
        h2 = _rotated(h2 ^ _second(k2), 31)
        h2 = ((h2 + h1) * 5 + 0x38495AB5) & _MASK
    # Missing bytes count as zeros, and a half of zeros leaves its word as it is. So the
    # reference code's case for each length of the tail is not needed.
    tail = raw[whole:]
    h1 ^= _first(int.from_bytes(tail[:8], "little")) ^ len(raw)
    h2 ^= _second(int.from_bytes(tail[8:], "little")) ^ len(raw)
    h1 = (h1 + h2) & _MASK
    # the reference code's last step would add h1 to h2, which is not part of the result
    h2 = (h2 + h1) & _MASK
    return (_mixed(h1) + _mixed(h2)) & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & _MASK


def _first(k1: int) -> int:
    return _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _second(k2: int) -> int:
    return _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
