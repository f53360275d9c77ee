"""The one checker of a store's invariants: reads every record and queue entry, writes nothing.

It walks the log once, checks each record, and hands it to the check of its queue; then come the
checkpoint, the index files, and what is known of consumer groups.

It shares code with what it checks. Records are told apart by `scan` and `outline`, which a start, a
rebuild and a reader use too, and the chains of the index are made again by the function that the
broker made them with. So it finds what a disk or a crash did to the files, and what one part of
Penstock contradicts another in; a misreading of the format that is in the shared code it cannot
see. The golden stores and the interop tests, with RocketMQ's own broker, are what would show that.

An unclean store (running, or killed: `abort` is there) may end in a torn record, and its queues may
lag the log: those are notes, because the next start puts them right. In a clean one they
are problems, because RocketMQ then trusts what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from penstock.maintenance.verify_groups import check_groups
from penstock.maintenance.verify_index_headers import check_index_files
from penstock.maintenance.verify_index_items import IndexCheck
from penstock.maintenance.verify_queues import QueueCheck
from penstock.maintenance.verify_report import Findings, VerifyReport
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.files.segments import shown
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.properties import UNIQ_KEY, find_property
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_outline import entry_tags_code, outline
from penstock.shared.layout import PAGE_BYTES
from penstock.shared.names import LIGHT_QUEUE_PREFIX
from penstock.shared.queue.deleted_topics import is_of_deleted, load_deleted_topics
from penstock.shared.recovery.restore_queues import find_missed_queues
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import index_sizes

Progress = Callable[[int, int], None]

_PROGRESS_RECORDS = 1 << 16  # between two calls of `progress`
_UNIQ_KEY = UNIQ_KEY.encode()
# RocketMQ's flag of an inner batch, which only topics with a BatchCQ have. These are counted in a
# note, and their queues are not checked.
SYS_INNER_BATCH = 0x080


def verify_store(
    directory: Path | str,
    *,
    progress: Progress | None = None,
    checksum: Checksum = Checksum.BODY,
    index: Geometry | None = None,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
) -> VerifyReport:
    """Check the store in `directory`; `progress` is told (bytes done, bytes in all) now and then.

    `index` is for whoever knows better than the store how many slots and items its index files
    have; where nobody does, only their headers are looked at. The queues of delayed messages say
    when these are due, by the broker's `delay_levels_ms`.

    The store may be running: it is only read, and what grows meanwhile is no problem. Whatever is
    wrong with the files is in the report. `checksum` says what is compared of each record; with
    NONE, a flipped bit in a body goes unseen.

    Raises ConfigError where there is no store.
    """
    with StoreDirectory(directory) as store:
        return _Verification(store, checksum, index, delay_levels_ms).run(progress)


class _Verification:
    """One check, from the first listing to the report. To be run once.

    What a running store may outgrow is taken down before the walk: the list of queues, the
    checkpoint, where queues end and how many items the index has. A record is in the log before
    any of these names it.
    """

    def __init__(
        self,
        store: StoreDirectory,
        checksum: Checksum,
        index: Geometry | None,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        self._store = store
        self._delay_levels_ms = delay_levels_ms
        self._checksum = checksum
        self._found = Findings()
        self._unclean = store.is_unclean
        self._check_known_queues()
        # taken down before the walk: a running store moves on meanwhile
        self._checkpoint = store.checkpoint()
        # Deleted topics have records, which no queue has; a start takes away what is left of these.
        self._gone = load_deleted_topics(store.paths.deleted_topics).ends()
        # Light queues are left out: their entries lead to records of other topics.
        self._queues: dict[tuple[bytes, int], QueueCheck] = {
            (files.topic.encode(), files.queue_id): QueueCheck(
                files.topic, files.queue_id, files, shown(files.directory), self._found
            )
            for files in store.queues()
            if not files.topic.startswith(LIGHT_QUEUE_PREFIX)
            and not is_of_deleted(files, self._gone)
        }
        self._index = IndexCheck(
            store.paths.index,
            index or self._index_sizes(),
            store.log_start,
            self._unclean,
            self._found,
        )
        self._messages = self._bytes = self._blanks = self._inner_batches = 0
        self._without_crc = 0
        self._backwards = self._newest_ms = self._torn_bytes = 0
        self._log_end = store.log_start
        # log offset, size and reason of damage that nothing whole has followed yet
        self._damage: tuple[int, int, str] | None = None

    def _index_sizes(self) -> Geometry | None:
        """What the store says about its index files; None where that cannot be known.

        A check goes on without it: that no index can be read takes nothing from what is known of
        the log.
        """
        try:
            return index_sizes(self._store.paths)
        except StoreDamaged:
            return None  # the store's own problem says so
        except ConfigError as error:
            self._found.note(f"the index is not checked: {error.what}: {error.value}. {error.hint}")
            return None

    def run(self, progress: Progress | None) -> VerifyReport:
        """Check everything. Findings do not end it: a reader wants to know of all of them."""
        started = time.monotonic()
        self._check_segments()
        self._walk(progress or (lambda done, total: None))
        # These are counted before the refresh, for the report is of what was walked.
        segments = len(self._store.segments)
        log_start = self._store.log_start
        # Segments may have expired during the walk. Entries that still name their records are no
        # problem, so queues are given the log's start as it is now.
        self._store.refresh()
        for queue in self._queues.values():
            queue.finish(self._store.log_start, self._log_end, unclean=self._unclean)
        self._check_checkpoint(self._checkpoint)
        # Headers are checked apart from items: they can be, where nobody knows the index's sizes.
        check_index_files(self._store.paths.index, self._log_end, self._unclean, self._found)
        self._index.finish(self._log_end)
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
            messages=self._messages,
            bytes=self._bytes,
            segments=segments,
            topics=len({queue.topic for queue in queues}),
            log_start=log_start,
            log_end=self._log_end,
            blanks=self._blanks,
            torn_tail_bytes=self._torn_bytes,
            queues=queues,
            problems=self._found.problems,
            problem_count=self._found.problem_count,
            notes=self._found.notes,
            advice=self._found.advice(self._store.paths),
            seconds=round(time.monotonic() - started, 3),
        )

    def _check_known_queues(self) -> None:
        """Where the log has nothing of a queue, only the list knows that it is gone, or shorter."""
        for name, why in find_missed_queues(self._store).items():
            place = shown(self._store.paths.consume_queue / name), 0
            self._found.report("queue-lost", place, None, f"queue {name} {why}")

    def _check_segments(self) -> None:
        """Names and lengths. An empty file at the log's end is what a crash of RocketMQ leaves.

        A start removes it, so it is a note; an empty file before others is a hole in the log.
        """
        last = self._store.segments[-1].path.name if self._store.segments else ""
        for problem in self._store.problems:
            if problem.kind == "empty-segment" and Path(problem.file).name > last:
                self._found.note(f"{problem.file}: {problem.detail}; RocketMQ deletes it")
            else:
                self._found.add(problem)

    def _walk(self, progress: Progress) -> None:
        """Every record of the log, in order, to the checks of its queue and of the index."""
        start = self._store.log_start
        total = sum(segment.size for segment in self._store.segments)
        for position, found, size, record, reason in self._store.scan_log(checksum=self._checksum):
            # Something follows, so it is no torn tail. Damage at the very end may be one.
            if self._damage and found is not Kind.END:
                self._report_damage("log-damaged")
            if found is Kind.RECORD:
                self._without_crc += reason == NO_RECORD_CRC
                self._take_record(position, size, record)
                if self._messages % _PROGRESS_RECORDS == 0:
                    progress(position - start, total)
            elif found is Kind.BLANK:
                self._blanks += 1
                self._log_end = position + size
            elif found is Kind.DAMAGED:
                self._damage = position, size, reason
        if self._damage:
            self._take_torn_tail(self._damage[1])
        # This is one problem for all of them: it follows from how the store was written.
        if self._without_crc:
            detail = (
                f"{self._without_crc} of {self._messages} records have no checksum of their own, "
                "as enabled_append_prop_crc was off: only those of their bodies were compared"
            )
            place = shown(self._store.paths.commit_log), 0
            self._found.report("record-checksum-missing", place, None, detail)
        # The log may end far before its files do.
        progress(total, total)

    def _take_record(self, position: int, size: int, record: memoryview) -> None:
        """Hand a whole record on. `record` shows a window of the walk, so nothing may keep it."""
        self._messages += 1
        self._bytes += size
        self._log_end = position + size
        fields = outline(record)
        self._index.add(fields, position)
        # A time is compared with the newest so far, and not with that of the record before: where a
        # clock was ahead and set right, all records count until it has caught up.
        if fields.store_timestamp_ms < self._newest_ms:
            self._backwards += 1
        else:
            self._newest_ms = fields.store_timestamp_ms
        # The index has a half message and no queue does, so it is added there before this.
        if self._gone and position < self._gone.get(fields.topic.decode("utf-8", "replace"), 0):
            return
        if not fields.is_queued:
            return
        if fields.sys_flag & SYS_INNER_BATCH:
            self._inner_batches += 1
            return
        queue = self._queues.get((fields.topic, fields.queue_id))
        if queue is None:
            queue = self._new_queue(fields.topic, fields.queue_id)
        queue.add(
            fields.queue_offset,
            position,
            size,
            entry_tags_code(fields, self._delay_levels_ms),
            find_property(fields.properties, _UNIQ_KEY),
        )

    def _new_queue(self, raw_topic: bytes, queue_id: int) -> QueueCheck:
        """A queue that has records, but no directory: all of its entries are missing.

        In an unclean store that is no problem, as the reput may not have come to it yet.
        """
        topic = raw_topic.decode("utf-8", "replace")
        place = shown(self._store.paths.consume_queue)
        queue = QueueCheck(topic, queue_id, None, place, self._found)
        self._queues[raw_topic, queue_id] = queue
        return queue

    def _report_damage(self, kind: str) -> None:
        """Report the damage that is pending. It lies in one segment, as a step of a scan does."""
        assert self._damage is not None, "called where damage was seen"
        position, size, reason = self._damage
        self._damage = None
        segment = self._store.segment_of(position)
        self._found.report(
            kind,
            (shown(segment.path), position - segment.base),
            position,
            f"{size} bytes are no record: {reason}",
        )

    def _take_torn_tail(self, size: int) -> None:
        """Damage with nothing whole after it: a write that a crash cut off.

        A clean store has had no crash, so in that it is a problem; elsewhere a note will say so.
        """
        self._torn_bytes = size
        if not self._unclean:
            self._report_damage("log-torn-tail")

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Its length, and whether its words are ahead of the log. Older ones only make a start scan
        more."""
        path = self._store.paths.checkpoint
        if not path.exists():
            if self._messages and not self._unclean:
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
            # A log without a record has no newest time to compare with.
            if value < 0 or (value > self._newest_ms and self._messages):
                detail = f"{name} time {value}, but the newest record is of {self._newest_ms}"
                self._found.report("checkpoint-ahead", (shown(path), at), None, detail)
        if checkpoint.confirm_offset > self._log_end and not self._unclean:
            detail = f"confirm offset {checkpoint.confirm_offset}, log end {self._log_end}"
            self._found.report("checkpoint-ahead", (shown(path), 32), None, detail)

    def _take_notes(self) -> None:
        """What is worth knowing and breaks no invariant. Each is counted, and said in one line."""
        note = self._found.note
        if self._torn_bytes and self._unclean:
            note(
                f"{self._torn_bytes} bytes of a torn write at the log's end; a start cuts them off"
            )
        missing = sum(queue.missing for queue in self._queues.values())
        # The next start dispatches them. In a clean store each queue has reported its own.
        if missing and self._unclean:
            note(f"{missing} records not yet dispatched to their queues")
        if self._backwards:
            note(f"{self._backwards} records have an earlier store time than one before them")
        if self._inner_batches:
            note(f"{self._inner_batches} inner batches: their queues are not checked")
        for queue in self._queues.values():
            if queue.repeated_keys:
                note(f"{queue.repeated_keys} messages of {queue.name} repeat a UNIQ_KEY")
