"""The flusher: makes the log, the consume queues, the index and the checkpoint durable.

Owns:     `flushed`, `flush_error`; the checkpoint file; the watermark.
Reads:    `committed`, `flush_wanted`, `wrote_timestamp`, `dispatched`, `name_error`, `read_only`;
          `deleted_queues`; all files of the store.
Hears:    the committer's doorbell.
Notifies: the writer, the reader, the gateway and the reput.
On crash: the next one goes on at `flushed`; syncing again what is synced is harmless.

The first error of a flush stops the store: the kernel reports it once and may drop the pages, so a
second try could succeed and be a lie. For the same reason a new flusher first rewrites what its
predecessor was flushing: that one may have died after the kernel reported an error and before it
passed the error on. If a full disk takes no new queue's name or no checkpoint, that is not such an
error: nothing is lost, and the flusher tries again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator

from penstock.actors.flusher.index_sync import IndexSync
from penstock.actors.flusher.queue_sync import ConsumeQueueSync
from penstock.shared.errors import RESOURCE_EXHAUSTED, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import NO_ROOM, FlushFailed, sync_file, write_again
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.index.directory import index_geometry
from penstock.shared.layout import PAGE_BYTES, StorePaths
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS, LogBells
from penstock.shared.process.retry import Retry
from penstock.shared.store.checkpoint_file import CheckpointKeeper, load_checkpoint
from penstock.shared.store.watermark import WATERMARK_MS, WatermarkKeeper, load_watermark

# Queues to sync, and time to spend, between two looks at the log: producers wait for the log.
QUEUES_AT_ONCE, QUEUES_MS = 8, 10
# A thorough round of 100,000 queues takes seconds. The next one waits nine times as long, so that
# rounds take at most a tenth of the flusher's time; but no longer than RocketMQ's interval, because
# after a power failure a start dispatches again what no round has covered.
REST_ROUNDS, MOST_REST_MS = 9, 60_000
_WRITE_AGAIN_BYTES = 8 << 20


class Flusher(Actor):
    """Syncs the files of the store, and tells the others how far they are on disk."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        now_ms = stage.clock.monotonic_ms()
        self._flushed_at_ms = self._thorough_at_ms = now_ms
        self._queues_at_ms = now_ms
        self._queues_thorough_ms = now_ms + stage.config.flush_consume_queue_thorough_interval_ms
        self._thorough_began_ms: int | None = None  # of the round under way
        self._round: Generator[None, None, bool] | None = None
        self._marked_at_ms = now_ms
        self._in_doubt = True
        self._bells = LogBells(stage.bus, stage.positions, stage.clock)
        # of the round of queues, index and checkpoint, for which the disk may have no room
        self._retry = Retry(stage.clock)

    def start(self) -> None:
        config = self._config
        self._flushed = self._positions["flushed"]
        paths = StorePaths(config.store)
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._segments = MappedFileQueue(
            paths.commit_log, self._segment_bytes, writable=True, keep=4
        )
        self._queues = ConsumeQueueSync(paths, config, self._stage.run, self._positions)
        self._index = IndexSync(
            paths.index, index_geometry(config), load_checkpoint(paths.checkpoint)
        )
        # The watermark has no checkpoint words that a predecessor wrote but had not synced.
        mark = load_watermark(paths.watermark)
        self._checkpoint = CheckpointKeeper(
            paths.checkpoint,
            self._positions,
            self._segments,
            Checkpoint() if mark is None else mark.checkpoint,
        )
        self._mark = WatermarkKeeper(paths.watermark, self._stage.run.run_id, config.sync_flush)

    def work(self) -> int:
        if self._positions["flush_error"]:
            return 0
        try:
            self._refuse_lost_names()
            return self._flush_log() + self._keep_watermark() + self._flush_queues()
        except OSError as error:
            self._fail(error)
            return 0
        except StoreDamaged as error:  # somebody has truncated a segment
            self._fail(FlushFailed(errno.EIO, str(error)))
            return 0

    def _fail(self, error: OSError) -> None:
        """From now on nothing is acknowledged, and nobody flushes, until the broker restarts.

        Two errors are different. If a full disk refuses something new, the round begins again soon.
        If the process is out of memory or descriptors, that says nothing about the disk: it exits,
        and its successor goes on.
        """
        if error.errno in RESOURCE_EXHAUSTED and not isinstance(error, FlushFailed):
            raise error
        self._round = None
        if isinstance(error, FlushFailed) or error.errno not in NO_ROOM:
            self._positions.publish("flush_error", error.errno or 1)
            self._stage.report(f"a flush has failed, the store is read-only: {error}")
            self._stage.bus.notify("writer")
            return
        if not self._retry.has_failed:
            self._stage.report(f"there is no room for a checkpoint: {error}; trying again")
        self._retry.put_off()

    # --- the log ---

    def _write_again(self) -> None:
        """Write the same bytes again over pages whose flush may have failed unseen.

        The kernel marks a page clean after a failed write and reports the error once, possibly to
        a predecessor that died before it could store `flush_error`. A sync of clean pages would
        succeed and prove nothing, so the pages are made dirty first.
        """
        at, committed = self._flushed, self._positions["committed"]
        while at < committed:
            segment = self._segments.segment(at)
            stop = min(committed, segment.base + segment.size, at + _WRITE_AGAIN_BYTES)
            with self._stage.disk:
                write_again(segment.handle, at - segment.base, stop - segment.base)
            at = stop
            self._stage.beat()
        self._in_doubt = False

    def _flush_log(self) -> int:
        self._checkpoint.sample_log()
        committed = self._positions["committed"]
        if committed == self._flushed or not self._due(committed):
            return 0
        if self._in_doubt:
            self._write_again()
        # Whole segments are synced one by one, oldest first. `flushed` moves once, after the last:
        # a crash in between leaves more on disk than is recorded, which is harmless.
        at = self._flushed
        crash_point("flush.before_msync")
        while at < committed:
            segment = self._segments.segment(at)
            began_ns = time.monotonic_ns()
            with self._stage.disk:
                sync_file(segment.handle)
            self._positions.count_duration("flush", time.monotonic_ns() - began_ns)
            at = segment.base + segment.size
            if at < committed:
                crash_point("flush.roll")
            self._stage.beat()
        crash_point("flush.after_msync_before_cursor")
        size, self._flushed = committed - self._flushed, committed
        self._positions.publish("flushed", committed)
        crash_point("flush.after_cursor_before_ack")
        self._flushed_at_ms = self._stage.clock.monotonic_ms()
        self._stage.bus.notify("writer")
        if self._config.sync_flush:
            self._bells.readable(size)
            self._bells.stored("reput", committed)
        return 1

    def _due(self, committed: int) -> bool:
        """At once if somebody waits for it or flushing is sync; otherwise as RocketMQ does."""
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

    def _keep_watermark(self) -> int:
        """Write how far the log is on disk, ten times a second while that changes.

        No acknowledgement waits for it. After a power failure, bytes flushed since the last
        watermark look like a tail that was never flushed; that matters only on a disk that has lost
        what it had reported as synced."""
        now_ms = self._stage.clock.monotonic_ms()
        if now_ms - self._marked_at_ms < WATERMARK_MS or self._retry.waits:
            return 0
        self._marked_at_ms = now_ms
        return self._write_watermark()

    def _write_watermark(self, *, is_last: bool = False) -> int:
        """Write the watermark, unless the log is damaged: the next start has to check all of it."""
        if self._positions["read_only"]:
            return 0
        with self._stage.disk:
            written = self._mark.write(self._flushed, self._checkpoint.durable, is_last=is_last)
        self._queues.watermark = self._flushed
        return written

    # --- consume queues and checkpoint ---

    def _flush_queues(self) -> int:
        """Begin a round when it is time, or continue it; returns how many steps were done."""
        if self._round is None:
            config = self._config
            now_ms = self._stage.clock.monotonic_ms()
            if self._retry.waits:
                return 0
            if now_ms - self._queues_at_ms < config.flush_interval_consume_queue_ms:
                if self._checkpoint.log_has_followed():
                    self._write_checkpoint()
                return 0
            self._queues_at_ms = now_ms
            is_thorough = now_ms >= self._queues_thorough_ms
            self._thorough_began_ms = now_ms if is_thorough else None
            self._begin_round(0 if is_thorough else config.flush_consume_queue_least_pages)
        until_ms = self._stage.clock.monotonic_ms() + QUEUES_MS
        for _ in range(QUEUES_AT_ONCE):
            if not self._go_on() or self._stage.clock.monotonic_ms() > until_ms:
                break
        return int(self._round is not None)

    def _begin_round(self, least_pages: int, *, last: bool = False) -> None:
        self._checkpoint.sample_queues()
        self._round = self._sync_dispatched(least_pages, last)

    def _sync_dispatched(self, least_pages: int, last: bool) -> Generator[None, None, bool]:
        """Sync the queues, and then the index if all queues are synced; whether they are."""
        dispatched = self._positions["dispatched"]
        complete = yield from self._queues.sync(least_pages)
        if complete and self._config.message_index_enable:
            crash_point("flush.after_queues_before_index")
            full_ms = yield from self._index.sync(dispatched, whole=last)
            self._checkpoint.index_is_synced(full_ms)
        return complete

    def _go_on(self) -> bool:
        """Sync one more piece of queues and index, or end the round; whether there may be more."""
        assert self._round is not None
        try:
            with self._stage.disk:
                next(self._round)
            return True
        except StopIteration as end:
            self._round = None
            self._rest()
            self._refuse_lost_names()
            if end.value:
                self._checkpoint.queues_are_synced()
            self._write_checkpoint()
            self._retry.succeeded()
            return False

    def _rest(self) -> None:
        """Set when the next thorough round is due, by how long the last one took."""
        began_ms, self._thorough_began_ms = self._thorough_began_ms, None
        if began_ms is not None:
            now_ms = self._stage.clock.monotonic_ms()
            rest_ms = min(REST_ROUNDS * (now_ms - began_ms), MOST_REST_MS)
            interval_ms = self._config.flush_consume_queue_thorough_interval_ms
            self._queues_thorough_ms = max(began_ms + interval_ms, now_ms + rest_ms)

    def _refuse_lost_names(self) -> None:
        """Raise FlushFailed if a sync failed in the reput: the kernel reports that only once."""
        error = self._positions["name_error"]
        if error:
            raise FlushFailed(error, f"a queue's directory: {os.strerror(error)}")

    def _write_checkpoint(self) -> None:
        """Write the watermark and the checkpoint, unless the log is damaged.

        The watermark goes first: a start recognizes an older copy of it by the checkpoint's record.
        It goes again last, with the checkpoint's positions: those are what a start believes.
        """
        if not self._positions["read_only"]:
            self._write_watermark()
            with self._stage.disk:
                self._checkpoint.write()
            self._write_watermark()

    def idle_ms(self) -> int:
        """Time until the next flush that is due by time, for which no doorbell comes."""
        if self._retry.has_failed:
            return TICK_MS
        left_ms = self._flushed_at_ms + self._config.flush_interval_commit_log_ms
        left_ms -= self._stage.clock.monotonic_ms()
        # nobody notifies it of bytes that nobody waits for
        interval_ms = max(TICK_MS, self._config.flush_interval_commit_log_ms)
        return left_ms if left_ms > 0 else min(QUIET_TICK_MS, interval_ms)

    def release_deleted(self) -> None:
        self._segments.release_deleted(self._stage.clock.monotonic_ms())
        self._queues.release_deleted()

    def drained(self) -> bool:
        """Whether all is flushed. The flusher stops last: then everything is whole on disk."""
        if self._positions["flush_error"]:
            return True
        self._thorough_at_ms = -self._config.flush_commit_log_thorough_interval_ms  # due now
        return self._flushed == self._positions["committed"]

    def close(self) -> None:
        if not self._positions["flush_error"]:
            try:
                self._flush_everything()
            except (OSError, StoreDamaged) as error:  # this was the last chance
                self._stage.report(f"the last flush has failed: {error}")
                number = error.errno or 1 if isinstance(error, OSError) else errno.EIO
                self._positions.publish("flush_error", number)
        self._mark.close()
        self._checkpoint.close()
        self._queues.close()
        self._segments.close()

    def _flush_everything(self) -> None:
        """Flush all at the end: no position moves any more, so the last timestamps are exact."""
        self._checkpoint.sample_log()
        while self._round is not None and self._go_on():
            self._stage.beat()
        # the list of queues has its last word then, by which a start knows an older copy of that
        self._write_watermark()
        self._begin_round(0, last=True)
        while self._go_on():
            self._stage.beat()
        self._write_watermark(is_last=True)
