"""Start-up: commits to the segments what the last run wrote into its pool and did not commit.

This is done only in the same boot, where shared memory is still there, and only if no other broker
has had the store since. Doing it twice, or dying half way and doing it again, ends in the same
state.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_file, write_again, write_at
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run
from penstock.shared.memory.transient_store_pool import TransientStorePool


def is_named_by(abort: Path, run: Run) -> bool:
    """Whether that run was the last to use the store: a later RocketMQ would have written its own
    pid."""
    return abort.exists() and read_file(abort) == str(run.supervisor_pid).encode()


def empty_pool(paths: StorePaths, config: Config, run: Run) -> tuple[int, int]:
    """Commit what the last run wrote. Returns its log end, and how many bytes were committed.

    The bytes are durable on return. The run's actors must be gone, and all of its segments up to
    `committed` must be there. The positions stay as they are: if this start dies, the next one
    begins at the same place, and writes the same bytes. Raises OSError.
    """
    positions = Positions(run.positions)
    wrote, committed, flushed = (positions[name] for name in ("wrote", "committed", "flushed"))
    positions.close()
    segment_bytes = config.mapped_file_size_commit_log_bytes
    # The last flush may have failed with nobody there to see the error. Then the kernel takes these
    # pages for written, and a sync alone would succeed and do nothing.
    at = flushed
    while at < committed:
        base = at - at % segment_bytes
        stop = min(committed, base + segment_bytes)
        handle = os.open(paths.commit_log / segment_name(base), os.O_RDWR)
        write_again(handle, at - base, stop - base)
        os.fdatasync(handle)
        os.close(handle)
        at = stop
    # Without a pool the writer stores into the segments themselves, and nothing is left to copy.
    if not run.pool_enabled or wrote == committed:
        return wrote, 0
    pool = TransientStorePool(run.pool)
    at = committed
    while at < wrote:
        base = at - at % segment_bytes
        path = paths.commit_log / segment_name(base)
        if not path.exists():
            make_file(paths.staging, path, segment_bytes, sparse=False)
        handle = os.open(path, os.O_RDWR)
        for piece in pool.pieces(at, min(wrote, base + segment_bytes)):
            write_at(handle, piece, at - base)
            at += len(piece)
        os.fdatasync(handle)
        os.close(handle)
        crash_point("recover.mid_pool")
    pool.close()
    return wrote, wrote - committed
