"""Start-up of a store: find where the log ends, cut what a crash left after it, report what was
done.

    1. what the last run wrote into its pool and did not commit goes into the segments (same boot,
       and no other broker used the store in between: `abort` names the last run's process)
    2. queues that have lost their end are made again from the log (restore_queues.py)
    3. the log is scanned from a record that the checkpoint vouches for, or from the segment that
       RocketMQ would choose, to its end
    4. bytes after the end become zeros; entries of consume queues from the scan's start on are
       cut, for the reput to write again
    5. the positions page and the queue table are filled

Nothing that was on disk is ever cut. Where a whole record follows damage, or the log is known to
have gone on, the damaged ranges are returned as `quarantined`, nothing of the log is changed, and
the store must be run read-only. After a power failure, pages that were never flushed may be there
while others before them are not, and may hold whole records. If a witness says that nobody was
promised these (witness.py), they are cut with the rest of the torn tail, and a copy is kept in
penstock/quarantine/. Without such a witness they stay. What a power failure has left of a block of
exactly_once() is cut, too: its outputs must not stand without the offsets that follow them.

Doing it twice, or dying half way and doing it again, ends in the same state. So does doing it
again after a sync has failed: what may be in the page cache only is written once more before it is
synced, zeros too. The caller holds the store's lock.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import drop_empty_last, sync_directory, unfinished_files
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import Damage, joined, load_quarantine
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.memory.run_directory import Run, survives
from penstock.shared.next_steps import repair
from penstock.shared.queue.deleted_topics import NONE, DeletedTopics, without_deleted
from penstock.shared.queue.known_queues import QueueEnd, load_known_queues, with_memory
from penstock.shared.recovery.build_queues import remove_rebuild
from penstock.shared.recovery.cut_log import cut_log, doubted_log, keep_torn
from penstock.shared.recovery.empty_pool import empty_pool, is_named_by
from penstock.shared.recovery.find_log_end import (
    NOWHERE,
    Bounds,
    LogEnd,
    cut_unfinished_block,
    dispatched_to,
    find_log_end,
    scan_start,
)
from penstock.shared.recovery.restore_queues import (
    find_broken_queues,
    find_doubted_queues,
    find_late_queues,
    find_lost_queues,
    find_unlisted_queues,
    restore_queues,
)
from penstock.shared.recovery.witness import Testimony, Witness, find_witness, hear
from penstock.shared.store.start_marker import is_unfinished, note_start
from penstock.shared.store.survey import StoreSurvey


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a start found and did; offsets are log offsets."""

    mode: str  # new, clean, or unclean
    log_start: int
    log_end: int
    dispatch_from: int
    last_record: int  # where the newest record that was scanned begins; 0 without one
    last_timestamp_ms: int
    scanned_from: int
    segments: int  # scanned
    scanned_bytes: int
    messages: int  # scanned, not in all
    read_files: int = 0  # of the log and of consume queues
    read_bytes: int = 0
    from_memory: bool = False  # how far the log went is known from the last run's memory
    pool_bytes: int  # written by the last run, committed now
    torn_bytes: int  # cut after the log's end
    torn_records: int  # whole records in what was cut, kept in a file
    quarantined: tuple[Damage, ...]
    seconds: float
    checkpoint: Checkpoint = Checkpoint()  # the words that were believed
    restored_queues: list[str] = []  # queues that were made again, and what was wrong with them
    start_failed: bool = False  # an earlier start of this boot did: its cuts may not be on disk

    @property
    def queues_good_to(self) -> int | None:
        """Queue entries of records from here on are not believed; None where all are good."""
        if self.quarantined:
            return self.log_end  # a lost message's entry is all that there is of it
        # with async flushing, entries may be on disk before the records that they lead to
        whole = self.mode != "unclean" and self.dispatch_from == self.log_end
        return None if whole else self.dispatch_from


def recover_store(
    store: StoreSurvey, last_run: Run | None, deleted: DeletedTopics = NONE
) -> Recovered:
    """Bring the store's log into a state to append to, by the steps above. Raises StoreDamaged.

    `last_run` is the run that run.json names, whether its memory is still there or not. Queues of
    `deleted` topics have been put aside before.
    """
    began, paths, config = time.monotonic(), store.paths, store.config
    unclean, start_failed = paths.abort.exists(), is_unfinished(paths.starting)
    heard = hear(store, last_run)
    # checked while nothing has been changed: an empty last file is about to be removed
    _refuse_lost_log(store, heard)
    memory = _take_from_memory(store, last_run)
    if store.problems:
        drop_empty_last(paths.commit_log)
    if store.problems or memory.pool_bytes:
        store.refresh()  # the log has one file less, or some more
    sync_directory(paths.commit_log)  # an allocator may have died between naming and syncing
    size, bases = config.mapped_file_size_commit_log_bytes, store.log_bases()
    _refuse_lost_segments(store, heard, memory)
    log_start = store.log_start
    known = [each for each in load_quarantine(paths) if each.position >= log_start]
    ends = _queue_ends(paths, last_run, deleted, from_memory=memory.is_known)
    look = _look(store, heard, ends, deleted, memory, known)
    read = store.files_read, store.bytes_read
    start, found = look.start, look.found
    crash_point("recover.after_scan")
    _remove_leftovers(paths)
    torn = 0
    # Nothing of a damaged log is changed, not even what follows its end. A clean log without a torn
    # tail is on the disk as it is read, unless an earlier start has failed.
    if (unclean or found.damaged or start_failed) and not found.quarantined:
        written = range(min(look.vouched, found.end), found.end)
        doubted = doubted_log(paths, config, last_run, written, memory.is_known, again=start_failed)
        torn = _cut(paths, bases, size, start, found, doubted)
    return Recovered(
        mode="new" if not bases else "unclean" if unclean else "clean",
        log_start=log_start,
        log_end=found.end,
        dispatch_from=look.dispatch_from,
        last_record=found.last_record,
        last_timestamp_ms=found.timestamp_ms,
        scanned_from=start,
        segments=len({at // size for at in (*bases, start) if start - size < at < found.end}),
        scanned_bytes=found.end - start,
        messages=found.messages,
        read_files=read[0],
        read_bytes=read[1],
        from_memory=memory.is_known,
        pool_bytes=memory.pool_bytes,
        torn_bytes=torn,
        torn_records=found.torn_records,
        quarantined=tuple(joined(found.quarantined)),
        seconds=time.monotonic() - began,
        checkpoint=look.checkpoint,
        restored_queues=look.restored,
        start_failed=start_failed,
    )


class _Look(NamedTuple):
    """What a start has found in a store, after it has made the queues whole."""

    vouched: int  # everything before this record is known to be good
    start: int  # of the scan
    found: LogEnd
    dispatch_from: int
    checkpoint: Checkpoint
    restored: list[str]


def _look(
    store: StoreSurvey,
    heard: Testimony,
    queue_ends: dict[str, QueueEnd],
    deleted: DeletedTopics,
    memory: _Memory,
    known: list[Damage],
) -> _Look:
    """Make queues whole that are not, and find the log's end. `known` is damage that was found
    before."""
    unclean, config = store.is_unclean, store.config
    # Queues come before the log: they tell which records somebody may have been told of, and where
    # dispatching goes on.
    # This first witness does not use what queues say, because they are what is judged here.
    is_exact = find_witness(store, heard, 0).is_exact
    lost = find_lost_queues(store, queue_ends, is_exact=is_exact)
    # entries of lost messages must not lead past the log's end: a start cuts such entries
    most = memory.log_end if memory.is_known else NOWHERE
    restored = restore_queues(store, config, lost, most)
    dispatched = dispatched_to(store)
    witness = find_witness(store, heard, dispatched)
    bounds, believed = _bounds(memory, store.files_end, known, witness, dispatched)
    vouched = scan_start(store, witness, unclean, bounds.most, dispatched)
    # Known damage is looked at again each time: a repair, or a file that was put back, may have
    # ended it. The walk begins at the start of its segment, where a record begins whatever the
    # quarantine says. If it began inside a whole record, it would take the rest of that for damage.
    size = config.mapped_file_size_commit_log_bytes
    start = min([vouched, *(each.position // size * size for each in known)])
    found = find_log_end(store, config, start, bounds, believed)
    if unclean and not found.quarantined:
        told_to = max(bounds.least, believed.flushed, believed.told_to)
        cut_unfinished_block(store, found, told_to)
    dispatch_from = start
    # where damage was known, a repair may have put records into the log that no queue has yet
    if not (unclean or known or found.quarantined):
        dispatch_from = found.end if dispatched >= found.records_end else start
    # Only now is it known from which log offset on queues are to be cut. Bisection finds the place
    # in each queue, and a broken entry leads it astray.
    good_to = found.end if found.quarantined else dispatch_from
    gone = deleted.ends()
    if unclean or found.quarantined:
        broken = find_broken_queues(store, queue_ends, good_to)
        restored += restore_queues(store, config, broken, found.end)
        doubted = find_doubted_queues(store, good_to, gone)
        restored += restore_queues(store, config, doubted, found.end)
    late = find_late_queues(store, queue_ends, good_to, gone)
    restored += restore_queues(store, config, late, found.end)
    # If the list is the last run's, and as that run left it, it has every queue that there was when
    # that run started.
    if heard.is_of_last_run and (heard.is_named if unclean else is_exact) and not memory.is_known:
        whole = heard.has_whole_list and (unclean or heard.has_last_list)
        unlisted = find_unlisted_queues(store, queue_ends, good_to, gone, whole=whole)
        restored += restore_queues(store, config, unlisted, found.end)
    return _Look(vouched, start, found, dispatch_from, witness.checkpoint, restored)


def _refuse_lost_memory(store: StoreSurvey, last_run: Run) -> None:
    """Raises StoreDamaged if a segment is gone that the last run had committed to."""
    positions = Positions(last_run.positions)
    committed = positions["committed"]
    positions.close()
    _refuse_short_log(store, committed)


def _bounds(
    memory: _Memory, files_end: int, known: list[Damage], witness: Witness, dispatched: int
) -> tuple[Bounds, Witness]:
    """What is known of the log's end before it is looked at, and which witness the walk believes.

    The sources are asked in the order of how much they know: the run's memory, damage that was
    found before, and then what the files say of an orderly stop. `known` is damage that an earlier
    start found: the log went at least to the end of it.
    """
    least = min(max([0, *(each.end for each in known)]), files_end)
    if memory.is_known:
        # Memory has the last word: no record was torn in this boot, and none is unknown to it.
        end = memory.log_end
        return Bounds(max(least, end), most=end), Witness(witness.checkpoint)
    # After an orderly stop, everything up to `left_at` is on disk. Queues that name records where
    # the log has no file any more are not believed about it.
    left_at = 0 if witness.may_be_cut else witness.flushed if witness.is_exact else dispatched
    end = max(witness.flushed, left_at if left_at <= files_end else 0)
    if least:
        # The log of a read-only store has not grown since, and what its damage is was decided when
        # it was found: today's witness must not turn it into a torn tail. But the log went on after
        # that damage, and its end may have been lost since.
        return Bounds(max(least, end)), Witness(witness.checkpoint)
    return Bounds(end, left_at=left_at or NOWHERE), witness


class _Memory(NamedTuple):
    """What the last run's shared memory says, and how many bytes it gave. The defaults stand for no
    memory, or one that does not count."""

    is_known: bool = False
    log_end: int = 0
    pool_bytes: int = 0


def _take_from_memory(store: StoreSurvey, last_run: Run | None) -> _Memory:
    """Put into the log what the last run wrote and did not commit.

    Its memory counts only in the same boot, and only while `abort` names it: another broker that
    has had the store since then wrote a log that this memory knows nothing about.
    """
    paths = store.paths
    if last_run is not None and survives(last_run) and is_named_by(paths.abort, last_run):
        # This comes before the pool is emptied, which would make a missing segment again: its
        # committed records would then be zeros, in a log that looks whole.
        _refuse_lost_memory(store, last_run)
        return _Memory(True, *empty_pool(paths, store.config, last_run))
    return _Memory()


def _queue_ends(
    paths: StorePaths, last_run: Run | None, deleted: DeletedTopics, *, from_memory: bool
) -> dict[str, QueueEnd]:
    """Where queues are known to have ended: by their list, and by the last run's memory.

    Memory knows of entries that the list does not have yet, because the flusher lists them only
    when they are on disk. In the same boot the kernel has them all the same.
    """
    known = without_deleted(load_known_queues(paths.known_queues), deleted)
    if last_run is None or not from_memory:
        return known
    positions, table = Positions(last_run.positions), QueueTable(last_run.queues)
    # for deletions that the reput has not come to, the table has the old queues without a mark
    unmarked = deleted.ends(positions["forgotten_topics"])
    found = with_memory(known, table, positions["queue_count"], unmarked.keys())
    table.close()
    positions.close()
    return found


def _cut(
    paths: StorePaths, bases: list[int], size: int, start: int, found: LogEnd, doubted: range
) -> int:
    """Cut what stands after the log's end, and keep a copy if it has whole records. Returns how
    many bytes were not zero."""
    # Until this start has ended, what is read from the page cache is not proof of what is on disk.
    note_start(paths.starting)
    # A tail is kept for its whole records alone. One without any is a write that was cut off.
    if found.torn_records:
        keep_torn(paths, bases, size, found.end, found.torn_end)
    crash_point("recover.before_truncate")
    torn = cut_log(paths.commit_log, bases, size, start, found.end, doubted)
    crash_point("recover.after_truncate")
    return torn


def _remove_leftovers(paths: StorePaths) -> None:
    """Remove files that were never finished, which nobody reads. The lock is held, so nobody is at
    work on one."""
    for leftover in unfinished_files(paths.staging):
        leftover.unlink()
    remove_rebuild(paths)


def _refuse_lost_log(store: StoreSurvey, heard: Testimony) -> None:
    """Raise StoreDamaged if something names records of a log, or of a last segment, that has not a
    byte: no crash leaves that."""
    if store.segments and not store.problems:
        return  # every file has its full length
    last = max(store.paths.commit_log.iterdir(), default=None)
    if last is not None and (not last.name.isdigit() or last.stat().st_size):
        return
    dispatched = dispatched_to(store)
    known_end = max(dispatched, find_witness(store, heard, dispatched).flushed)
    if known_end > (0 if last is None else int(last.name)):
        raise StoreDamaged(
            "a part of the log is gone",
            f"{last or store.paths.commit_log} is empty; the log was written up to {known_end}",
            f"put it back; or see what is left: {repair(store.paths.root)}",
        )


def _refuse_lost_segments(store: StoreSurvey, heard: Testimony, memory: _Memory) -> None:
    """Raise StoreDamaged if the log was written to where no file is any more: the next messages
    would get the same offsets again."""
    _refuse_short_log(store, max(memory.log_end, find_witness(store, heard, 0).flushed))


def _refuse_short_log(store: StoreSurvey, log_end: int) -> None:
    """Raise StoreDamaged where the log's files end before `log_end`.

    Damage inside the files makes a store read-only, and it serves what is left. But a file that is
    gone may still be somewhere, so here the operator is asked, and nothing is changed.
    """
    files_end = store.files_end
    if log_end > files_end:
        missing = store.paths.commit_log / segment_name(files_end)
        raise StoreDamaged(
            "the log's last segment is missing",
            f"{missing}; the log was written up to {log_end}",
            "put the file back; or make it anew, with marks for the messages that it had; run: "
            f"{repair(store.paths.root)}",
        )
