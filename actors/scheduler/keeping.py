"""How the scheduler saves its progress, shows it, and tells the cleaner.

each 200 ms    penstock/scheduler, which survives any process
each 5 s       config/delayOffset.json, on disk, for RocketMQ
each 30 s      the timers' files, on disk: a thread waits for that; then what they hold
each minute    config/timercheck, on disk, for RocketMQ; whether what waits is about to expire
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence

import msgspec

from penstock.actors.scheduler.file_sums import FileSums, save_sums
from penstock.actors.scheduler.levels import Level
from penstock.actors.scheduler.progress import Progress, ProgressFile
from penstock.actors.scheduler.rocketmq_timers import RocketMQTimers
from penstock.actors.scheduler.rolling import Rolling
from penstock.actors.scheduler.timer_files import TimerFiles
from penstock.actors.scheduler.timers import Timers
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths, is_segment_name
from penstock.shared.process.actor import Stage

SAVE_MS, DOCUMENT_MS, SYNC_MS, LOOK_MS = 200, 5000, 30_000, 60_000
HOUR_MS = 3_600_000
# After this part of the time that segments are kept, waiting records in them are stored again.
ROLL_SHARE = 2
# Up to this many waiting messages it goes through them for RocketMQ; at a stop always.
MOST_LOOKED_AT = 100_000
_libc = ctypes.CDLL(None, use_errno=True)


class Keeping:
    """Saves one scheduler's progress."""

    def __init__(
        self,
        stage: Stage,
        file: ProgressFile,
        files: TimerFiles,
        progress: Progress,
        floor_before: int,
        now_ms: int,
    ) -> None:
        """`floor_before`: no copy that the last life may have put without recording it lies below
        this log offset; -1: there is no such copy."""
        self._stage, self._file, self._files = stage, file, files
        self._positions, self._clock = stage.positions, stage.clock
        paths = StorePaths(stage.config.store)
        self._commit_log, self._sums_file = paths.commit_log, paths.timer_sums
        self._rocketmq = RocketMQTimers(paths)
        self._progress = progress
        self._saved: bytes = b""
        # -1 once it is known what of the last life's work is stored
        self._floor_before = floor_before
        self._save_ms = now_ms - SAVE_MS
        self._document_ms = self._sync_ms = now_ms
        # both come soon after a start
        self._look_ms = self._hand_ms = now_ms - LOOK_MS
        self._document: dict[int, int] = dict(progress.levels)
        self._sync: _Sync | None = None
        self._has_lost = False
        self._error = ""
        # Whether the disk has a note that this life exists. Nothing is sent before: after a death
        # or a power failure, the next life must not take the last one's slot for an orderly stop.
        self.has_begun = False

    def turn(
        self,
        levels: Sequence[Level],
        timers: Timers,
        rolling: Rolling,
        sender: RecordSender,
        wall_ms: int,
    ) -> None:
        """Do what is due."""
        now_ms = self._clock.monotonic_ms()
        # a roll waits for a save, but a disk that has just refused one gets a pause
        if now_ms - self._save_ms < SAVE_MS and (rolling.is_saved or self._error):
            return
        self._save_ms = now_ms
        try:
            with self._stage.disk:
                self._note(levels, timers, rolling, sender)
                if not self.has_begun:
                    self._file.save(self._progress, durable=True)
                    self.has_begun = True
                self._sync_files(now_ms, wall_ms, timers)
                timers.tidy()
                if now_ms - self._look_ms >= LOOK_MS:
                    self._look_ms = now_ms
                    if timers.pending > 0:
                        self._begin_roll(timers, rolling, wall_ms)
                if now_ms - self._hand_ms >= LOOK_MS and timers.caught_up:
                    self._hand_ms = now_ms
                    # What RocketMQ was told before stays true, only less exact; to go through
                    # millions would make due messages late.
                    if timers.pending <= MOST_LOOKED_AT:
                        self._tell_rocketmq(timers)
                self._save(now_ms, wall_ms)
                rolling.saved = self._progress.rolling, self._progress.rolled_minute
            self._error = ""
        except OSError as error:
            if str(error) != self._error:
                self._stage.report(f"what is delivered cannot be noted: {error}; trying again")
            self._error = str(error)
        self._show(levels, timers)

    def end(
        self, levels: Sequence[Level], timers: Timers, rolling: Rolling, sender: RecordSender
    ) -> None:
        """The last save of this life. If the disk refuses it, the last one holds: the next life
        looks for what was delivered since."""
        if self._sync is not None:
            self._sync.join()
        try:
            self._hear_sync()
            self._note(levels, timers, rolling, sender)
            if self._progress.boot:
                save_sums(self._sums_file, FileSums(self._progress.indexed, self._files.sums()))
            # what the last life has left in doubt may be so still
            begun = len(sender) or timers.is_amid or rolling.put_after >= 0
            self._progress.clean = not begun and self._floor_before < 0
            self._file.save_document(self._progress, self._clock.now_ms())
            self._tell_rocketmq(timers)
        except OSError as error:
            self._stage.report(f"what is delivered cannot be noted: {error}")
        self._show(levels, timers)

    def _note(
        self, levels: Sequence[Level], timers: Timers, rolling: Rolling, sender: RecordSender
    ) -> None:
        progress = self._progress
        progress.levels = {each.level: each.done for each in levels if each.done}
        progress.delivered_ms = timers.delivered_ms()
        progress.split_hour = timers.calendar.whole_hour
        progress.indexed, place = timers.saved_index()
        # otherwise the next life reads the missing part again, as after a power failure, but knows
        # what was there
        progress.boot = self._stage.run.boot_id if timers.has_known and not self._has_lost else ""
        # with nothing on its way, later copies are stored past the present end of the log
        floor = sender.floor if len(sender) else self._positions["wrote"]
        # where progress is recorded only in larger pieces, copies may be stored long before it is
        amid = place, timers.put_after(), rolling.put_after
        progress.floor = min([floor, *(at for at in amid if at >= 0)])
        if self._floor_before >= 0:
            # the last life's copies may be stored already, and are looked for only in their turn
            levels_sure = all(each.is_sure for each in levels)
            if levels_sure and timers.is_sure and rolling.is_sure:
                self._floor_before = -1
            else:
                progress.floor = min(progress.floor, self._floor_before)
        # rolls below it are over: what they cover has expired
        timers.rolls = [r for r in timers.rolls if r.below > self._positions["log_start"]]
        progress.rolls = timers.rolls
        progress.rolling, progress.rolled_minute = rolling.roll, rolling.minute

    def _tell_rocketmq(self, timers: Timers) -> None:
        offset = timers.queue_offset(self._positions["flushed"])
        self._rocketmq.keep(offset, self._clock.now_ms())

    def _save(self, now_ms: int, wall_ms: int) -> None:
        raw = msgspec.json.encode(msgspec.structs.replace(self._progress, number=0))
        if raw != self._saved:
            self._file.save(self._progress)
            self._saved = raw
        if now_ms - self._document_ms >= DOCUMENT_MS and self._document != self._progress.levels:
            self._document_ms = now_ms
            self._document = dict(self._progress.levels)
            self._file.save_document(self._progress, wall_ms)

    def _sync_files(self, now_ms: int, wall_ms: int, timers: Timers) -> None:
        """Have the timers' files synced now and then; a thread waits for the disk.

        Raises StoreUnavailable after a failed sync: the next life makes the files again.
        """
        self._hear_sync()
        if self._has_lost:
            self._save(now_ms, wall_ms)
            raise StoreUnavailable(
                "the timers' files could not be synced", None, "they are made again from the log"
            )
        due = now_ms - self._sync_ms >= SYNC_MS and timers.has_known
        index, _ = timers.saved_index()
        if due and self._sync is None and index > self._progress.synced:
            self._sync_ms = now_ms
            sums = FileSums(index, self._files.sums())
            self._sync = _Sync(self._files.open_directory(), sums)
            self._sync.start()

    def _hear_sync(self) -> None:
        """Take the outcome of a sync that is over. Raises OSError where it cannot be noted."""
        if self._sync is None or self._sync.is_alive():
            return
        sync, self._sync = self._sync, None
        if not sync.failed:
            # noted first: `synced` says that a comparison with the note comes so far
            save_sums(self._sums_file, sync.sums)
            self._progress.synced = sync.sums.indexed
            return
        # From now on the kernel counts the lost pages as written. No later sync vouches for them,
        # and reading them may return what the disk has.
        self._has_lost, self._progress.synced, self._progress.boot = True, 0, ""

    def _begin_roll(self, timers: Timers, rolling: Rolling, wall_ms: int) -> None:
        reserved_ms = self._stage.config.file_reserved_time_h * HOUR_MS
        before_ms = self._clock.now_ms() - reserved_ms // ROLL_SHARE
        below = max((roll.below for roll in timers.rolls), default=self._positions["log_start"])
        start = below
        for name in sorted(os.listdir(self._commit_log)):
            if is_segment_name(name) and int(name) >= start:
                written_ms = (self._commit_log / name).stat().st_mtime_ns // 1_000_000
                if written_ms >= before_ms:
                    break
                below = int(name) + self._stage.config.mapped_file_size_commit_log_bytes
        # nothing in the segment being written can expire
        segment = self._stage.config.mapped_file_size_commit_log_bytes
        below = min(below, self._positions["wrote"] // segment * segment)
        if below > start:
            rolling.begin(below, wall_ms)

    def _show(self, levels: Sequence[Level], timers: Timers) -> None:
        positions = self._positions
        places = [place for level in levels if (place := level.first_place()) >= 0]
        floor = min([timers.first_place(), *places])
        if floor >= 0:
            # Never back, since what was below may be gone; and never 0, which means unknown.
            positions.publish("delay_floor", max(positions["delay_floor"], floor, 1))
        sources: list[Level | Timers] = [*levels, timers]
        positions.publish("pending_delayed", max(0, sum(each.pending for each in sources)))
        for name in ("delivered", "undelivered"):
            # the increase since the last look: the positions count for the run, over several lives
            positions.publish(name, positions[name] + sum(getattr(each, name) for each in sources))
            for each in sources:
                setattr(each, name, 0)


class _Sync(threading.Thread):
    """A sync of the file system that has the timers' files, of which there may be thousands."""

    def __init__(self, handle: int, sums: FileSums) -> None:
        """`sums` are those of what is synced."""
        super().__init__(daemon=True)
        self._handle, self.sums = handle, sums
        self.failed = False

    def run(self) -> None:
        self.failed = _libc.syncfs(self._handle) != 0
