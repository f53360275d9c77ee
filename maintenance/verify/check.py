"""The one checker of a store's invariants: reads every record and queue entry, writes nothing.

The log is walked once, as a whole or in parts side by side (verify/walk.py), and each record passed
to the check of its queue; then come the checkpoint, the index files, and what is known of consumer
groups.

Usual records are read by the verifier's own loops (verify_loops), which share no code with what
they check: where fields are, checksums, what entry and index must have for a record, and the
index's chains. Unusual ones go through `scan` and `outline`, which a start, a rebuild and a reader
use, too: damage, filler, inner batches, records longer than a window. The layouts of entries and
items are shared as well. If shared code misreads the format, this check cannot see it; the golden
stores, and the interop tests with RocketMQ's own broker, would show that.

An unclean store (running, or killed: `abort` is there) may end in a torn record, and its queues may
lag the log: those are notes, because the next start corrects them. In a clean store they are
problems, because RocketMQ then trusts what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.maintenance.side_by_side import Progress, run_side_by_side
from penstock.maintenance.verify.groups import check_groups
from penstock.maintenance.verify.index_headers import check_index_files
from penstock.maintenance.verify.index_items import IndexCheck
from penstock.maintenance.verify.parts import PART_BYTES, PARTS, Task, mended, tasks_of, work
from penstock.maintenance.verify.queues import QueueCheck
from penstock.maintenance.verify.report import Findings, VerifyReport
from penstock.maintenance.verify.walk import (
    How,
    IndexPart,
    LogPart,
    Moved,
    Walk,
    checked_queues,
    log_bytes,
    new_queue,
    report_damage,
)
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.files.segments import shown
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.layout import PAGE_BYTES
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.recovery.restore_queues import find_missed_queues
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import index_sizes


def verify_store(
    directory: Path | str,
    *,
    progress: Progress | None = None,
    checksum: Checksum = Checksum.BOTH,
    index: Geometry | None = None,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    processes: int = 1,
    part_bytes: int = PART_BYTES,
) -> VerifyReport:
    """Check the store in `directory`. `progress` is told (bytes done, bytes in all) from time to
    time, for the log's files and the index's items together.

    `index` is for callers that know better than the store how many slots and items its index files
    have; if nobody knows, only their headers are checked. Entries of delayed messages say when
    these are due, by the broker's `delay_levels_ms`.

    The store may be running: it is only read, and what grows meanwhile is no problem. Whatever is
    wrong with the files is in the report. `checksum` says what is compared for each record; with
    NONE, a flipped bit in a body is not noticed.

    If `processes` is more than one, parts of the log, of at least `part_bytes`, and the index files
    are checked side by side. The report of a sound store is the same. Damage may be described in
    other words: a queue offset that jumps is reported again by each part after it.

    Raises ConfigError if there is no store.
    """
    with StoreDirectory(directory) as store:
        check = Verification(store, checksum, index, delay_levels_ms)
        root = str(Path(directory).absolute())
        part_bytes = max(part_bytes, log_bytes(store, store.log_start) // (PARTS * processes))
        cut = (store, root, check.how, check.index_files, part_bytes)
        tasks = tasks_of(*cut) if processes > 1 else []
        if not tasks:
            moved = _counted(progress, check.total_bytes)
            check.join(check.walk(store.log_start).run(moved))
            return check.finish(moved)
        encoded = [msgspec.msgpack.encode(task) for task in tasks]
        costs = [check.cost(task) for task in tasks]
        found = run_side_by_side(work, encoded, costs, progress, processes=processes)
        check.join_all(tasks, found)
        return check.finish()


def _counted(progress: Progress | None, total: int) -> Moved:
    done = 0

    def moved(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return moved


class Verification:
    """One check, from the first listing to the report.

        walk() ... for each part of the log -> join() in their order -> finish()

    Before the walk it records what a running store may outgrow: the list of queues, the
    checkpoint, where queues end and how many items the index has. A record is in the log before
    any of these names it.
    """

    def __init__(
        self,
        store: StoreDirectory,
        checksum: Checksum = Checksum.BOTH,
        index: Geometry | None = None,
        delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    ) -> None:
        self._started = time.monotonic()
        self._store = store
        self._found = Findings()
        self._unclean = store.is_unclean
        self._check_known_queues()
        # recorded before the walk: a running store moves on meanwhile
        self._checkpoint = store.checkpoint()
        # Records of deleted topics are in no queue; a start removes what is left of their queues.
        self._gone = load_deleted_topics(store.paths.deleted_topics).ends()
        self._files = checked_queues(store, self._gone)
        self._queues: dict[tuple[bytes, int], QueueCheck] = {
            (files.topic.encode(), files.queue_id): QueueCheck(
                files.topic, files.queue_id, files, shown(files.directory), self._found
            )
            for files in self._files
        }
        self.how = How(checksum, index or self._index_sizes(), delay_levels_ms)
        self._index = IndexCheck(
            store.paths.index, self.how.index, store.log_start, self._unclean, self._found
        )
        self._whole = LogPart(store.log_start, store.log_start)
        self._torn_bytes = 0
        self._chains = True
        self._check_segments()

    def _index_sizes(self) -> Geometry | None:
        """What the store says about its index files; None if that cannot be known.

        A check goes on without it: an unreadable index does not affect the check of the log.
        """
        try:
            return index_sizes(self._store.paths)
        except StoreDamaged:
            return None  # the store's own problem says so
        except ConfigError as error:
            self._found.note(f"the index is not checked: {error.what}: {error.value}. {error.hint}")
            return None

    def walk(self, start: int, stop: int | None = None) -> Walk:
        """The walk of a part, which begins where a record does, or of the whole log."""
        return Walk(self._store, self.how, self._files, self._gone, start, stop)

    @property
    def index_files(self) -> int:
        """The number of index files whose chains are checked; each can be checked separately."""
        return len(self._index)

    @property
    def total_bytes(self) -> int:
        """What all walks and the index's chains count together."""
        items = sum(map(self._index.item_bytes, range(self.index_files)))
        return log_bytes(self._store, self._store.log_start) + items

    def cost(self, task: Task) -> int:
        """What is counted for one task."""
        if task.index_file is not None:
            return self._index.item_bytes(task.index_file)
        return log_bytes(self._store, task.start, task.stop)

    def join_all(self, tasks: Sequence[Task], results: Sequence[bytes]) -> None:
        """Take the results of `work` for tasks: parts of the log, then index files."""
        count = sum(task.index_file is None for task in tasks)
        parts = (msgspec.msgpack.decode(raw, type=LogPart) for raw in results[:count])
        for part in mended(lambda *ends: self.walk(*ends).run(), tasks[:count], parts):
            self.join(part)
        for raw in results[count:]:
            self.join_chains(msgspec.msgpack.decode(raw, type=IndexPart))

    def join(self, part: LogPart) -> None:
        """Take what the next part of the log has shown."""
        whole = self._whole
        if whole.damage and (part.messages or part.blanks or part.damage or part.problem_count):
            # something follows, so it is not a torn tail
            report_damage(self._found, self._store, "log-damaged", whole.damage)
            whole.damage = None
        for queue in part.queues:
            key = queue.topic, queue.queue_id
            if key not in self._queues:
                self._queues[key] = new_queue(self._store, *key, self._found)
            self._queues[key].join(queue)
        self._found.join(part.problems, part.problem_count, part.kinds)
        self._index.deviations += part.deviations
        self._index.repeated += part.repeated
        for name in ("messages", "bytes", "blanks", "inner_batches", "without_crc", "backwards"):
            setattr(whole, name, getattr(whole, name) + getattr(part, name))
        # if a part begins with older records some go back in time; how many is not known
        whole.backwards += bool(part.messages and part.oldest_ms < whole.newest_ms)
        whole.newest_ms = max(whole.newest_ms, part.newest_ms)
        if part.messages or part.blanks:  # otherwise it has no end of its own
            whole.log_end = part.log_end
        whole.damage = part.damage or whole.damage

    def join_chains(self, part: IndexPart) -> None:
        """Take what was found in an index file; then `finish` does not check chains."""
        self._found.join(part.problems, part.problem_count, [each.kind for each in part.problems])
        self._index.deviations += part.deviations
        self._chains = False

    def finish(self, moved: Moved = lambda _: None) -> VerifyReport:
        """Check the rest. Findings do not end it: a reader wants to know all of them."""
        whole = self._whole
        if whole.damage:
            self._take_torn_tail(whole.damage)
        # One problem for all of them: it follows from how the store was written.
        if whole.without_crc:
            detail = (
                f"{whole.without_crc} of {whole.messages} records have no checksum of their own, "
                "as enabled_append_prop_crc was off: only those of their bodies were compared"
            )
            place = shown(self._store.paths.commit_log), 0
            self._found.report("record-checksum-missing", place, None, detail)
        # Counted before the refresh, since the report is about what was walked.
        segments = len(self._store.segments)
        log_start = self._store.log_start
        # Segments may have expired during the walk. Entries that still name their records are no
        # problem, so queues are given the log's start as it is now.
        self._store.refresh()
        for queue in self._queues.values():
            queue.finish(self._store.log_start, whole.log_end, unclean=self._unclean)
        self._check_checkpoint(self._checkpoint)
        # Headers are checked apart from items: they can be, even if the index's sizes are unknown.
        check_index_files(self._store.paths.index, whole.log_end, self._unclean, self._found)
        self._index.finish_files(whole.log_end, self._chains, moved)
        self._index.close()
        self._index.take_notes()
        self._take_notes()
        queues = sorted(
            (queue.summary() for queue in self._queues.values()),
            key=lambda queue: (queue.topic, queue.queue_id),
        )
        check_groups(self._store.paths, queues, self._found)
        return VerifyReport(
            directory=shown(self._store.paths.root),
            ok=self._found.problem_count == 0,
            log_damaged=self._found.log_damaged,
            clean=not self._unclean,
            messages=whole.messages,
            bytes=whole.bytes,
            segments=segments,
            topics=len({queue.topic for queue in queues}),
            log_start=log_start,
            log_end=whole.log_end,
            blanks=whole.blanks,
            torn_tail_bytes=self._torn_bytes,
            queues=queues,
            problems=self._found.problems,
            problem_count=self._found.problem_count,
            notes=self._found.notes,
            advice=self._found.advice(self._store.paths),
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _check_known_queues(self) -> None:
        """If the log has nothing of a queue, only the list tells that it is gone, or shorter."""
        for name, why in find_missed_queues(self._store).items():
            place = shown(self._store.paths.consume_queue / name), 0
            self._found.report("queue-lost", place, None, f"queue {name} {why}")

    def _check_segments(self) -> None:
        """Names and lengths. A crash of RocketMQ leaves an empty file at the log's end.

        A start removes it, so it is a note; an empty file before others is a hole in the log.
        """
        last = self._store.segments[-1].path.name if self._store.segments else ""
        for problem in self._store.problems:
            if problem.kind == "empty-segment" and Path(problem.file).name > last:
                self._found.note(f"{problem.file}: {problem.detail}; RocketMQ deletes it")
            else:
                self._found.add(problem)

    def _take_torn_tail(self, damage: tuple[int, int, str]) -> None:
        """Damage with nothing whole after it: a write that a crash cut off.

        A clean store has had no crash, so there it is a problem; in others a note will say so.
        """
        self._torn_bytes = damage[1]
        if not self._unclean:
            report_damage(self._found, self._store, "log-torn-tail", damage)

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Check its length, and whether its words are ahead of the log. Words that are too old only
        make a start scan more."""
        path = self._store.paths.checkpoint
        if not path.exists():
            if self._whole.messages and not self._unclean:
                self._found.note("no checkpoint: the next start looks at the whole log")
            return
        size = path.stat().st_size
        if size != PAGE_BYTES:
            detail = f"{size} bytes, where a checkpoint has {PAGE_BYTES}"
            self._found.report("checkpoint-size", (shown(path), 0), None, detail)
        times = (
            (0, "physic", checkpoint.physic_timestamp_ms),
            (8, "logics", checkpoint.logics_timestamp_ms),
        )
        for at, name, value in times:
            # A log without records has no newest time to compare with.
            if value < 0 or (value > self._whole.newest_ms and self._whole.messages):
                detail = f"{name} time {value}, but the newest record is of {self._whole.newest_ms}"
                self._found.report("checkpoint-ahead", (shown(path), at), None, detail)
        if checkpoint.confirm_offset > self._whole.log_end and not self._unclean:
            detail = f"confirm offset {checkpoint.confirm_offset}, log end {self._whole.log_end}"
            self._found.report("checkpoint-ahead", (shown(path), 32), None, detail)

    def _take_notes(self) -> None:
        """What is worth knowing but breaks no invariant. Each is counted and has one line."""
        note = self._found.note
        if self._torn_bytes and self._unclean:
            note(
                f"{self._torn_bytes} bytes of a torn write at the log's end; a start cuts them off"
            )
        missing = sum(queue.missing for queue in self._queues.values())
        # The next start dispatches them. In a clean store each queue has reported its own.
        if missing and self._unclean:
            note(f"{missing} records not yet dispatched to their queues")
        if self._whole.backwards:
            note(f"{self._whole.backwards} records have an earlier store time than one before them")
        if self._whole.inner_batches:
            note(f"{self._whole.inner_batches} inner batches: their queues are not checked")
        for queue in self._queues.values():
            if queue.repeated_keys:
                note(f"{queue.repeated_keys} messages of {queue.name} repeat a UNIQ_KEY")
