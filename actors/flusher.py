"""The flusher: makes the log, the consume queues and the checkpoint durable.

Owns:     `flushed`, `flush_error`; the checkpoint file.
Reads:    `committed`, `flush_wanted`, `wrote_timestamp`, `dispatched`; segment and queue files.
Hears:    the committer's doorbell.
Rings:    the writer and the reput.
On crash: the next one goes on at `flushed`; syncing again what is synced is harmless.

The first error of a flush stops the store: the kernel reports it once and may drop the pages, so a
second try could succeed and be a lie.
"""

from __future__ import annotations

import os

import zmq

from penstock.shared.actor import TICK_MS, Stage
from penstock.shared.checkpoint_file import CheckpointKeeper
from penstock.shared.consume_queue_files import ConsumeQueueSync
from penstock.shared.layout import PAGE_BYTES, StorePaths
from penstock.shared.mapped_file_queue import MappedFileQueue


class Flusher:
    """See the head of this file."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        now_ms = stage.clock.monotonic_ms()
        self._flushed_at_ms = self._thorough_at_ms = now_ms
        self._queues_at_ms = self._queues_thorough_at_ms = now_ms

    def start(self) -> None:
        config = self._config
        self._flushed = self._positions["flushed"]
        paths = StorePaths(config.store)
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._segments = MappedFileQueue(
            paths.commit_log, self._segment_bytes, writable=True, keep=4
        )
        self._queues = ConsumeQueueSync(paths, config, self._stage.run, self._positions)
        self._checkpoint = CheckpointKeeper(paths.checkpoint, self._positions, self._segments)

    def work(self) -> int:
        if self._positions["flush_error"]:
            return 0
        try:
            done = self._flush_log()
            self._flush_queues()
        except OSError as error:
            self._positions.publish("flush_error", error.errno or 1)
            self._stage.bus.ring("writer")
            return 0
        return done

    # --- the log ---

    def _flush_log(self) -> int:
        self._checkpoint.sample_log()
        committed = self._positions["committed"]
        if committed == self._flushed or not self._due(committed):
            return 0
        at = self._flushed
        while at < committed:
            segment = self._segments.segment(at)
            os.fdatasync(segment.handle)
            at = segment.base + segment.size
        self._flushed = committed
        self._positions.publish("flushed", committed)
        self._flushed_at_ms = self._stage.clock.monotonic_ms()
        self._stage.bus.ring("writer")
        if self._config.sync_flush:
            self._stage.bus.ring("reput")
        return 1

    def _due(self, committed: int) -> bool:
        """At once when somebody waits for it or flushing is sync, else as RocketMQ does."""
        config = self._config
        if config.sync_flush or self._positions["flush_wanted"] > self._flushed:
            return True
        now_ms = self._stage.clock.monotonic_ms()
        if now_ms - self._thorough_at_ms >= config.flush_commit_log_thorough_interval_ms:
            self._thorough_at_ms = now_ms
            return True
        if now_ms - self._flushed_at_ms < config.flush_interval_commit_log_ms:
            return False
        pages = committed // PAGE_BYTES - self._flushed // PAGE_BYTES
        return pages >= config.flush_commit_log_least_pages

    # --- consume queues and checkpoint ---

    def _flush_queues(self) -> None:
        config = self._config
        now_ms = self._stage.clock.monotonic_ms()
        if now_ms - self._queues_at_ms < config.flush_interval_consume_queue_ms:
            return
        self._queues_at_ms = now_ms
        thorough = (
            now_ms - self._queues_thorough_at_ms >= config.flush_consume_queue_thorough_interval_ms
        )
        if thorough:
            self._queues_thorough_at_ms = now_ms
        self._sync_queues(0 if thorough else config.flush_consume_queue_least_pages)

    def _sync_queues(self, least_pages: int) -> None:
        self._checkpoint.sample_queues()
        if self._queues.sync(least_pages):
            self._checkpoint.queues_are_synced()
        self._checkpoint.write()

    def inputs(self) -> list[zmq.Socket[bytes]]:
        return []

    def idle_ms(self) -> int:
        return TICK_MS

    def drained(self) -> bool:
        """The last one to stop: log, queues and checkpoint are whole on disk then."""
        if self._positions["flush_error"]:
            return True
        self._flushed_at_ms = self._thorough_at_ms = -(10**9)  # due now
        return self._flushed == self._positions["committed"]

    def close(self) -> None:
        if not self._positions["flush_error"]:
            # the times of the last messages are known for certain now: nothing moves any more
            self._checkpoint.sample_log()
            self._sync_queues(0)
        self._checkpoint.close()
        self._queues.close()
        self._segments.close()
