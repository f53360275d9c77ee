"""Records that a pull has found: as the payload of an answer, or as places to read them from.

Pure: whoever found the records has made the views of segments. A consumer on this machine may read
the log itself, which pays where much lies together. The reader decides, as it sees the ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.shared.loops.active import gather
from penstock.shared.loops.forms import RANGE
from penstock.shared.wire.pulled_parts import Place

# For fewer bytes, opening a file does not pay.
LEAST_DIRECT_BYTES = 64 << 10
# The least mean size. Each range is a system call: shorter ones come faster through the socket.
LEAST_RANGE_BYTES = 8 << 10


class FoundRecords(NamedTuple):
    """Records in one segment of the log: the segment, where it begins, and ranges of it."""

    segment: memoryview
    base: int
    ranges: bytes  # packed: see `pure.ranges`
    size: int
    # whether it is a copy: the records may not be in the segment's file yet, so no places are given
    is_copy: bool = False


NOTHING = FoundRecords(memoryview(b""), -1, b"", 0)


def piece_of(found: Sequence[FoundRecords]) -> memoryview | bytes:
    """All that was found, in order: a view of the log, or a copy if it is scattered."""
    if len(found) == 1 and len(found[0].ranges) == RANGE.size:
        segment, base, ranges = found[0][:3]
        start, stop = RANGE.unpack(ranges)
        return segment[start - base : stop - base]
    return gather([each[:3] for each in found])


def places_of(found: Sequence[FoundRecords]) -> tuple[Place, ...]:
    """Where to read the records; () if they are too few bytes for that, or too scattered."""
    if any(each.is_copy for each in found):
        return ()
    places = tuple(Place(each.base, len(each.ranges) // RANGE.size) for each in found)
    least = max(LEAST_DIRECT_BYTES, LEAST_RANGE_BYTES * sum(each.ranges for each in places))
    return places if sum(each.size for each in found) >= least else ()


def ranges_of(found: Sequence[FoundRecords]) -> bytes:
    """The payload of an answer that names places."""
    return b"".join(each.ranges for each in found)
