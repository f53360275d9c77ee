"""The committer: copies records from the transient store pool into the segment files.

Owns:     `committed`, `commit_error`; the bytes of the segment files, where the pool is on.
Reads:    `wrote`, `flush_wanted`; who waits for the queues; the pool.
Hears:    the writer's doorbell.
Notifies: the reput; the flusher where somebody waits for the disk.
On crash: the next one goes on at `committed`; copying the same bytes twice changes nothing. The
          pool is shared memory and outlives every process.

When the disk refuses the bytes, usually because it is full, the committer waits and tries again:
they are still in the pool. The writer takes no message meanwhile.

In a flood it copies whole blocks, which the page cache likes (`write_at` says why); what comes
after the last block goes with the next copy. A block ends in the middle of a record, so `committed`
then stays at the last known end of a frame.

With the pool off the writer stores into the segment itself, and `committed` follows `wrote`.
"""

from __future__ import annotations

import errno

from penstock.shared.errors import RESOURCE_EXHAUSTED, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import write_at
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.layout import PAGE_BYTES, StorePaths
from penstock.shared.memory.transient_store_pool import TransientStorePool
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import LAZY_MS, QUIET_TICK_MS, LazyLooks, queues_awaited
from penstock.shared.process.retry import Retry

# With sync flushing, nobody sees bytes before they are on disk, so less than a block waits this
# long at most.
UNFLUSHED_MS = 5
# One call copies at most this much; the heartbeat comes between calls.
_COPY_BYTES = 8 << 20


class Committer(Actor):
    """Brings what the writer has written from the pool into the segment files."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        self._committed_at_ms = stage.clock.monotonic_ms()
        self._looks = LazyLooks()
        self._retry = Retry(stage.clock)
        # how far the flusher has been woken for clients that wait for the disk
        self._woken_for = 0

    def start(self) -> None:
        # `_copied`: how far bytes are copied; `_seen`: where the log ended at the last copy
        self._committed = self._copied = self._seen = self._positions["committed"]
        self._segment_bytes = self._config.mapped_file_size_commit_log_bytes
        directory = StorePaths(self._config.store).commit_log
        self._segments = MappedFileQueue(directory, self._segment_bytes, writable=True, keep=2)
        run = self._stage.run
        self._pool = TransientStorePool(run.pool) if run.pool_enabled else None

    def work(self) -> int:
        wrote = self._positions["wrote"]
        stop = self._due_end(wrote)
        if stop == self._copied:
            self._wake_flusher()  # for what was committed before a client asked to wait for it
            return 0
        if self._retry.waits:
            return 0
        if self._pool is not None:
            try:
                self._copy(self._pool, self._copied, stop)
            except (OSError, StoreDamaged) as error:
                self._refused(error)
                return 0
        # A copy that ends at a block has copied past `_seen`, the log's end at the copy before: so
        # `_seen` is an end of frames whose bytes are all in the segments.
        end = wrote if stop == wrote else self._seen
        self._copied, self._seen = stop, wrote
        if end > self._committed:
            self._publish(end)
        return 1

    def _publish(self, end: int) -> None:
        """Everything below `end`, which is an end of frames, is in the segments."""
        crash_point("commit.before_cursor")
        self._committed = end
        if self._positions["commit_error"]:
            # Cleared before `committed` moves. If this process died between the two stores the
            # other way round, its successor would find nothing to commit, and the error would stay.
            self._positions.publish("commit_error", 0)
        self._positions.publish("committed", end)
        crash_point("commit.after_cursor")
        self._committed_at_ms = self._stage.clock.monotonic_ms()
        self._looks.note(self._committed_at_ms)
        if not self._config.sync_flush:
            self._stage.bus.notify("reput")
        self._wake_flusher(self._config.sync_flush)

    def _wake_flusher(self, always: bool = False) -> None:
        """With async flushing, wake the flusher once for bytes that somebody waits for."""
        wanted = min(self._positions["flush_wanted"], self._committed)
        if always or wanted > self._woken_for:
            self._woken_for = wanted
            self._stage.bus.notify("flusher")

    def _refused(self, error: OSError | StoreDamaged) -> None:
        """Keep the bytes in the pool and try again later. A truncated segment counts as a bad disk;
        a resource that only this process lacks does not."""
        if isinstance(error, OSError) and error.errno in RESOURCE_EXHAUSTED:
            raise error
        if not self._positions["commit_error"]:
            self._stage.report(f"the log cannot be written: {error}; trying again")
        number = error.errno if isinstance(error, OSError) else None
        self._positions.publish("commit_error", number or errno.EIO)
        self._retry.put_off()

    def _due_end(self, wrote: int) -> int:
        """The offset up to which to copy now: all if somebody waits for the disk or the pool is
        off; otherwise as RocketMQ does, but in whole blocks of the least pages.

        With a thorough interval of 1 ms, a message that comes alone is copied at once, and those
        that come close together wait for the next interval; see `_thorough_ms`.
        """
        # first, because usually there is nothing to do
        if wrote == self._copied or self._pool is None:
            return wrote
        if self._positions["flush_wanted"] > self._committed:
            return wrote
        # half the pool is waiting: room counts more than few writes
        if wrote - self._committed > self._pool.size // 2:
            return wrote
        block = self._config.commit_commit_log_least_pages * PAGE_BYTES
        since_ms = self._stage.clock.monotonic_ms() - self._committed_at_ms
        is_late = since_ms >= self._thorough_ms()
        if not block or wrote - self._copied < block:
            return wrote if is_late or not block else self._copied
        # the late bytes were there at the last block, so it is enough if this one takes them along
        is_enough = not is_late or self._seen > self._committed
        return wrote - wrote % self._segment_bytes % block if is_enough else wrote

    def _thorough_ms(self) -> int:
        """How long less than a block waits. If nobody waits for the queues, some messages go
        together; otherwise some hundred a second would each wake this actor and the reput."""
        thorough_ms = self._config.commit_commit_log_thorough_interval_ms
        if queues_awaited(self._positions):
            return thorough_ms
        # with sync flushing, consumers see only what is on disk, and may be the only ones to wait
        return max(thorough_ms, UNFLUSHED_MS if self._config.sync_flush else LAZY_MS)

    def _copy(self, pool: TransientStorePool, start: int, stop: int) -> None:
        crash_point("commit.before_copy")
        at = start
        while at < stop:
            segment = self._segments.segment(at)
            limit = min(stop, segment.base + segment.size, at + _COPY_BYTES)
            with self._stage.disk:
                for piece in pool.pieces(at, limit):
                    write_at(segment.handle, piece, at - segment.base)
                    at += len(piece)
            crash_point("commit.mid_copy")
            self._stage.beat()

    def idle_ms(self) -> int:
        config = self._config
        now_ms = self._stage.clock.monotonic_ms()
        sleep_ms = self._looks.idle_ms(now_ms, QUIET_TICK_MS)
        if self._positions["wrote"] != self._committed:
            sleep_ms = min(sleep_ms, config.commit_interval_commit_log_ms)
            due_ms = max(self._committed_at_ms + self._thorough_ms(), self._retry.due_ms)
            sleep_ms = min(sleep_ms, due_ms - now_ms)
        return max(1, sleep_ms)

    def release_deleted(self) -> None:
        self._segments.release_deleted(self._stage.clock.monotonic_ms())

    def drained(self) -> bool:
        if self._positions["commit_error"]:
            return True  # the pool keeps them for the next start
        self._committed_at_ms = -self._thorough_ms()  # due now
        return self._committed == self._positions["wrote"]

    def close(self) -> None:
        self._segments.close()
        if self._pool is not None:
            self._pool.close()
