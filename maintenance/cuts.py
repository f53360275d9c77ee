"""Where a log is cut into parts, for a check, a job or a query: at segments, and at records.

A record at a cut is recognised by its own log offset and checksum. A body may contain a copy of a
record that names the very place at which it stands. So the walk of the part before a cut must end
there; if it does not, both parts are walked again as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Segment
from penstock.shared.formats.record_check import Kind
from penstock.shared.log.scan import scan_runs
from penstock.shared.store.directory import StoreDirectory

# About this much of the log for one task.
PART_BYTES = 128 << 20
# Bytes that are read at a time in search of a record: most records are shorter.
_LOOK_BYTES = 32 << 10


def cuts_of(store: StoreDirectory, part_bytes: int, start: int = 0) -> Iterator[int]:
    """Where parts begin: at each segment, and at the first record after `part_bytes` more. The
    first place is `start`, where a record begins, unless that is before the log."""
    files = FileCache()
    bases = [segment.base for segment in store.segments]
    try:
        for segment, following in zip_longest(store.segments, bases[1:]):
            # a file that is too long does not hide the beginning of the next one
            end = segment.end if following is None else min(segment.end, following)
            if end <= start:
                continue
            at = max(segment.base, start)
            yield at
            for place in range(at + part_bytes, end - part_bytes // 2, part_bytes):
                if place <= at:
                    continue  # no record begins between this place and the last cut
                found = _record_after(files, segment, place)
                if found is None or found >= end:
                    break
                at = found
                yield at
    finally:
        files.close()


def _record_after(files: FileCache, segment: Segment, place: int) -> int | None:
    """The first whole record at or after a place in a segment; None if there is none."""
    for run in scan_runs(files, [segment], place, window_bytes=_LOOK_BYTES):
        if run.found is Kind.RECORD:
            return run.position
    return None


def parts_of(store: StoreDirectory, part_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where parts begin and end. Each is in one segment, and ends with it or at the next part."""
    cuts = cuts_of(store, part_bytes, start)
    at = next(cuts, None)
    while at is not None:
        following, end = next(cuts, None), store.segment_of(at).end
        yield at, end if following is None else min(end, following)
        at = following


def between(cuts: Sequence[int]) -> list[tuple[int, int | None]]:
    """The start and end of each part, which ends at the next cut; the last one ends with the log:
    None. A log without a segment has neither cuts nor parts."""
    return [*pairwise(cuts), *((last, None) for last in cuts[-1:])]


def costs_of(store: StoreDirectory, cuts: Sequence[int]) -> list[int]:
    """Bytes of each part; before a missing segment the number is too large."""
    end = store.files_end
    return [(end if stop is None else stop) - start for start, stop in between(cuts)]
