"""Start-up of a store: find where the log ends, cut what a crash left behind it, say what was done.

    1. what the last run wrote into its pool and did not commit goes into the segments (same boot,
       and no other broker used the store in between: `abort` names the last run's process)
    2. the log is scanned from a record that the checkpoint vouches for, or from the segment that
       RocketMQ would choose, to its end
    3. bytes behind the end become zeros; entries of consume queues from the scan's start on are
       cut, for the reput to write again
    4. the positions page and the queue table are filled

Nothing that was on disk is ever cut: where such a record follows damage, or the log is known to
have gone on, the damaged ranges are returned as `quarantined`, nothing of the log is changed, and
the store must be run read-only. After a power failure pages that were never flushed may be there
while others before them are not: whole records behind damage that are newer than all the
checkpoint knows to be on disk are such pages. Nobody was promised them; they are cut with the rest
of the torn tail, and kept beside in penstock/quarantine/.

Doing it twice, or dying half way and doing it again, ends in the same state. The caller holds the
store's lock.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.shared.checkpoint import Checkpoint
from penstock.shared.config import Config
from penstock.shared.durable_files import (
    drop_empty_last,
    make_directory,
    make_file,
    sync_directory,
    write_again,
    write_at,
    zero_from,
)
from penstock.shared.errors import StoreDamaged
from penstock.shared.known_queues import load_known_queues, replace_known_queues
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.mapped_file_queue import segment_bases
from penstock.shared.positions import Positions
from penstock.shared.quarantine import Damage, damage_between, joined, load_quarantine
from penstock.shared.record import NO_RECORD_CRC, Found, examine, store_timestamp_ms
from penstock.shared.run_directory import Run, survives
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.transient_store_pool import TransientStorePool

_COPY_BYTES = 1 << 20


class Recovered(msgspec.Struct, frozen=True):
    """What a start found and did; offsets are log offsets."""

    mode: str  # new, clean, or unclean
    log_start: int
    log_end: int
    dispatch_from: int
    last_record: int
    last_timestamp_ms: int
    scanned_from: int
    segments: int  # scanned
    scanned_bytes: int
    messages: int  # scanned, not in all
    pool_bytes: int  # written by the last run, committed now
    torn_bytes: int  # cut behind the log's end
    torn_records: int  # of them whole, kept beside
    quarantined: tuple[Damage, ...]
    seconds: float

    @property
    def queues_good_to(self) -> int | None:
        """Queue entries of records from here on are not believed; None where all are good."""
        if self.quarantined:
            return self.log_end  # of a message that is lost its entry is all there is
        return self.dispatch_from if self.dispatch_from < self.log_end else None


def recover_store(paths: StorePaths, config: Config, last_run: Run | None) -> Recovered:
    """Bring the store's log into a state to append to; see the file's head. Raises StoreDamaged."""
    began = time.monotonic()
    unclean = paths.abort.exists()
    known = load_quarantine(paths)
    _refuse_emptied(paths)
    wrote = -1
    pool_bytes = 0
    if last_run is not None and survives(last_run) and _is_named_by(paths.abort, last_run):
        wrote, pool_bytes = _empty_pool(paths, config, last_run)
    drop_empty_last(paths.commit_log)
    sync_directory(paths.commit_log)  # an allocator may have died between naming and syncing
    size = config.mapped_file_size_commit_log_bytes
    bases = segment_bases(paths.commit_log, size)
    with StoreDirectory(paths.root) as store:
        if not bases and any(queue.max_offset for queue in store.queues()):
            raise StoreDamaged(
                "consume queues have a commit log",
                f"{paths.commit_log} is empty",
                "restore commitlog/, or remove consumequeue/ to begin anew",
            )
        log_start = store.log_start
        known = [each for each in known if each.position >= log_start]
        missing = _missing_queues(paths, store)
        start = log_start if missing else _scan_start(store, unclean, wrote)
        start = min([start, *(each.position for each in known)])
        # behind the end that is known the log may go on, as its last run is not
        least_end = min(max([0, *(each.end for each in known)]), bases[-1] + size if bases else 0)
        scanned = _scan(store, config, start, wrote, unclean, least_end)
        dispatch_from = start
        # where damage was known, a repair may have put records that no queue has yet
        if not (unclean or missing or known or scanned.quarantined):
            dispatched = dispatched_to(store) >= scanned.records_end
            dispatch_from = scanned.end if dispatched else start
    if missing:
        _forget_checkpoint(paths)
    for leftover in paths.half_made.iterdir():
        leftover.unlink()
    remove_rebuild(paths)
    torn = 0
    if (unclean or scanned.damaged) and not scanned.quarantined:
        if scanned.torn_records:
            _keep_torn(paths, bases, size, scanned.end, scanned.torn_end)
        torn = _cut_log(paths.commit_log, bases, size, start, scanned.end)
    return Recovered(
        mode="new" if not bases else "unclean" if unclean else "clean",
        log_start=log_start,
        log_end=scanned.end,
        dispatch_from=dispatch_from,
        last_record=scanned.last_record,
        last_timestamp_ms=scanned.timestamp_ms,
        scanned_from=start,
        segments=len({at // size for at in (*bases, start) if start - size < at < scanned.end}),
        scanned_bytes=scanned.end - start,
        messages=scanned.messages,
        pool_bytes=pool_bytes,
        torn_bytes=torn,
        torn_records=scanned.torn_records,
        quarantined=tuple(joined(scanned.quarantined)),
        seconds=time.monotonic() - began,
    )


def remove_rebuild(paths: StorePaths) -> None:
    """Remove what a rebuild has left: its half-made files, or the ones it replaced."""
    if paths.rebuild.is_dir():
        shutil.rmtree(paths.rebuild)
        sync_directory(paths.own)


def _refuse_emptied(paths: StorePaths) -> None:
    """A last segment of no length is what a crash leaves, unless queues name records in it."""
    last = max(paths.commit_log.iterdir(), default=None)
    if last is None or not (last.is_file() and last.name.isdigit()) or last.stat().st_size:
        return
    with StoreDirectory(paths.root) as store:
        if dispatched_to(store) > int(last.name):
            raise StoreDamaged(
                "a segment that consume queues name records in has them",
                f"{last} is empty",
                f"restore it; see: penstock store repair {paths.root}",
            )


# --- 1: the pool of the last run ---


def _is_named_by(abort: Path, run: Run) -> bool:
    """Whether that run was the last to use the store: a RocketMQ after it wrote its own pid."""
    return abort.exists() and abort.read_bytes() == str(run.supervisor_pid).encode()


def _empty_pool(paths: StorePaths, config: Config, run: Run) -> tuple[int, int]:
    """Commit what the last run wrote; its log end, and how many bytes there were."""
    positions = Positions(run.positions)
    wrote, committed, flushed = (positions[name] for name in ("wrote", "committed", "flushed"))
    positions.close()
    segment_bytes = config.mapped_file_size_commit_log_bytes
    # the last flush may have failed without anybody to hear of it
    at = flushed
    while at < committed:
        base = at - at % segment_bytes
        stop = min(committed, base + segment_bytes)
        handle = os.open(paths.commit_log / segment_name(base), os.O_RDWR)
        write_again(handle, at - base, stop - base)
        os.fdatasync(handle)
        os.close(handle)
        at = stop
    if not run.pool_enabled or wrote == committed:
        return wrote, 0
    pool = TransientStorePool(run.pool)
    at = committed
    while at < wrote:
        base = at - at % segment_bytes
        path = paths.commit_log / segment_name(base)
        if not path.exists():
            make_file(paths.half_made, path, segment_bytes, sparse=False)
        handle = os.open(path, os.O_RDWR)
        for piece in pool.pieces(at, min(wrote, base + segment_bytes)):
            write_at(handle, piece, at - base)
            at += len(piece)
        os.fdatasync(handle)
        os.close(handle)
    pool.close()
    return wrote, wrote - committed


# --- 2: the scan ---


class _Scanned(msgspec.Struct):
    """Where a scan ended, and what it passed."""

    end: int
    records_end: int
    last_record: int = -1
    timestamp_ms: int = 0
    messages: int = 0
    damaged: bool = False
    quarantined: list[Damage] = []
    torn_records: int = 0
    torn_end: int = 0


def _missing_queues(paths: StorePaths, store: StoreDirectory) -> set[str]:
    """Queues that have been dispatched to and are gone; the checkpoint does not know."""
    there = {f"{queue.topic}/{queue.queue_id}" for queue in store.queues() if queue.segments}
    return load_known_queues(paths.known_queues) - there


def _forget_checkpoint(paths: StorePaths) -> None:
    """Nothing is vouched for until everything has been dispatched again."""
    paths.checkpoint.unlink(missing_ok=True)
    sync_directory(paths.root)
    replace_known_queues(paths.known_queues, ())


def _scan_start(store: StoreDirectory, unclean: bool, wrote: int) -> int:
    """A record of which everything before it is known to be good: log, consume queues and all.

    Behind `wrote`, where that is known (not -1), stands nothing that counts.
    """
    checkpoint = store.checkpoint()
    limit_ms = checkpoint.recovery_timestamp_ms
    start = store.log_start
    for segment in reversed(store.segments):
        if 0 <= wrote <= segment.base:
            continue
        timestamp_ms = _first_timestamp_ms(store, segment.base)
        if timestamp_ms and (not unclean or timestamp_ms <= limit_ms):
            start = segment.base
            break
    start = max(start, _confirmed(store, checkpoint))
    dispatched = dispatched_to(store)
    if start <= dispatched:
        return start
    # the queues are behind what the checkpoint says, or not there at all
    bases = [segment.base for segment in store.segments if segment.base <= dispatched]
    return max([store.log_start, *bases])


def _confirmed(store: StoreDirectory, checkpoint: Checkpoint) -> int:
    """The checkpoint's record, if one stands there that is no newer than the checkpoint; else 0."""
    at = checkpoint.confirm_offset
    if not at or not store.segments or not store.log_start <= at < store.segments[-1].end:
        return 0
    timestamp_ms = _first_timestamp_ms(store, at)
    known_ms = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms)
    return at if 0 < timestamp_ms <= known_ms else 0


def _first_timestamp_ms(store: StoreDirectory, at: int) -> int:
    """The store time of the whole record at `at`; 0 when none stands there."""
    segment = store.segment_of(at)
    left = segment.end - at
    head = store.read_log(at, min(left, 128))
    size = min(max(int.from_bytes(head[:4], "big", signed=True), 1), left)
    raw = store.read_log(at, size)
    found, _, _ = examine(raw, 0, size, position=at)
    return store_timestamp_ms(raw, 0) if found is Found.RECORD else 0


class _OnDisk(NamedTuple):
    """Which records are known to have been on disk before the last run ended."""

    all: bool
    before_ms: int = 0
    confirmed: int = 0

    def covers(self, position: int, timestamp_ms: int) -> bool:
        return self.all or timestamp_ms < self.before_ms or position <= self.confirmed


def _on_disk(store: StoreDirectory, unclean: bool, known_end: int) -> _OnDisk:
    """What the checkpoint says; everything, where nobody can have lost what was not flushed."""
    if not unclean or known_end > 0 or not store.paths.checkpoint.exists():
        return _OnDisk(all=True)
    checkpoint = store.checkpoint()
    return _OnDisk(False, checkpoint.physic_timestamp_ms, checkpoint.confirm_offset)


def _scan(
    store: StoreDirectory, config: Config, start: int, wrote: int, unclean: bool, least_end: int
) -> _Scanned:
    """Walk from `start` to the end of the log, which is `wrote` where that is known (not -1).

    It is `least_end` at least: so far the log went when its damage was found.
    """
    scanned = _Scanned(start, start)
    pending: list[Damage] = []
    least_end = max(least_end, wrote)
    # a clean store's queues know its end, if it has any
    known_end = None if unclean or least_end > 0 else dispatched_to(store) or None
    if known_end is not None and known_end <= store.segments[-1].end:
        least_end = known_end
    on_disk = _on_disk(store, unclean, least_end)
    held = 0  # whole records behind damage that nobody has flushed
    segment_bytes, checksum = config.mapped_file_size_commit_log_bytes, config.recovery_checksum
    for position, found, size, record, reason in store.scan_log(start, checksum=checksum):
        if found is Found.END or 0 <= wrote <= position:
            break
        if reason == NO_RECORD_CRC:  # RocketMQ would cut off everything from here on
            raise StoreDamaged(
                "with force_verify_prop_crc every record has a checksum of its own",
                f"the one at {position} has none",
                "set force_verify_prop_crc = false: the store was not written with it",
            )
        if found is Found.DAMAGED or 0 <= wrote < position + size:
            stop = position + size if wrote < 0 else min(wrote, position + size)
            pending += damage_between(
                store.paths, segment_bytes, position, stop, reason or "it goes beyond the log's end"
            )
            continue
        if pending and known_end is not None and pending[0].position >= known_end:
            break  # left behind the log's end by a RocketMQ that cut it there
        is_record = found is Found.RECORD
        if pending and not (
            is_record and on_disk.covers(position, store_timestamp_ms(record, 0)) or on_disk.all
        ):
            held += is_record
            scanned.torn_end = position + size
            continue
        scanned.quarantined += pending
        scanned.messages += held
        pending, held = [], 0
        scanned.end = position + size
        if is_record:
            scanned.messages += 1
            scanned.last_record = position
            scanned.records_end = scanned.end
            scanned.timestamp_ms = store_timestamp_ms(record, 0)
    scanned.damaged = bool(pending or scanned.quarantined)
    scanned.torn_records = held
    if scanned.end < least_end:
        reason = f"the log was written up to {least_end}"
        reason = f"{pending[0].reason}; {reason}" if pending else reason
        scanned.quarantined += damage_between(
            store.paths, segment_bytes, scanned.end, least_end, reason
        )
        scanned.end = least_end
    return scanned


def dispatched_to(store: StoreDirectory) -> int:
    """The end of the newest record that a consume queue names."""
    end = 0
    for queue in store.queues():
        if queue.max_offset > queue.min_offset:
            last = queue.entries(queue.max_offset - 1, queue.max_offset)[0]
            end = max(end, int(last["offset"]) + int(last["size"]))
    return end


# --- 3: cutting ---


def _keep_torn(paths: StorePaths, bases: list[int], size: int, start: int, end: int) -> None:
    """Copy the log from `start` to `end` into a file beside it; durable on return."""
    make_directory(paths.quarantine)
    target = paths.quarantine / f"torn-{segment_name(start)}"
    with target.open("wb") as file:
        for base in bases:
            at, stop = max(start, base), min(end, base + size)
            with (paths.commit_log / segment_name(base)).open("rb") as segment:
                while at < stop:
                    segment.seek(at - base)
                    at += file.write(segment.read(min(_COPY_BYTES, stop - at)))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(paths.quarantine)


def _cut_log(directory: Path, bases: list[int], size: int, start: int, end: int) -> int:
    """Zero everything behind the log's end; how many bytes that were. All is durable on return."""
    torn = 0
    for base in bases:
        if base + size <= start:
            continue
        handle = os.open(directory / segment_name(base), os.O_RDWR)
        if base + size > end:
            torn += zero_from(handle, max(0, end - base), size)
        os.fdatasync(handle)
        os.close(handle)
    return torn
