"""Consume queues and index made anew from the log, beside the old ones, and swapped in.

    STORE/penstock/rebuild/   the new ones while they grow; the old ones behind the swap

The swap is one exchange of names, so a crash leaves the old or the new, whole; what it leaves in
`rebuild/` the next rebuild or start removes. The caller holds the store's lock.

A queue without a record in the log keeps its files: they say at which offset it goes on. A message
that damage took keeps its slot, with an entry that points to the damage, as the reput does it.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.consume_queue import ENTRY, parse_delay_levels
from penstock.shared.durable_files import exchange, make_directory, sync_tree
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.geometry import check_lengths, keep_sizes, load_sizes
from penstock.shared.hot_loops import QueueNumbers, by_queue, dispatch
from penstock.shared.index_building import rebuild_index
from penstock.shared.index_directory import index_files, index_geometry
from penstock.shared.index_recovery import index_is_rebuilt
from penstock.shared.layout import StorePaths, is_segment_name
from penstock.shared.next_steps import repair
from penstock.shared.pure_queues import rows_of
from penstock.shared.quarantine import set_aside
from penstock.shared.queue_windows import QueueWindows
from penstock.shared.record import SMALLEST_RECORD_BYTES, Found
from penstock.shared.recovery import remove_rebuild
from penstock.shared.store_directory import StoreDirectory

_RUN_BYTES = 4 << 20

Progress = Callable[[int, int], None]


class Rebuilt(msgspec.Struct):
    """What a rebuild has made."""

    messages: int = 0
    queues: int = 0
    entries: int = 0
    kept_queues: int = 0  # without a record in the log
    lost: int = 0  # slots of messages that the log does not have
    index_files: int = 0
    keys: int = 0
    seconds: float = 0.0


def rebuild_store(
    paths: StorePaths,
    config: Config,
    clock: Clock,
    *,
    queues: bool,
    index: bool,
    progress: Progress | None = None,
) -> Rebuilt:
    """Rebuild; durable on return. Raises StoreDamaged and OSError, and then nothing has changed."""
    began = time.monotonic()
    check_lengths(paths, config)
    done = Rebuilt()
    remove_rebuild(paths)
    new = StorePaths(paths.rebuild)
    for directory in (new.consume_queue, new.index, new.half_made):
        make_directory(directory)
    with StoreDirectory(paths.root) as store:
        if queues:
            _Queues(store, new, config, done).build(progress)
            _keep_others(paths, new.consume_queue, done)
        if index:
            geometry = index_geometry(config)
            made = rebuild_index(store, new.index, new.half_made, geometry, clock.now_ms, progress)
            done.index_files, done.keys = made
            for path in set(_files(paths.index)) - set(index_files(paths.index)):
                os.link(path, new.index / path.name, follow_symlinks=False)
    if index:
        keep_sizes(paths, config, index=_has_this_index(paths, config))
    for wanted, old, made_anew in (
        (queues, paths.consume_queue, new.consume_queue),
        (index, paths.index, new.index),
    ):
        if wanted:
            make_directory(old)
            sync_tree(made_anew)
            crash_point("rebuild.before_swap")
            exchange(old, made_anew)
            crash_point("rebuild.after_swap")
    if index:
        keep_sizes(paths, config)
        index_is_rebuilt(paths)
    crash_point("rebuild.before_removal")
    remove_rebuild(paths)
    done.seconds = round(time.monotonic() - began, 3)
    return done


def _has_this_index(paths: StorePaths, config: Config) -> bool:
    """Whether the index that is about to go is of the sizes that the new one has."""
    sizes = load_sizes(paths)
    had = sizes.max_hash_slot_num, sizes.max_index_num
    return had == (config.max_hash_slot_num, config.max_index_num)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []


class _Queues:
    """Writes the entries of all records of a log."""

    def __init__(
        self, store: StoreDirectory, new: StorePaths, config: Config, done: Rebuilt
    ) -> None:
        self._store = store
        self._numbers = QueueNumbers()
        self._windows = QueueWindows(new, config, self._numbers)
        self._levels_ms = parse_delay_levels(config.message_delay_level)
        self._done = done
        # the next slot of each queue
        self._next: dict[tuple[bytes, int], int] = {}
        self._damaged: list[tuple[int, int]] = []
        self._lost = b""

    def build(self, progress: Progress | None) -> None:
        start = self._store.log_start
        total = self._store.segments[-1].end - start if self._store.segments else 0
        for at, stop in self._whole_runs():
            self._take(at, stop)
            if progress:
                progress(stop - start, total)
        self._keep_lost_tails()
        self._windows.close()
        self._done.queues = len(self._next)

    def _whole_runs(self) -> Iterator[tuple[int, int]]:
        """[start, stop) of the log with whole records only, their checksums compared."""
        at = stop = -1
        for position, found, size, _, _ in self._store.scan_log():
            if position != stop or found is not Found.RECORD or stop - at > _RUN_BYTES:
                if at >= 0:
                    yield at, stop
                at, stop = (position, position) if found is Found.RECORD else (-1, -1)
            if found is Found.RECORD:
                stop = position + size
            elif found is Found.DAMAGED:
                self._damaged.append((position, position + size))
                self._lost = ENTRY.pack(position, size, 0)

    def _take(self, start: int, stop: int) -> None:
        log = memoryview(self._store.read_log(start, stop - start))
        found = dispatch(log, start, self._numbers, self._levels_ms)
        self._done.messages += found.records
        rows = []
        for key, runs in by_queue(found.rows, self._numbers).items():
            for slot, entries in runs:
                rows.append(self._lost_before(key, slot, bytes(entries[: ENTRY.size])))
                self._next[key] = slot + len(entries) // ENTRY.size
                self._done.entries += len(entries) // ENTRY.size
        self._windows.put(b"".join((*rows, found.rows)))
        if found.size != stop - start:
            raise StoreDamaged(
                "no record begins where the last one ends",
                f"log offset {start + found.size}",
                f"run: {repair(self._store.paths.root)}",
            )

    def _lost_before(self, key: tuple[bytes, int], slot: int, entry: bytes) -> bytes:
        """Rows for the slots between what a queue has and `slot`: those of lost messages.

        `entry` is the slot's own.
        """
        before = self._next.get(key, slot)
        (position, _, _) = ENTRY.unpack(entry)
        if slot - before > (position - self._store.log_start) // SMALLEST_RECORD_BYTES or slot < 0:
            raise StoreDamaged(
                "a queue would miss more messages than the log had room for",
                f"record at {position} has queue offset {slot}, {before} was to come",
                f"its queue offset is damaged; run: {repair(self._store.paths.root)}",
            )
        if slot <= before:
            return b""
        # without damage in the log nobody knows what it was: then the next one comes twice
        self._done.lost += slot - before
        lost = (self._lost or entry) * (slot - before)
        return rows_of(self._numbers.number(*key), before, lost)

    def _keep_lost_tails(self) -> None:
        """The last messages of a queue may be lost: their old entries say where it goes on."""
        for queue in self._store.queues() if self._damaged else ():
            key = (queue.topic.encode(), queue.queue_id)
            at = max(self._next.get(key, queue.max_offset), queue.first_slot)
            for row in queue.entries(at, queue.max_offset) if at < queue.max_offset else ():
                offset, size, code = row.item()
                index = bisect_right(self._damaged, (offset, sys.maxsize)) - 1
                if index < 0 or offset >= self._damaged[index][1]:
                    break
                entry = ENTRY.pack(offset, size, code)
                self._windows.put(rows_of(self._numbers.number(*key), at, entry))
                at += 1
                self._done.lost += 1


def _keep_others(paths: StorePaths, new: Path, done: Rebuilt) -> None:
    """Link what is in the old tree and was not made anew: queues at rest, and what is not ours."""
    old = paths.consume_queue
    for place, _, names in os.walk(old):
        here = Path(place).relative_to(old)
        made_anew = len(here.parts) == 2 and (new / here).exists()
        for name in names:
            if not made_anew:
                make_directory(new / here)
                os.link(old / here / name, new / here / name, follow_symlinks=False)
            elif not is_segment_name(name):
                set_aside(paths, old / here / name)
        done.kept_queues += bool(names) and len(here.parts) == 2 and not made_anew
