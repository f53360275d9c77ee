"""Start-up: decides which of a store's files to believe, before the log is looked at.

Three witnesses say how far a store was on disk, and each can be missing, stale, or replaced since:
the checkpoint, which is RocketMQ's; the watermark, which is Penstock's and names its run; and the
consume queues. Where two of them contradict each other, less is believed:

    a watermark that is not of the run that `abort` names   says how far the log went at least,
                                                            and not what was never flushed
    one below the checkpoint's record, or below its word    the same; and of each word of the
    in penstock/queues: an older copy; or one with a        checkpoint, the lower counts
    later word of the checkpoint than the file's
    a checkpoint next to a watermark that is believed       counts if it is a later one of
                                                            Penstock's; else the watermark's words

Without a watermark, its older word in penstock/queues says how far the log went at least.

Records after damage may be cut for one reason only: the machine went down, and nobody had been
told of them. Without a witness for both they stay, and the store is read-only. Reads only.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_layout import AT_MAGIC, store_timestamp_ms
from penstock.shared.layout import BLANK_HEADER_BYTES
from penstock.shared.memory.run_directory import Run, boot_id
from penstock.shared.queue.known_queues import lacks_lines, load_known_flush
from penstock.shared.recovery.empty_pool import is_named_by
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.watermark import Watermark, load_watermark


class Witness(NamedTuple):
    """What a start believes. Offsets are log offsets; 0 where no witness says anything."""

    checkpoint: Checkpoint
    flushed: int = 0  # the log was on disk up to here at least
    told_to: int = 0  # somebody may have been told of records that begin before
    is_exact: bool = False  # nothing was written after `flushed`
    may_be_torn: bool = False  # of what is after both offsets, some may be on disk and some not
    may_be_cut: bool = False  # the last record after both offsets may be there in part

    def tears(self, position: int) -> bool:
        """Whether damage there may be what a power failure left of records that nobody was told
        of."""
        return self.may_be_torn and position >= max(self.flushed, self.told_to)

    def covers(self, position: int, timestamp_ms: int) -> bool:
        """Whether a record is known to have been on disk."""
        if position < max(self.flushed, self.told_to):
            return True
        # 0 says that nothing is confirmed yet; it does not stand for the record at offset 0
        confirmed = self.checkpoint.confirm_offset or -1
        return position <= confirmed or timestamp_ms < self.checkpoint.physic_timestamp_ms


class Testimony(NamedTuple):
    """What the store's own files say, before any of it is believed. Read once in a start."""

    checkpoint: Checkpoint
    mark: Watermark | None
    listed: int  # how far the log was flushed when penstock/queues was written
    has_whole_list: bool  # penstock/queues has lost no line
    is_unclean: bool  # `abort` is there
    is_of_last_run: bool  # the watermark is the one of the run that run.json names
    is_named: bool  # `abort` names that run, too: no other broker has had the store since
    is_other_boot: bool  # the machine went down after that run

    @property
    def has_last_list(self) -> bool:
        """Whether penstock/queues is as the last stop left it: an older copy has an older word of
        the watermark, and need not have every queue."""
        return self.mark is not None and self.listed == self.mark.flushed


def hear(store: StoreDirectory, last_run: Run | None) -> Testimony:
    """Read what a store's files say. Raises OSError, StoreDamaged.

    Called before the start changes anything: later it makes `abort`, the watermark and the list its
    own.
    """
    paths = store.paths
    mark = load_watermark(paths.watermark)
    return Testimony(
        store.checkpoint(),
        mark,
        load_known_flush(paths.known_queues),
        not lacks_lines(paths.known_queues),
        paths.abort.exists(),
        last_run is not None and mark is not None and mark.run_id == last_run.run_id,
        last_run is not None and is_named_by(paths.abort, last_run),
        last_run is not None and last_run.boot_id != boot_id(),
    )


def find_witness(store: StoreDirectory, heard: Testimony, dispatched: int) -> Witness:
    """What a start believes of `heard`. `dispatched` is where the store's queues end in the log."""
    checkpoint, mark = heard.checkpoint, heard.mark
    if mark is None:
        # A store of RocketMQ's, or one that lost the watermark: then the list has an older word of
        # it.
        return Witness(checkpoint, heard.listed, heard.listed, may_be_cut=heard.is_unclean)
    # Whichever run's watermark it is, and however old: a log does not become shorter.
    least = Witness(checkpoint, mark.flushed, mark.flushed, may_be_cut=heard.is_unclean)
    if not heard.is_of_last_run:
        return least
    if not heard.is_unclean:
        # No other broker's stop leaves the checkpoint as Penstock's has left it. The log itself
        # says whether it has grown, and not the queues, where a bent entry may lead anywhere.
        ours = mark.is_last and checkpoint == mark.checkpoint
        return least._replace(is_exact=ours and not _has_grown(store, mark.flushed))
    if not heard.is_named:
        return least
    # Where queues follow the flush, a consumer was shown nothing that the queues do not name.
    told_to = max(mark.flushed, dispatched if mark.queues_follow_flush else 0)
    is_behind = max(checkpoint.confirm_offset, heard.listed - 1) >= max(mark.flushed, 1)
    is_ahead = _older(checkpoint, mark.checkpoint) != mark.checkpoint
    if is_behind or is_ahead:
        # Neither checkpoint nor list is written before the watermark says the same, and the
        # watermark repeats only words of a checkpoint that is on disk. So one of the files is an
        # older copy, or harmed. Nobody can tell which, so the lower word counts of each.
        older = _older(checkpoint, mark.checkpoint)
        flushed = max(mark.flushed, heard.listed)
        return Witness(older, flushed, max(told_to, flushed), may_be_cut=True)
    # The flusher writes the checkpoint first: it may have died before it wrote the watermark again.
    newest = checkpoint if _is_ours(store, checkpoint, mark.checkpoint) else mark.checkpoint
    # In this boot the kernel still has whatever was written, flushed or not: nothing is torn.
    torn = heard.is_other_boot
    return Witness(newest, mark.flushed, told_to, may_be_torn=torn, may_be_cut=True)


def _has_grown(store: StoreDirectory, flushed: int) -> bool:
    """Whether anything was written at `flushed`, where the next record would begin."""
    if not store.log_start <= flushed < store.files_end:
        return False
    try:
        left = store.segment_of(flushed).end - flushed
        return any(store.read_log(flushed, min(BLANK_HEADER_BYTES, left)))
    except OffsetOutOfRange:  # a segment between others is missing
        return False


def _is_ours(store: StoreDirectory, checkpoint: Checkpoint, known: Checkpoint) -> bool:
    """Whether this is a later checkpoint of Penstock's than the known one: Penstock's name a record
    and, among the times, that record's store time."""
    at = checkpoint.confirm_offset
    # it is 0 if there was no record to name, and negative only in words that were harmed
    return max(known.confirm_offset, 0) < at == confirmed_record(store, checkpoint) and (
        first_timestamp_ms(store, at) == checkpoint.logics_timestamp_ms
    )


def _older(one: Checkpoint, other: Checkpoint) -> Checkpoint:
    fields = Checkpoint.__struct_fields__
    return Checkpoint(*(min(getattr(one, each), getattr(other, each)) for each in fields))


def confirmed_record(store: StoreDirectory, checkpoint: Checkpoint) -> int:
    """The offset of the checkpoint's record, if a whole record stands there that is no newer than
    the checkpoint; else 0."""
    at = checkpoint.confirm_offset
    if not at or not store.log_start <= at < store.files_end:
        return 0
    try:
        timestamp_ms = first_timestamp_ms(store, at)
    except OffsetOutOfRange:  # a segment between others is missing
        return 0
    known_ms = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms)
    return at if 0 < timestamp_ms <= known_ms else 0


def first_timestamp_ms(store: StoreDirectory, at: int) -> int:
    """The store time of the whole record at `at`; 0 when none stands there."""
    segment = store.segment_of(at)
    left = segment.end - at
    named_size = store.read_log(at, min(left, AT_MAGIC))
    size = min(max(int.from_bytes(named_size, "big", signed=True), 1), left)
    raw = store.read_log(at, size)
    found, _, _ = examine(raw, 0, size, position=at)
    return store_timestamp_ms(raw, 0) if found is Kind.RECORD else 0
