"""Where a log is cut into parts, for a check, a job or a query: at segments, and at records.

A cut is found by a record's own log offset and checksum. A body may hold a copy of a record that
names the very place at which it stands; so the walk of the part before a cut must end there, and
where it does not, both parts are walked again as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.record_check import Kind
from penstock.shared.log.scan import scan
from penstock.shared.store.directory import StoreDirectory

# Of the log in one task, about.
PART_BYTES = 128 << 20


def cuts_of(store: StoreDirectory, part_bytes: int) -> Iterator[int]:
    """Where parts begin: with segments, and at the first record after a number of bytes."""
    files = FileCache()
    try:
        for segment in store.segments:
            at = segment.base
            yield at
            for place in range(
                segment.base + part_bytes, segment.end - part_bytes // 2, part_bytes
            ):
                found = _record_after(files, store, place)
                if found is None:
                    break
                if found > at:
                    at = found
                    yield at
    finally:
        files.close()


def _record_after(files: FileCache, store: StoreDirectory, place: int) -> int | None:
    """The first whole record at or after a place of a segment; None: there is none in it."""
    for at, found, *_ in scan(files, [store.segment_of(place)], place):
        if found is Kind.RECORD:
            return at
    return None


def costs_of(store: StoreDirectory, cuts: Sequence[int]) -> list[int]:
    """Bytes of each part; where a segment is missing its neighbour's are too many."""
    stops = [*cuts[1:], store.files_end]
    return [stop - start for start, stop in zip(cuts, stops, strict=True)]
