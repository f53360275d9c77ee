"""How long something takes, counted in buckets that shared memory can hold.

Four buckets for each doubling, from 16 us to 16 s, so the error is at most a fifth. The first
bucket also has what is shorter, the last what is longer. Pure functions on numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS = 80
# the first bucket begins at 2**14 ns
_SHORTEST_BITS = 14


def bucket_of(duration_ns: int) -> int:
    """The bucket that counts a duration."""
    bits = max(duration_ns, 1).bit_length() - 1
    quarter = duration_ns >> (bits - 2) & 3 if bits >= 2 else 0
    return min(max(4 * (bits - _SHORTEST_BITS) + quarter, 0), BUCKETS - 1)


def upper_ns(bucket: int) -> int:
    """Durations in a bucket are shorter than this, except in the last: that has no upper end."""
    bits, quarter = divmod(bucket, 4)
    return (5 + quarter) << (bits + _SHORTEST_BITS - 2)


def quantile_ns(counts: Sequence[int], share: float) -> int | None:
    """A duration that `share` of those counted do not exceed; None where none was counted."""
    total = sum(counts)
    if total <= 0:
        return None
    left = share * total
    for bucket, count in enumerate(counts):
        left -= count
        if count and left <= 0:
            return upper_ns(bucket)
    return upper_ns(BUCKETS - 1)
