"""Consume queue files of a running broker: the reput puts entries, the flusher syncs, readers look.

Entry k of a queue has its place, byte 20 * k, so putting it twice changes nothing. A new segment
gets its name together with its first entries: RocketMQ does not start on an empty one. How far a
queue is valid stands in the queue table, not here.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator
from pathlib import Path

from penstock.shared.checkpoint_file import load_checkpoint
from penstock.shared.config import Config
from penstock.shared.consume_queue import BLANK_ENTRY
from penstock.shared.durable_files import (
    make_directory,
    make_file,
    sync_directory,
    sync_file,
    write_again,
    write_at,
)
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.known_queues import KnownQueues
from penstock.shared.layout import CQ_ENTRY_BYTES, PAGE_BYTES, StorePaths, segment_name
from penstock.shared.positions import Positions
from penstock.shared.queue_table import QueueKey, QueueTable
from penstock.shared.run_directory import Run

OPEN_FILES = 512


class ConsumeQueueFiles:
    """Opens queue segments on demand and keeps the latest used ones open."""

    def __init__(self, paths: StorePaths, config: Config, writable: bool = False) -> None:
        self._paths = paths
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        self._flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW
        self._open: OrderedDict[tuple[QueueKey, int], int] = OrderedDict()

    def read(self, key: QueueKey, start: int, stop: int) -> bytes:
        """The entries [start, stop) of a queue, or fewer where a segment ends."""
        at = start * CQ_ENTRY_BYTES
        base = at - at % self._segment_bytes
        length = min(stop * CQ_ENTRY_BYTES, base + self._segment_bytes) - at
        raw = os.pread(self.handle(key, base), length, at - base)
        if len(raw) != length:
            raise StoreDamaged("a consume queue segment has its full length", self.path(key, base))
        return raw

    def put(self, key: QueueKey, queue_offset: int, entries: bytes | bytearray) -> None:
        """Write entries to their places, making segments as needed. Raises OSError."""
        at = queue_offset * CQ_ENTRY_BYTES
        done = 0
        while done < len(entries):
            base = (at + done) - (at + done) % self._segment_bytes
            piece = entries[done : done + base + self._segment_bytes - at - done]
            self._put_in_segment(key, base, at + done - base, piece)
            done += len(piece)

    def _put_in_segment(self, key: QueueKey, base: int, at: int, piece: bytes | bytearray) -> None:
        try:
            write_at(self.handle(key, base), piece, at)
        except FileNotFoundError:
            path = self.path(key, base)
            crash_point("reput.new_cq_file")
            make_directory(path.parent)
            # a queue that begins mid-way has blanks before its first entry
            head = BLANK_ENTRY * (at // CQ_ENTRY_BYTES) + piece
            make_file(self._paths.half_made, path, self._segment_bytes, sparse=True, head=head)

    def handle(self, key: QueueKey, base: int) -> int:
        """The open file of a segment. Raises FileNotFoundError where there is none."""
        found = self._open.get((key, base))
        if found is None:
            found = os.open(self.path(key, base), self._flags)
            self._open[key, base] = found
            if len(self._open) > OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end((key, base))
        return found

    def path(self, key: QueueKey, base: int) -> Path:
        return self._paths.queue(*key) / segment_name(base)

    def let_go(self) -> None:
        """Close the files that have been deleted: their room comes free with the last handle."""
        for place, handle in list(self._open.items()):
            if not os.fstat(handle).st_nlink:
                os.close(self._open.pop(place))

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class ConsumeQueueSync:
    """Syncs what queues have grown by, names included. Used by the flusher alone."""

    def __init__(self, paths: StorePaths, config: Config, run: Run, positions: Positions) -> None:
        self._files = ConsumeQueueFiles(paths, config, writable=True)
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        self._positions = positions
        self._table = QueueTable(run.queues)
        self._paths = paths
        self._known = KnownQueues(paths.known_queues)
        # a predecessor may have died before syncing, or before it told of a sync that failed: the
        # checkpoint knows of what it had not; 0 is where it knows of nothing
        self._confirmed = load_checkpoint(paths.checkpoint).confirm_offset or -1
        self._synced: dict[int, int] = {}
        self._in_doubt: set[int] = set()
        self._topics: set[str] = set()

    def sync(self, least_pages: int) -> Generator[None, None, bool]:
        """Sync queues that have grown by so many pages, 0 for any growth; whether none is left.

        A generator, one sync a step: with many queues, or a slow disk, this takes long.
        """
        complete = True
        yield from self._known.sync()
        for slot in range(self._positions["queue_count"]):
            first, grown = (
                offset * CQ_ENTRY_BYTES
                for offset in (self._table.min_offset(slot), self._table.max_offset(slot))
            )
            if grown == first:
                continue  # just added: its first segment may not be there yet
            if slot not in self._synced:
                if self._known.add("{}/{}".format(*self._table.key(slot))):
                    yield
                self._synced[slot] = max(first, self._first_unsynced(slot, grown))
                self._in_doubt.add(slot)
            before = self._synced[slot]
            if grown == before:
                continue
            if grown // PAGE_BYTES - before // PAGE_BYTES < least_pages:
                complete = False
                continue
            key = self._table.key(slot)
            doubt = slot in self._in_doubt
            for base in range(before - before % self._segment_bytes, grown, self._segment_bytes):
                if doubt:
                    self._write_again(key, base, grown)
                    yield
                yield from self._sync_file(slot, key, base, named=doubt or base >= before)
            self._synced[slot] = grown
            self._in_doubt.discard(slot)
        return complete

    def _first_unsynced(self, slot: int, grown: int) -> int:
        """Where the segment begins that has the first entry the checkpoint does not vouch for."""
        key = self._table.key(slot)
        base = (grown - 1) // self._segment_bytes * self._segment_bytes
        while base > self._min_place(slot):
            try:
                handle = self._files.handle(key, base)
            except FileNotFoundError:
                break  # the cleaner was quicker, or the sync says so
            if not self._is_unsynced(handle, 0):
                break
            base -= self._segment_bytes
        return base

    def _is_unsynced(self, handle: int, at: int) -> bool:
        """Whether the checkpoint does not vouch for the entry that stands there in a segment."""
        offset = os.pread(handle, 8, at * CQ_ENTRY_BYTES)
        return int.from_bytes(offset, "big") > self._confirmed

    def _write_again(self, key: QueueKey, base: int, grown: int) -> None:
        """Make the entries of a segment dirty again whose sync may have failed."""
        try:
            handle = self._files.handle(key, base)
        except FileNotFoundError:
            return  # the sync says so
        # one that somebody has cut short is its readers' problem
        stop = min(grown - base, self._segment_bytes, os.fstat(handle).st_size)
        entries = range(stop // CQ_ENTRY_BYTES)
        first = bisect_left(entries, True, key=lambda at: self._is_unsynced(handle, at))
        write_again(handle, first * CQ_ENTRY_BYTES, len(entries) * CQ_ENTRY_BYTES)

    def _min_place(self, slot: int) -> int:
        return self._table.min_offset(slot) * CQ_ENTRY_BYTES

    def _sync_file(
        self, slot: int, key: QueueKey, base: int, *, named: bool
    ) -> Generator[None, None, None]:
        try:
            sync_file(self._files.handle(key, base))
        except FileNotFoundError:
            # the cleaner moves the min offset before it deletes a file
            if base + self._segment_bytes > self._min_place(slot):
                raise
        yield
        if named:
            yield from self._sync_names(key)

    def _sync_names(self, key: QueueKey) -> Generator[None, None, None]:
        """Sync the directories of a segment: the reput may have died between naming and syncing."""
        queue = self._paths.queue(*key)
        sync_directory(queue)
        yield
        sync_directory(queue.parent)
        yield
        if key.topic not in self._topics:
            sync_directory(self._paths.consume_queue)
            self._topics.add(key.topic)
            yield

    def let_go(self) -> None:
        self._files.let_go()

    def close(self) -> None:
        self._known.close()
        self._files.close()
        self._table.close()
