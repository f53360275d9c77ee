"""Start-up: zeroes the bytes after the log's end, and makes the log up to there durable.

The kernel reports a failed sync once, and may then take for written what it could not write. So
before a start syncs, it writes again what may be in the page cache only: `doubted_log` says what.
find_log_end.py says where the log ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.durable import (
    data_ranges,
    make_directory,
    opened,
    sync_directory,
    write_again,
    zero_from,
)
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import place_aside
from penstock.shared.log.reader import reach_bytes
from penstock.shared.memory.run_directory import Run, boot_id
from penstock.shared.recovery.empty_pool import is_named_by

# A torn tail can be as long as the segments that were made ahead. It is copied in pieces.
_COPY_BYTES = 1 << 20


def doubted_log(
    paths: StorePaths,
    config: Config,
    last_run: Run | None,
    written: range,
    from_memory: bool,
    *,
    again: bool,
) -> range:
    """Which part of the log may not be on the disk as it is read. `written` ends where the log
    does, and begins after what the checkpoint vouches for.

    What was written before this boot is read as the disk has it. For what a run of this boot wrote,
    a sync may have failed, and without that run's memory nobody knows. The same holds for zeros
    after the log's end if an earlier start has failed, which is then done `again`.

    `from_memory` says that the last run's memory was there and has told where the log ends. The
    range is one of log offsets; sys.maxsize stands for the end of the last segment.
    """
    end = written.stop
    if from_memory:
        # Emptying the pool has written the rest again. A writer zeroes what its predecessor left.
        return range(end, sys.maxsize if again else end + reach_bytes(config))
    # Either the run was of this boot and its memory is gone, or anybody may have written here in
    # this boot. Then everything that nothing vouches for is in doubt, up to the last segment.
    if last_run is None or last_run.boot_id == boot_id() or not is_named_by(paths.abort, last_run):
        return range(written.start, sys.maxsize)
    # The run was of an earlier boot, and no page of it can be left in the cache.
    return range(end, sys.maxsize if again else end)


def keep_torn(paths: StorePaths, bases: list[int], size: int, start: int, end: int) -> None:
    """Copy the log from `start` to `end` into a new file in quarantine/; durable on return.

    No copy is ever overwritten: an earlier one may be the only whole copy of a tail that a start
    has since cut in part before it died. The caller cuts only when this has returned. `bases` are
    those of all segments, in order, each of `size` bytes. Raises OSError; then a part of a copy may
    stay, which nobody reads.
    """
    make_directory(paths.quarantine)
    target = place_aside(paths, f"torn-{segment_name(start)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with opened(str(target), flags) as handle, open(handle, "wb", closefd=False) as file:
        for base in bases:
            at, stop = max(start, base), min(end, base + size)
            with opened(str(paths.commit_log / segment_name(base)), os.O_RDONLY) as segment:
                while at < stop:
                    at += file.write(read_at(segment, min(_COPY_BYTES, stop - at), at - base))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(paths.quarantine)


def cut_log(
    directory: Path, bases: list[int], size: int, start: int, end: int, doubted: range
) -> int:
    """Zero everything after the log's end. Returns how many bytes were not zero. Durable on return.

    Segments that end at or before `start`, where the scan began, are left alone: they are known
    to be good. `doubted` is written again before it is synced. Raises OSError; then a part is done,
    and the next start does all of it again.
    """
    torn = 0
    for base in bases:
        if base + size <= start:
            continue
        handle = os.open(directory / segment_name(base), os.O_RDWR)
        try:
            inside = [min(max(at - base, 0), size) for at in (doubted.start, end, doubted.stop)]
            torn += _cut_segment(handle, size, *inside)
            # Also where no byte was cut: the next run begins with `flushed` at the log's end, so
            # what a killed flusher did not get to has to be on the disk now.
            os.fdatasync(handle)
        finally:
            os.close(handle)
    return torn


def _cut_segment(handle: int, size: int, doubted_from: int, end: int, doubted_to: int) -> int:
    """Zero a segment from `end` on. Returns how many bytes were not zero. Not synced.

    Offsets are the segment's own. Up to `doubted_to`, zeros are written over zeros too. After that
    only bytes that are not zero are overwritten, since the disk has the rest as it is read.
    """
    _write_data_again(handle, doubted_from, end)
    torn = zero_from(handle, end, doubted_to, again=True)
    return torn + zero_from(handle, max(end, doubted_to), size)


def _write_data_again(handle: int, start: int, stop: int) -> None:
    """Write the same bytes to the same places, except holes. It is no change, so the file keeps its
    time, by which it expires."""
    before = os.fstat(handle)
    for data_at, hole_at in data_ranges(handle, start, stop):
        write_again(handle, data_at, hole_at)
    if start < stop:
        os.utime(handle, ns=(before.st_atime_ns, before.st_mtime_ns))
