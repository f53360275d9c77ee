"""Makes consume queues durable as they grow, names of files included. Used by the flusher alone.

Thousands of queues grow between two rounds. So a round goes through them in groups. The kernel
begins to write all files of a group; then each file is synced, which finds little left to do; then
the directories of new queues are synced, and the list of known queues gets a line for each. If the
flusher dies half way, its successor syncs again whatever the checkpoint does not cover.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from operator import ge, ne
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.durable import begin_writing, sync_directory, sync_file, write_again
from penstock.shared.layout import CQ_ENTRY_BYTES, PAGE_BYTES, StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.known_queues import WATERMARK, KnownQueues, QueueEnd
from penstock.shared.queue.open_files import ConsumeQueueFiles
from penstock.shared.store.checkpoint_file import load_checkpoint

# Queues in a group: their files stay open from the first step to the last.
QUEUES_AT_ONCE = 64
_NEVER = -1


class ConsumeQueueSync:
    """How far each queue is on disk, and syncing the rest."""

    def __init__(self, paths: StorePaths, config: Config, run: Run, positions: Positions) -> None:
        self._files = ConsumeQueueFiles(paths, config, writable=True)
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        self._positions = positions
        self._table = QueueTable(run.queues)
        self._paths = paths
        self._known = KnownQueues(paths.known_queues)
        # A predecessor may have died before it synced, or before it passed on a failed sync. The
        # checkpoint covers what it certainly synced; 0 means that it covers nothing.
        self._confirmed = load_checkpoint(paths.checkpoint).confirm_offset or -1
        self._in_doubt = range(positions["queue_count"])
        # For each slot: the offset up to which entries are on disk, and the one from which on a
        # look is worthwhile. In most looks, most of 100,000 queues have not grown enough.
        self._synced: list[int] = []
        self._due: list[int] = []
        self._due_pages = 0
        # topics whose directories are on disk, and the count of deleted queues at that time
        self._topics: set[str] = set()
        self._deleted = 0
        self.watermark = 0  # how far the flusher has the log on disk
        self._noted = 0  # the watermark that the list of known queues has

    def sync(self, least_pages: int) -> Generator[None, None, bool]:
        """Sync queues that have grown by `least_pages`, 0 for any growth; whether all are synced.

        A generator, with one sync a step: with many queues, or a slow disk, this takes long.
        """
        yield from self._known.sync()
        if self._deleted != (deleted := self._positions["deleted_queues"]):
            # a new topic of a deleted one's name has another directory
            self._deleted = deleted
            self._topics.clear()
            # and the growth of deleted queues does not count
            self._due = [0] * len(self._due)
        with self._table.max_offsets() as words:
            ends: list[int] = words[: self._positions["queue_count"]].tolist()
        new = len(ends) - len(self._synced)
        self._synced += [_NEVER] * new
        self._due += [0] * new
        grown, complete = self._grown(ends, least_pages)
        for at in range(0, len(grown), QUEUES_AT_ONCE):
            yield from self._sync_group(grown[at : at + QUEUES_AT_ONCE], ends)
        if self._noted != self.watermark:
            self._known.note({WATERMARK: QueueEnd(self.watermark)})
            self._noted = self.watermark
        crash_point("known.ends_written")
        yield from self._known.sync()
        return complete

    def _ends(self, slots: Sequence[int], ends: list[int]) -> dict[str, QueueEnd]:
        """The synced ends of queues."""
        found = {}
        for slot in slots:
            if self._table.is_deleted(slot):
                continue
            key, last = self._table.key(slot), (ends[slot] - 1) * CQ_ENTRY_BYTES
            base = last - last % self._segment_bytes
            with suppress(FileNotFoundError):  # the cleaner deleted it, or the sync has raised
                raw = read_at(self._files.handle(key, base, slot), 8, last - base)
                found["{}/{}".format(*key)] = QueueEnd(ends[slot], int.from_bytes(raw, "big"))
        return found

    def _is_new(self, slot: int) -> bool:
        return self._synced[slot] == _NEVER

    def _grown(self, ends: list[int], least_pages: int) -> tuple[list[int], bool]:
        """The slots to be synced, and whether they are all that have grown at all."""
        if least_pages and least_pages != self._due_pages:
            self._due, self._due_pages = [0] * len(ends), least_pages
        found: list[int] = []
        others = sum(map(ne, ends, self._synced))  # slots that have grown but are not in `found`
        if least_pages:
            looks = [slot for slot, is_due in enumerate(map(ge, ends, self._due)) if is_due]
        else:
            looks = [
                slot for slot, has_grown in enumerate(map(ne, ends, self._synced)) if has_grown
            ]
        for slot in looks:
            end, has_grown = ends[slot], ends[slot] != self._synced[slot]
            before = self._table.min_offset(slot) if self._is_new(slot) else self._synced[slot]
            if is_deleted := self._table.is_deleted(slot):
                self._synced[slot] = end
            if is_deleted or end == before:  # just added: its first segment may not be there yet
                others -= has_grown
                if not self._is_new(slot):  # a new one is looked at until it has an entry
                    self._due[slot] = end + 1
                continue
            self._due[slot] = _first_of_page(_page(before) + self._due_pages)
            if _page(end) - _page(before) >= least_pages:
                found.append(slot)
                others -= 1
        return found, not others

    def _sync_group(self, slots: Sequence[int], ends: list[int]) -> Generator[None, None, None]:
        files: list[tuple[int, QueueKey, int]] = []
        named: dict[QueueKey, int] = {}
        for slot in slots:
            key, is_new = self._table.key(slot), self._is_new(slot)
            end = ends[slot] * CQ_ENTRY_BYTES
            start = self._synced[slot] * CQ_ENTRY_BYTES
            if is_new:
                start = self._first_unsynced(slot, key, end)
            for base in range(start - start % self._segment_bytes, end, self._segment_bytes):
                files.append((slot, key, base))
                if is_new or base >= start:
                    named[key] = slot
        for slot, key, base in files:
            if self._is_new(slot) and slot in self._in_doubt:
                self._write_again(slot, key, base, ends[slot] * CQ_ENTRY_BYTES)
                yield
            self._begin(slot, key, base)
        yield
        for slot, key, base in files:
            self._sync_file(slot, key, base)
            yield
        yield from self._sync_names(named)
        # if a known queue were missing, a start would have to scan the whole log
        if self._known.note(self._ends(slots, ends)):
            yield
        for slot in slots:
            self._synced[slot] = ends[slot]
            self._due[slot] = _first_of_page(_page(ends[slot]) + self._due_pages)

    def _first_unsynced(self, slot: int, key: QueueKey, end: int) -> int:
        """The start of the segment with the first entry that the checkpoint does not vouch for."""
        base = (end - 1) // self._segment_bytes * self._segment_bytes
        while base > self._table.min_offset(slot) * CQ_ENTRY_BYTES:
            try:
                handle = self._files.handle(key, base, slot)
            except FileNotFoundError:
                break  # the cleaner deleted it, or the sync will raise
            if not self._is_unsynced(handle, 0):
                break
            base -= self._segment_bytes
        return base

    def _is_unsynced(self, handle: int, at: int) -> bool:
        """Whether the checkpoint does not vouch for the entry at this place in a segment."""
        offset = read_at(handle, 8, at * CQ_ENTRY_BYTES)
        return int.from_bytes(offset, "big") > self._confirmed

    def _write_again(self, slot: int, key: QueueKey, base: int, end: int) -> None:
        """Make a segment's entries dirty again, because their sync may have failed."""
        try:
            handle = self._files.handle(key, base, slot)
        except FileNotFoundError:
            return  # the sync will raise
        # a truncated file is a problem of its readers
        stop = min(end - base, self._segment_bytes, os.fstat(handle).st_size)
        entries = range(stop // CQ_ENTRY_BYTES)
        first = bisect_left(entries, True, key=lambda at: self._is_unsynced(handle, at))
        start, stop = first * CQ_ENTRY_BYTES, len(entries) * CQ_ENTRY_BYTES
        write_again(handle, start, stop, replaces=True)  # a queue can be made again

    def _begin(self, slot: int, key: QueueKey, base: int) -> None:
        with suppress(FileNotFoundError):  # the sync decides what that means
            begin_writing(self._files.handle(key, base, slot))

    def _sync_file(self, slot: int, key: QueueKey, base: int) -> None:
        try:
            sync_file(self._files.handle(key, base, slot))
        except FileNotFoundError:
            # The cleaner moves the min offset before it deletes a file, and the reput marks a queue
            # before it removes its directory.
            if self._table.is_deleted(slot):
                return
            if base + self._segment_bytes > self._table.min_offset(slot) * CQ_ENTRY_BYTES:
                raise

    def _sync_names(self, queues: Mapping[QueueKey, int]) -> Generator[None, None, None]:
        """Sync queues' directories, and the directories that name them; their creator does not."""
        topics: dict[str, tuple[Path, int]] = {}
        for key, slot in queues.items():
            if key.topic not in topics:
                topics[key.topic] = self._paths.queue(*key).parent, slot
            self._sync_directory(topics[key.topic][0] / str(key.queue_id), slot)
            yield
        for directory, slot in topics.values():
            self._sync_directory(directory, slot)
            yield
        if topics.keys() - self._topics:
            sync_directory(self._paths.consume_queue)
            self._topics |= topics.keys()
            yield

    def _sync_directory(self, directory: Path, slot: int) -> None:
        """Sync a directory of this queue, unless it is gone with its topic."""
        try:
            sync_directory(directory)
        except FileNotFoundError:
            if not self._table.is_deleted(slot):
                raise

    def release_deleted(self) -> None:
        self._files.release_deleted()

    def close(self) -> None:
        self._known.close()
        self._files.close()
        self._table.close()


def _page(offset: int) -> int:
    return offset * CQ_ENTRY_BYTES // PAGE_BYTES


def _first_of_page(page: int) -> int:
    """The least offset whose entry begins in this page or past it."""
    return -(-page * PAGE_BYTES // CQ_ENTRY_BYTES)
