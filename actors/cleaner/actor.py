"""The cleaner: deletes messages that have had their time, and says when the disk is full.

Owns:     `log_start`, `deleted_segments`, `deleted_queue_files`, `deleted_index_files`,
          `clean_error`, `disk_used`, `disk_full`; a queue's min offset, once the queue table counts
          its slot; penstock/retention.json and deletions.json; the deletion of expired files, and
          of those of deleted topics.
Reads:    `wrote`, `allocated`, `committed`, `flushed`, `dispatched_record`, `read_only`,
          `delay_floor`, `unsaved_offsets`, `forgotten_topics`; the checkpoint, segments' times,
          penstock/archived.json.
Hears:    nobody; it looks at every tick whether somebody asked (`penstock clean`).
Notifies: nobody.
On crash: the next one finishes what the last one had begun. The cleaner first writes down what
          goes, then stores `log_start`, then the queues' min offsets; then it deletes files,
          oldest first, each deletion durable before the next. A start of the whole store begins at
          the first segment that is still there, and strikes off the list what did not go.

The segment with the last record stays, whatever its age. So does everything that is not flushed,
not dispatched, or past the record at which the next start would begin its scan; everything from
the first delayed message on that is not delivered; and, with expire_archived_only, what no archive
has. Of a damaged log nothing goes before somebody has looked at it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.actors.cleaner.deletion_notes import QUEUES_AT_ONCE, DeletionNotes
from penstock.actors.cleaner.empty_segments import empty_bytes, is_wanted_again
from penstock.actors.cleaner.queue_expiry import QueueExpiry
from penstock.actors.cleaner.retention import HOUR_MS, Decision, choose, decide
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.disk_space import disk_used_percent
from penstock.shared.files.durable import delete_file, set_aside, sync_directory
from penstock.shared.index.directory import index_files, read_index_header
from penstock.shared.layout import StorePaths, is_segment_name, segment_name
from penstock.shared.log.archived import load_archived
from penstock.shared.process.actor import RELEASE_MS, Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.shared.store.retention_clock import TRUST_CLOCK, RetentionClock

# A round that an operator asked for goes on for up to this many batches: RocketMQ's number.
BATCHES_WHEN_ASKED = 20
# After this time every actor has closed a deleted file, unless it is in use: it checks as it wakes.
SETTLE_MS = RELEASE_MS + QUIET_TICK_MS + 200

# Pauses in ms, one after each deletion.
Steps = Generator[int, None, None]


class Cleaner(Actor):
    """Deletes what has expired, and watches how full the disks are."""

    def __init__(self, stage: Stage, used_percent: Callable[[Path, int], int] = disk_used_percent):
        self._stage = stage
        self._config = stage.config
        self._clock = stage.clock
        self._positions = stage.positions
        self._used_percent = used_percent
        self._paths = StorePaths(stage.config.store)
        self._segment_bytes = stage.config.mapped_file_size_commit_log_bytes
        self._request = stage.run.clean_request
        self._asked = False
        self._round: Steps | None = None
        self._paused_until_ms = 0
        self._error = 0
        self._unreadable: set[int] = set()
        # directories in which something could not be deleted, and this was reported
        self._told: set[Path] = set()
        self._archive_unknown = False
        # up to this deletion of a topic its files were removed; -1: none yet
        self._emptied = -1
        # directories in which every deletion is durable
        self._settled: set[Path] = set()

    def start(self) -> None:
        self._queues = QueueExpiry(self._config, self._stage.run, self._positions)
        self._log_start = self._positions["log_start"]
        self._due_ms = self._look_ms = self._clock.monotonic_ms()
        self._time = RetentionClock(
            self._paths.retention,
            self._clock,
            self._config.file_reserved_time_h * HOUR_MS,
            self._positions["wrote_timestamp"],
            self._stage.report,
        )
        self._notes = DeletionNotes(self._config, self._clock, self._queues, self._stage.report)
        self._decide()  # so that whoever starts the broker hears at once that the disk is full
        if not self._positions["read_only"]:
            self._round = self._finish()

    def work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_ms:  # also while a long round goes on
            self._look_ms = now_ms + self._config.clean_resource_interval_ms
            with self._stage.disk:
                self._time.now_ms()  # notices a jump when it comes, not when something may go
                self._decide()
        if self._round is None and not self._begin(now_ms):
            return 0
        if now_ms < self._paused_until_ms:
            return 0
        assert self._round is not None
        try:
            with self._stage.disk:
                self._paused_until_ms = now_ms + next(self._round)
        except StopIteration:
            self._end(self._config.clean_resource_interval_ms)
        except OSError as error:
            self._error = error.errno or 1
            if self._error != self._positions["clean_error"]:
                self._stage.report(f"what has expired cannot be deleted: {error}; trying again")
            self._end(self._config.redelete_hanged_file_interval_ms)
        return 1

    def _begin(self, now_ms: int) -> bool:
        """Begin a round when it is time, or somebody asks for one."""
        # after a start the scheduler has to look first, and until then nothing may go
        self._asked = self._positions["delay_floor"] > 0 and self._request.exists()
        has_gone = self._positions["forgotten_topics"] != self._emptied
        if now_ms < self._due_ms and not self._asked and not has_gone:
            return False
        if self._positions["read_only"]:
            self._end(self._config.clean_resource_interval_ms)
            return False
        self._round = self._clean()
        return True

    def _trusts_clock(self) -> bool:
        """Whether an operator asked for this round and has vouched for the clock."""
        return self._asked and self._request.read_bytes() == TRUST_CLOCK

    def _end(self, pause_ms: int) -> None:
        self._positions.publish("clean_error", self._error)
        if not self._error:
            self._told.clear()
        self._error = 0
        if self._asked:
            self._request.unlink(missing_ok=True)
            self._asked = False
        self._due_ms = self._clock.monotonic_ms() + pause_ms
        self._round = None

    # --- what goes ---

    def _decide(self) -> Decision:
        """Look at the disks, publish how full they are, and apply the rule."""
        positions, paths = self._positions, (self._paths.commit_log, self._paths.consume_queue)
        empty = empty_bytes(
            self._paths, self._segment_bytes, positions["wrote"], positions["allocated"]
        )
        used = [
            self._used_percent(path, empty if _disk(path) == _disk(paths[0]) else 0)
            for path in paths
        ]
        was_full = positions["disk_full"]
        decision = decide(
            self._config,
            self._clock.local_hour(),
            used,
            was_full=bool(was_full),
            asked=self._asked,
        )
        self._fullest = max(used)
        positions.publish("disk_used", self._fullest + 1)
        positions.publish("disk_full", self._fullest if decision.disk_full else 0)
        if decision.disk_full and not was_full:
            self._stage.report(
                f"the disk of {self._paths.root} is {self._fullest}% full; until there is room no "
                "message is taken"
            )
        elif was_full and not decision.disk_full:
            self._stage.report(f"the disk is {self._fullest}% full; messages are taken again")
        return decision

    def _closed_segments(self, most: int) -> list[int]:
        """When each of the oldest segments that may go was last written, in ms, in order.

        Everything that a start could need stays: the scan begins at the checkpoint's record, the
        last record names its queue's next offset, and RocketMQ drops all queues of an empty log.
        """
        positions = self._positions
        needed = min(
            load_checkpoint(self._paths.checkpoint).confirm_offset,
            *(positions[n] for n in ("committed", "flushed", "dispatched_record", "delay_floor")),
        )
        if positions["unsaved_offsets"]:  # only the log has these groups' offsets
            needed = min(needed, positions["unsaved_offsets"])
        if self._config.expire_archived_only:
            needed = min(needed, self._archived_to())
        bases = range(self._log_start, needed - self._segment_bytes + 1, self._segment_bytes)
        times: list[int] = []
        for base in bases[:most]:
            path = self._paths.commit_log / segment_name(base)
            try:
                times.append(path.stat().st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                # Somebody has removed this segment: it takes the previous one's time, so that it
                # goes with that one and does not block later ones.
                times.append(times[-1] if times else 0)
        return times

    def _archived_to(self) -> int:
        """The log offset below which an archive has everything; 0 if that is unknown."""
        try:
            found = load_archived(self._paths)
        except (StoreDamaged, OSError) as error:  # another user's job may have written it
            if not self._archive_unknown:
                self._stage.report(f"nothing expires: {error}")
            self._archive_unknown = True
            return 0
        self._archive_unknown = False
        return 0 if found is None else found.log_offset

    # --- deleting ---

    def _clean(self) -> Steps:
        """A round: at most a batch of segments, and their queue and index files."""
        yield from self._empty_deleted()
        if self._positions["clean_error"]:
            yield from self._finish()
        before = self._log_start
        left = self._config.delete_file_batch_max * (BATCHES_WHEN_ASKED if self._asked else 1)
        while left > 0:
            decision = self._decide()
            written_ms = self._closed_segments(left)
            now_ms = self._clock.now_ms() if self._trusts_clock() else self._time.now_ms()
            count, why = choose(self._config, now_ms, written_ms, decision)
            if why is None:
                break
            left -= count
            yield from self._notes.note(self._log_start, count, why, self._fullest)
            yield from self._move_log_start(self._log_start + count * self._segment_bytes)
            yield from self._delete_segments()
            self._notes.settle()
            if decision.oldest_goes:
                yield SETTLE_MS  # others close the files, and blocks come free; then look again
        if self._log_start != before:
            crash_point("clean.after_segments")
            yield from self._delete_queue_files()
            crash_point("clean.after_queue_files")
            yield from self._delete_index_files()

    def _finish(self) -> Steps:
        """Do again everything that a predecessor had begun: repeating what is done costs little."""
        yield from self._empty_deleted()
        yield from self._notes.correct(self._log_start)
        yield from self._move_log_start(self._log_start)
        yield from self._delete_segments()
        yield from self._delete_queue_files()
        yield from self._delete_index_files()

    def _move_log_start(self, log_start: int) -> Steps:
        """From now on nobody reads below it, and no queue claims to have messages there."""
        self._log_start = log_start
        self._positions.publish("log_start", log_start)
        crash_point("clean.after_publish")
        if log_start:
            for slot in self._queues.slots():
                with self._one_queue(slot):
                    self._queues.move_min_offset(slot, log_start)
                crash_point("clean.mid_min_offsets")
                if slot % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                    yield 0

    @contextmanager
    def _one_queue(self, slot: int) -> Iterator[None]:
        """If a queue's files cannot be read, its readers have a problem; the other queues go on."""
        try:
            yield
        except (OSError, StoreDamaged) as error:
            if self._queues.is_deleted(slot):
                return  # it was deleted with its topic, a moment ago
            self._error = error.errno or 1 if isinstance(error, OSError) else errno.EIO
            if slot not in self._unreadable:
                self._unreadable.add(slot)
                self._stage.report(f"a queue keeps what has expired: {error}")

    @contextmanager
    def _staying(self, directory: Path) -> Iterator[None]:
        """Leave a file that cannot be deleted to a later round. Segments are deleted in order, but
        any other file blocks nothing."""
        try:
            yield
        except OSError as error:
            self._error = error.errno or 1
            if directory not in self._told:
                self._told.add(directory)
                self._stage.report(f"what has expired cannot be deleted: {error}; trying again")

    def _delete_segments(self) -> Steps:
        for name in sorted(os.listdir(self._paths.commit_log)):
            if is_segment_name(name) and int(name) < self._log_start:
                path = self._paths.commit_log / name
                # an operator's request is for room on the disk, so nothing is kept for use again
                again = not self._asked and is_wanted_again(path, self._config)
                self._delete(path, "deleted_segments", again=again)
                yield self._config.delete_commit_log_files_interval_ms

    def _delete_queue_files(self) -> Steps:
        for slot in self._queues.slots():
            with self._one_queue(slot):
                for path in self._queues.expired_files(slot):
                    self._delete(path, "deleted_queue_files")
                    yield self._config.delete_consume_queue_files_interval_ms
            if slot % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield 0

    def _delete_index_files(self) -> Steps:
        """Delete leading index files with nothing that the log still holds; the last one stays."""
        for path in index_files(self._paths.index)[:-1]:
            header = read_index_header(path)
            if header is None or header[3] >= self._log_start:
                return
            with self._staying(self._paths.index):
                self._delete(path, "deleted_index_files")
            yield self._config.delete_consume_queue_files_interval_ms

    def _empty_deleted(self) -> Steps:
        """Delete what the reput has put aside of deleted topics. A crash leaves some of it, and a
        power failure may bring some back: a new cleaner begins with it."""
        top = self._paths.deleted_queues
        # set first: what stays waits for the next round, and must not begin it at once
        self._emptied = self._positions["forgotten_topics"]
        for directory, _, files in os.walk(top, topdown=False):
            for name in files:
                with self._staying(top):
                    os.unlink(os.path.join(directory, name))
                    crash_point("clean.topic_file")
                    counter = "deleted_queue_files"
                    self._positions.publish(counter, self._positions[counter] + 1)
                yield 0
            if Path(directory) != top:
                with self._staying(top):
                    os.rmdir(directory)

    def _delete(self, path: Path, counter: str, *, again: bool = False) -> None:
        if path.parent not in self._settled:
            # The deletion of the previous file may not be durable yet. If a crash brought back that
            # file and not this one, the log would have a hole.
            sync_directory(path.parent)
        self._settled.discard(path.parent)
        if again:
            set_aside(path, self._paths.staging)
        else:
            delete_file(path)
        self._settled.add(path.parent)
        crash_point("clean.after_unlink")
        self._positions.publish(counter, self._positions[counter] + 1)

    # --- the rest of an actor ---

    def idle_ms(self) -> int:
        return (
            QUIET_TICK_MS
            if self._round is None
            else max(1, self._paused_until_ms - self._clock.monotonic_ms())
        )

    def release_deleted(self) -> None:
        self._queues.release_deleted()

    def drained(self) -> bool:
        """Always: the next run does the rest of a round."""
        return True

    def close(self) -> None:
        self._queues.close()


def _disk(path: Path) -> int:
    """The disk that a path is on; 0 if unknown."""
    try:
        return path.stat().st_dev
    except OSError:
        return 0
