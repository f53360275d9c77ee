"""Start-up of the consume queues: cut what the reput will write again, and fill the queue table.

Entries of records before `dispatch_from` are known to be on disk. What stands behind them may have
holes after a power failure, so it goes, and the reput puts it there again from the log. What a
start that failed has cut may be so in the page cache only: it is cut again.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.consume_queue import ENTRY
from penstock.shared.durable_files import drop_empty_last, sync_directory, zero_from
from penstock.shared.faults import crash_point
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths, segment_name
from penstock.shared.mapped_file_queue import segment_bases
from penstock.shared.queue_table import QueueKey, QueueTable
from penstock.shared.store_directory import StoreDirectory


def recover_queues(
    paths: StorePaths,
    config: Config,
    good_to: int | None,
    table: QueueTable,
    *,
    again: bool = False,
) -> int:
    """Cut the queues at the log offset `good_to`, None to leave them; how many there are.

    Raises StoreDamaged, naming the file, for a segment that is not one.
    """
    with StoreDirectory(paths.root) as store:
        directories = [(queue.topic, queue.queue_id, queue.directory) for queue in store.queues()]
    for _, _, directory in directories:
        drop_empty_last(directory)
        bases = segment_bases(directory, config.mapped_file_size_consume_queue_bytes)
        if good_to is not None:
            _cut(directory, bases, config.mapped_file_size_consume_queue_bytes, good_to, again)
            crash_point("recover.mid_cq_fix")
    count = 0
    with StoreDirectory(paths.root) as store:
        for queue in store.queues():
            if queue.segments:
                key = QueueKey(queue.topic, queue.queue_id)
                table.add(count, key, queue.min_offset, queue.max_offset)
                count += 1
    return count


def _cut(directory: Path, bases: list[int], size: int, good_to: int, again: bool) -> None:
    """Remove entries of records at or behind `good_to`, and whatever stands after them."""
    if again or not bases:  # who removed the files of an empty one may have died before this
        sync_directory(directory)
    for base in reversed(bases):
        path = directory / segment_name(base)
        handle = os.open(path, os.O_RDWR)
        try:

            def gone(slot: int, handle: int = handle) -> bool:
                offset, length, _ = ENTRY.unpack(
                    os.pread(handle, CQ_ENTRY_BYTES, slot * CQ_ENTRY_BYTES)
                )
                return bool(offset < 0 or length <= 0 or offset >= good_to)

            kept = bisect_left(range(size // CQ_ENTRY_BYTES), True, key=gone)
            if kept:
                if zero_from(handle, kept * CQ_ENTRY_BYTES, size, again=again) or again:
                    os.fdatasync(handle)
                return
        finally:
            os.close(handle)
        # RocketMQ does not start on a queue segment without entries
        path.unlink()
        sync_directory(directory)
