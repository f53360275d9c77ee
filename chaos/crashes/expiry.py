"""Messages expire while the actors that delete them and reuse their segments are killed.

Every other segment is held open, as by a consumer that reads files: nobody may write to it. A
segment that the log has not reached has nothing from an earlier life. In the end the store has what
was acknowledged, from its queues' new beginnings on.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, SMALL_SEGMENT_BYTES, Broker
from penstock.chaos.crashes.armed import STALL_S, Armed
from penstock.chaos.history import digest
from penstock.chaos.load import TOPIC, Load
from penstock.chaos.stepped.replay import check_whole
from penstock.chaos.under_load import one_load
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.store.directory import StoreDirectory

EXPIRING: dict[str, object] = {
    "file_reserved_time_h": 0,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "delete_commit_log_files_interval_ms": 1,
    "delete_consume_queue_files_interval_ms": 1,
    "clean_resource_interval_ms": 50,
}


class _Segments:
    """Segments that are open here, with their full content; and those to come."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commit_log = StorePaths(broker.store).commit_log
        self._files: dict[int, tuple[BinaryIO, int]] = {}
        self._open = ExitStack()
        self._wrong: list[str] = []

    def look(self) -> None:
        """Open every other segment that is full by now, and read those that nobody has used yet."""
        positions = self._broker.status()["positions"]
        full = range(0, positions["committed"] - SMALL_SEGMENT_BYTES, 2 * SMALL_SEGMENT_BYTES)
        for base in full:
            if base >= positions["log_start"] and base not in self._files:
                self._hold(base)
        into = positions["wrote"] % SMALL_SEGMENT_BYTES
        after = positions["wrote"] - into + SMALL_SEGMENT_BYTES
        for base in range(after, positions["allocated"], SMALL_SEGMENT_BYTES):
            content = (self._commit_log / segment_name(base)).read_bytes()
            # nothing is written to it before the writer reaches it, which may have happened by now
            if any(content) and self._broker.status()["positions"]["wrote"] <= base:
                self._wrong.append(f"the segment at {base} has something, and nobody has used it")

    def _hold(self, base: int) -> None:
        try:
            file = self._open.enter_context((self._commit_log / segment_name(base)).open("rb"))
        except FileNotFoundError:
            return  # it has just expired
        self._files[base] = file, _checksum(file)

    def end(self) -> list[str]:
        """Close them. Returns what was wrong."""
        with self._open:
            wrong = self._wrong + [
                f"an expired segment was written to that was open: {base}"
                for base, (file, before) in self._files.items()
                if _checksum(file) != before
            ]
            return wrong if self._files else ["no segment was held open"]


def _checksum(file: BinaryIO) -> int:
    return zlib.crc32(os.pread(file.fileno(), SMALL_SEGMENT_BYTES, 0))


def die_expiring(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill the cleaner and the allocator: what has expired goes, and nothing else."""
    broker = Broker(place, SMALL | EXPIRING, environment=armed.environment())
    segments = _Segments(broker)

    def moved() -> None:
        arena.moved()
        segments.look()

    with one_load(broker, rate=3000) as load:
        wrong = armed.await_all(broker, moved)
        _await_recycled(broker, 3, moved)
        load.finish()
        broker.await_dispatched()
        wrong += segments.end()
        broker.stop()
        wrong += check_whole(broker.store, broker.config)
        return wrong + _check_kept(broker.store, load)


def _await_recycled(broker: Broker, count: int, moved: Callable[[], None]) -> None:
    """Wait until `count` more segments were reused: by now nobody is killed any more."""
    before = broker.status()["positions"]["recycled_segments"]
    deadline = time.monotonic() + 3 * STALL_S
    while broker.status()["positions"]["recycled_segments"] < before + count:
        if time.monotonic() > deadline:
            raise StoreUnavailable("no segment is used again", f"within {3 * STALL_S} s")
        time.sleep(0.005)
        moved()


def _check_kept(store: Path, load: Load) -> list[str]:
    """Check that the store has what was acknowledged, from its queues' new beginnings on, only."""
    kept, begins = {}, {}
    with StoreDirectory(store) as opened:
        for queue in opened.queues():
            if queue.topic != TOPIC:
                continue
            begins[queue.queue_id] = queue.min_offset
            for number, entry in enumerate(queue.entries(queue.min_offset, queue.max_offset)):
                record = opened.record_at(int(entry["offset"]))
                kept[queue.queue_id, queue.min_offset + number] = digest(bytes(record.body))
    expected = {
        (each.queue_id, each.queue_offset): each.digest
        for each in load.acked
        if each.queue_offset >= begins[each.queue_id]
    }
    wrong = [] if any(begins.values()) else ["nothing has expired"]
    if kept != expected or load.failed:
        wrong.append(f"{len(kept)} messages are kept of {len(expected)}; {load.failed[:1]}")
    return wrong
