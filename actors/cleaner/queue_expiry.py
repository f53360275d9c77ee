"""Consume queues whose messages expire: their min offsets move up, and files without messages go.

Used by the cleaner alone, which owns the queues' min offsets from the moment `queue_count` counts
their slots; the reput fills a slot before that. A min offset is moved before anything of the queue
or the log is deleted, so whoever finds a file gone finds the min offset above it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths, is_segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.open_files import ConsumeQueueFiles


class QueueExpiry:
    """The queues of a running store, at their old end."""

    def __init__(self, config: Config, run: Run, positions: Positions) -> None:
        self._positions = positions
        self._paths = StorePaths(config.store)
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        self._files = ConsumeQueueFiles(self._paths, config)
        self._table = QueueTable(run.queues, writable=True)
        # slot -> its first entry at or past `_log_start`, for queues that lose messages
        self._log_start = 0
        self._found: dict[int, int] = {}

    def slots(self) -> Iterator[int]:
        """The slots of all queues that exist."""
        for slot in range(self._positions["queue_count"]):
            if not self._table.is_deleted(slot):
                yield slot

    def is_deleted(self, slot: int) -> bool:
        """Whether the queue was deleted; that may happen at any moment."""
        return self._table.is_deleted(slot)

    def expiring(self, slot: int, log_start: int) -> int:
        """How many messages of a queue lie before `log_start`. Raises as `move_min_offset` does."""
        low, kept = self._table.min_offset(slot), self._first_kept(slot, log_start)
        if low == kept or self._entry(slot, low) != BLANK_ENTRY:
            return kept - low
        return kept - bisect_left(
            range(kept), True, low, key=lambda at: self._entry(slot, at) != BLANK_ENTRY
        )

    def move_min_offset(self, slot: int, log_start: int) -> None:
        """Move a queue's min offset up to its first entry at or past `log_start`.

        Without such an entry it moves to the max offset. Blanks before a queue's first entry have
        log offset 0 and are skipped. Raises OSError or StoreDamaged for files that cannot be read.
        """
        kept = self._first_kept(slot, log_start)
        if kept != self._table.min_offset(slot):
            self._table.publish_min_offset(slot, kept)

    def _first_kept(self, slot: int, log_start: int) -> int:
        """Cached: everything below `log_start` is dispatched, so a found entry stays right."""
        if log_start != self._log_start:
            self._log_start = log_start
            self._found.clear()
        if slot in self._found:
            return self._found[slot]
        low, high = self._table.min_offset(slot), self._table.max_offset(slot)
        if low == high or self._log_offset(slot, low) >= log_start:
            return low
        kept = bisect_left(
            range(high), True, low, key=lambda at: self._log_offset(slot, at) >= log_start
        )
        self._found[slot] = kept
        return kept

    def _entry(self, slot: int, at: int) -> bytes:
        return bytes(self._files.read(self._table.key(slot), at, at + 1, slot))

    def _log_offset(self, slot: int, at: int) -> int:
        offset, _, _ = ENTRY.unpack(self._entry(slot, at))
        return int(offset)

    def expired_files(self, slot: int) -> list[Path]:
        """The queue's files without an entry that counts, oldest first.

        The file with the newest expired entry stays. It shows a start that no file which counts is
        missing, and if nothing else is left, it has the queue's max offset.
        """
        kept = max(self._table.min_offset(slot) - 1, 0) * CQ_ENTRY_BYTES
        kept -= kept % self._segment_bytes
        if not kept:
            return []
        directory = self._paths.queue(*self._table.key(slot))
        return [
            directory / name
            for name in sorted(os.listdir(directory))
            if is_segment_name(name) and int(name) < kept
        ]

    def release_deleted(self) -> None:
        self._files.release_deleted()

    def close(self) -> None:
        self._files.close()
        self._table.close()
