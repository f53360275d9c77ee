"""The committer: copies records from the transient store pool into the segment files.

Owns:     `committed`; the bytes of the segment files, where the pool is on.
Reads:    `wrote`, `flush_wanted`; the pool.
Hears:    the writer's doorbell.
Rings:    the flusher and the reput.
On crash: the next one goes on at `committed`; copying the same bytes twice changes nothing. The
          pool is shared memory and outlives every process.

With the pool off the writer stores into the segment itself, and `committed` follows `wrote`.
"""

from __future__ import annotations

import zmq

from penstock.shared.actor import TICK_MS, Stage
from penstock.shared.durable_files import write_at
from penstock.shared.faults import crash_point
from penstock.shared.layout import PAGE_BYTES, StorePaths
from penstock.shared.mapped_file_queue import MappedFileQueue
from penstock.shared.transient_store_pool import TransientStorePool

# One call copies at most this; the heartbeat comes between.
_COPY_BYTES = 8 << 20


class Committer:
    """See the head of this file."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        self._committed_at_ms = stage.clock.monotonic_ms()

    def start(self) -> None:
        self._committed = self._positions["committed"]
        self._segment_bytes = self._config.mapped_file_size_commit_log_bytes
        directory = StorePaths(self._config.store).commit_log
        self._segments = MappedFileQueue(directory, self._segment_bytes, writable=True, keep=2)
        run = self._stage.run
        self._pool = TransientStorePool(run.pool) if run.pool_enabled else None

    def work(self) -> int:
        wrote = self._positions["wrote"]
        if wrote == self._committed or not self._due(wrote):
            return 0
        if self._pool is not None:
            self._copy(self._pool, self._committed, wrote)
        crash_point("commit.before_cursor")
        self._committed = wrote
        self._positions.publish("committed", wrote)
        crash_point("commit.after_cursor")
        self._committed_at_ms = self._stage.clock.monotonic_ms()
        self._stage.bus.ring("flusher")
        if not self._config.sync_flush:
            self._stage.bus.ring("reput")
        return 1

    def _due(self, wrote: int) -> bool:
        """At once when somebody waits for the disk or the pool is off, else as RocketMQ does."""
        if self._pool is None or self._positions["flush_wanted"] > self._committed:
            return True
        config = self._config
        since_ms = self._stage.clock.monotonic_ms() - self._committed_at_ms
        if since_ms >= config.commit_commit_log_thorough_interval_ms:
            return True
        # half a pool is waiting: room counts more than few writes
        if wrote - self._committed > self._pool.size // 2:
            return True
        pages = wrote // PAGE_BYTES - self._committed // PAGE_BYTES
        return pages >= config.commit_commit_log_least_pages

    def _copy(self, pool: TransientStorePool, start: int, stop: int) -> None:
        crash_point("commit.before_copy")
        at = start
        while at < stop:
            segment = self._segments.segment(at)
            limit = min(stop, segment.base + segment.size, at + _COPY_BYTES)
            for piece in pool.pieces(at, limit):
                write_at(segment.handle, piece, at - segment.base)
                at += len(piece)
            crash_point("commit.mid_copy")
            self._stage.beat()

    def inputs(self) -> list[zmq.Socket[bytes]]:
        return []

    def idle_ms(self) -> int:
        return max(1, min(TICK_MS, self._config.commit_interval_commit_log_ms))

    def let_go(self) -> None:
        self._segments.let_go(self._stage.clock.monotonic_ms())

    def drained(self) -> bool:
        self._committed_at_ms = -self._config.commit_commit_log_thorough_interval_ms  # due now
        return self._committed == self._positions["wrote"]

    def close(self) -> None:
        self._segments.close()
        if self._pool is not None:
            self._pool.close()
