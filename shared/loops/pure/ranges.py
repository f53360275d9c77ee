"""The reader's loops: queue entries to ranges of the log, and ranges to one piece. Pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. Damage may have turned an entry into anything, so its offset and size
are not trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.loops.forms import RANGE, Ranges

# what an entry begins with
_OFFSET = struct.Struct(">q")


def log_ranges(raw: bytes, max_bytes: int, segment_bytes: int) -> Ranges:
    """Where the records of the first entries are, about `max_bytes` of them but at least one.

    Ends before an entry that leads to another segment than the first, because an answer is sent
    from one mapping; before one without a size; and before one that leads to the same record as the
    next, since one of the two is a lost message's. If an entry's record reaches past the segment's
    end, the part beyond is left out. Blank entries have no record.
    """
    base, size, taken = -1, 0, 0
    ranges = bytearray()
    run_at = run_end = end = -1
    for number, (offset, length, _) in enumerate(ENTRY.iter_unpack(raw), 1):
        # A blank entry has no record but counts as taken, so that the consumer goes on after it.
        if length != BLANK_SIZE:
            if length <= 0 or offset < 0 or base >= 0 and not base <= offset < end:
                break
            if raw.startswith(_OFFSET.pack(offset), number * ENTRY.size):
                break
            # never before the first: a consumer with less room than that would wait forever
            if base >= 0 and max_bytes - size < length:
                break
            if base < 0:
                base = offset - offset % segment_bytes
                end = min(base + segment_bytes, (1 << 63) - 1)
            if offset != run_end:
                if run_at >= 0:
                    ranges += RANGE.pack(run_at, run_end)
                run_at = offset
            run_end = min(offset + length, end)
            size += run_end - offset
        taken += 1
    if run_at >= 0:
        ranges += RANGE.pack(run_at, run_end)
    return Ranges(base, bytes(ranges), size, taken)


def gather(found: Sequence[tuple[memoryview, int, bytes]]) -> bytes:
    """The bytes of ranges, joined, from (a segment, its log offset, its ranges).

    Raises ValueError for a range that is not in its segment.
    """
    # views, so that scattered ranges are copied only once, into the piece that is sent
    pieces = []
    for view, base, ranges in found:
        for start, stop in RANGE.iter_unpack(ranges):
            if not base <= start <= stop <= base + len(view):
                raise ValueError(f"{start} to {stop} is in a segment at {base} of {len(view)}")
            pieces.append(view[start - base : stop - base])
    return b"".join(pieces)
