"""The allocator: makes commit log segments ahead of the writer.

Owns:     `allocated`, `allocate_error`, `lock_error`, `recycled_segments`; the making of segment
          files, and their bytes until `allocated` counts them; what the cleaner has set aside in
          penstock/half-made/.
Reads:    `wrote`, `append_wanted`, `read_only`.
Hears:    the writer's doorbell.
Notifies: the writer.
On crash: the next one goes on at `allocated`. It deletes segments that its predecessor made and did
          not count: their names may not be durable. It locks again what its predecessor had locked.

With warm_mapped_file_enable a new segment is warmed before it is counted, unless the writer already
waits for it. The allocator holds the lock on a segment's memory: a lock dies with its process, and
the allocator keeps a segment open until it is full. With the pool on nobody stores into a mapping,
so there is nothing to warm.

While the writer needs no segment, expired segments are prepared to be used again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.actors.allocator.recycled_segments import RecycledSegments
from penstock.actors.allocator.warm_segment import WarmSegment
from penstock.shared.faults import crash_point
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.files.durable import make_file, unfinished_files
from penstock.shared.files.segments import segment_bases
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS
from penstock.shared.process.retry import Retry

# A segment stays locked this long after it is full: the flusher and readers are still at its end.
UNLOCK_MS = 6000


class Allocator(Actor):
    """Keeps the log's segments ahead of the writer."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._positions = stage.positions
        self._segment_bytes = stage.config.mapped_file_size_commit_log_bytes
        self._paths = StorePaths(stage.config.store)
        self._retry = Retry(stage.clock)
        self._recycled = RecycledSegments(
            self._paths.commit_log,
            self._paths.staging,
            self._segment_bytes,
            stage.clock.monotonic_ms,
            stage.report,
        )
        self._warm = stage.config.warm_mapped_file_enable
        # the segment being warmed, which is not counted yet; counted segments that are locked
        self._warming: WarmSegment | None = None
        self._locked: list[WarmSegment] = []
        self._filled_ms: dict[int, int] = {}

    def start(self) -> None:
        self._allocated = self._positions["allocated"]
        for growing in unfinished_files(self._paths.staging):
            if growing.name.startswith("commitlog-"):
                growing.unlink()
        for base in segment_bases(self._paths.commit_log, self._segment_bytes):
            if base >= self._allocated:
                (self._paths.commit_log / segment_name(base)).unlink()
        self._positions.publish("lock_error", 0)
        if self._warm and self._stage.config.transient_store_pool_enable:
            self._warm = False
            self._stage.report("with the transient pool on, warm_mapped_file_enable has no effect")
        if self._warm:
            wrote = self._positions["wrote"]
            start = wrote - wrote % self._segment_bytes
            for base in range(start, self._allocated, self._segment_bytes):
                self._lock(self._open(base))

    def work(self) -> int:
        self._unlock_filled()
        if self._warming is not None:
            self._go_on_warming(self._warming)
            return 1
        if self._positions["read_only"]:
            return 0
        if self._allocated >= self._target():
            return self._recycle()
        if self._retry.waits:
            return 0
        path = self._paths.commit_log / segment_name(self._allocated)
        try:
            if not path.exists():  # it exists if mapping it failed before
                crash_point("alloc.before_fallocate")
                with self._stage.disk:
                    self._make(path)
                crash_point("alloc.after_dirfsync")
            if self._warm:
                self._warming = self._open(self._allocated)
                return 1
        except OSError as error:
            self._refused(error)
            return 0
        self._count()
        return 1

    def _make(self, path: Path) -> None:
        """Make the next segment, from an expired one if there is one. Raises OSError."""
        if self._lacking_room():
            self._recycled.discard()
        if self._recycled.take(path):
            self._positions.publish("recycled_segments", self._positions["recycled_segments"] + 1)
            return
        # A file system takes all its free blocks before it reports that they are not enough, and
        # other processes' writes find no room meanwhile.
        if self._lacking_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make_file(self._paths.staging, path, self._segment_bytes, sparse=False)

    def _recycle(self) -> int:
        """Fill some more of an expired segment with zeros. If the disk has no room for files that
        cannot use segments, delete all expired ones instead."""
        with self._stage.disk:
            if self._recycled and self._lacking_room():
                self._recycled.discard()
            return int(self._recycled.step())

    def _lacking_room(self) -> str:
        return lacking_room(self._paths.commit_log, self._stage.config)

    def _refused(self, error: OSError) -> None:
        number = error.errno or 1
        if number != self._positions["allocate_error"]:
            why = self._lacking_room() or str(error)
            self._stage.report(f"there is no next segment: {why}; trying again")
        self._positions.publish("allocate_error", number)
        self._retry.put_off()

    def _count(self) -> None:
        """Hand the new segment to the writer."""
        self._allocated += self._segment_bytes
        self._retry.succeeded()
        # the error first: a successor that finds enough segments has no work, and would not clear
        # it
        self._positions.publish("allocate_error", 0)
        self._positions.publish("allocated", self._allocated)
        crash_point("alloc.publish")
        self._stage.bus.notify("writer")

    # --- warm segments ---

    def _open(self, base: int) -> WarmSegment:
        config = self._stage.config
        sync_pages = config.flush_least_pages_when_warm_mapped_file if config.sync_flush else 0
        path = self._paths.commit_log / segment_name(base)
        return WarmSegment(path, base, self._segment_bytes, sync_pages)

    def _go_on_warming(self, segment: WarmSegment) -> None:
        """Touch some more pages; count the segment once all are touched or the writer waits."""
        try:
            if self._positions["append_wanted"] <= self._allocated and not segment.step():
                return
        except OSError as error:
            self._warming = None
            segment.close()
            self._refused(error)
            return
        self._warming = None
        self._count()
        self._lock(segment)

    def _lock(self, segment: WarmSegment) -> None:
        """Lock a segment, or report once why that fails: it is just as good without a lock."""
        number = segment.lock()
        if not number:
            self._locked.append(segment)
            return
        segment.close()
        if not self._positions["lock_error"]:
            self._stage.report(
                f"segments are not locked into memory: {os.strerror(number)}; raise the limit "
                f"(ulimit -l), {2 * self._segment_bytes >> 10} KiB are needed"
            )
        self._positions.publish("lock_error", number)

    def _unlock_filled(self) -> None:
        wrote, now_ms = self._positions["wrote"], self._stage.clock.monotonic_ms()
        for segment in [each for each in self._locked if each.end <= wrote]:
            if now_ms - self._filled_ms.setdefault(segment.end, now_ms) >= UNLOCK_MS:
                self._locked.remove(segment)
                del self._filled_ms[segment.end]
                segment.close()

    def _target(self) -> int:
        """The log offset up to which segments should exist: the current one, and the next once it
        is used.

        A store with nothing in its last segment needs no further one yet.
        """
        wrote = self._positions["wrote"]
        into = wrote % self._segment_bytes
        ahead = wrote - into + (2 if into else 1) * self._segment_bytes
        return max(ahead, self._positions["append_wanted"])

    def idle_ms(self) -> int:
        # nobody notifies it that a disk has room, or that a full segment is due to be unlocked
        return TICK_MS if self._retry.has_failed or self._filled_ms else QUIET_TICK_MS

    def release_deleted(self) -> None:
        """Nothing: its segments are unlocked and closed long before they expire."""

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        """Leave empty segments past the log's end: the stop of the whole store deletes them."""
        self._recycled.discard()
        for segment in (*self._locked, *([self._warming] if self._warming else [])):
            segment.close()
