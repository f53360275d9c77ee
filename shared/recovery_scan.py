"""Start-up: where the log ends, by walking its records from one that is known to be good.

What it finds is a `Scanned`: the end, the damage before it that stays, and the torn tail behind it
that goes. Reads only; what is done about it is recovery.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.shared.checkpoint import Checkpoint
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.quarantine import Damage, damage_between
from penstock.shared.queue_files import QueueFiles
from penstock.shared.record import (
    NO_RECORD_CRC,
    Found,
    decode_record,
    examine,
    store_timestamp_ms,
)
from penstock.shared.store_directory import StoreDirectory

_SECTOR_OF_ZEROS = bytes(512)


class Scanned(msgspec.Struct):
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

    def add(self, position: int, size: int, record: memoryview | None) -> None:
        """The log goes on with a whole record, or with a blank."""
        self.end = position + size
        if record is None:
            return
        self.messages += 1
        self.last_record = position
        self.records_end = self.end
        self.timestamp_ms = store_timestamp_ms(record, 0)


def scan_start(store: StoreDirectory, unclean: bool, wrote: int, dispatched: int) -> int:
    """A record of which everything before it is known to be good: log, consume queues and all.

    Behind `wrote`, where that is known (not -1), stands nothing that counts.
    """
    checkpoint = store.checkpoint()
    limit_ms = checkpoint.recovery_timestamp_ms
    start = max(store.log_start, _confirmed(store, checkpoint))
    for segment in reversed(store.segments):
        if segment.base <= start:
            break
        if 0 <= wrote <= segment.base:
            continue
        timestamp_ms = _first_timestamp_ms(store, segment.base)
        if timestamp_ms and (not unclean or timestamp_ms <= limit_ms):
            start = segment.base
            break
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
    confirmed: int = -1

    def covers(self, position: int, timestamp_ms: int) -> bool:
        return self.all or timestamp_ms < self.before_ms or position <= self.confirmed

    def doubts(self, position: int, record: memoryview) -> bool:
        """Whether a record may not have been on disk, and is not: it has zeros where none belong.

        No checksum covers topic and properties. No topic has a zero, and the writer takes no
        properties that end in one.
        """
        # quick, and no for nearly every record
        if self.all or record[-1] and _SECTOR_OF_ZEROS not in bytes(record):
            return False
        found = decode_record(record)
        properties = found.properties
        torn = properties.endswith(b"\0") or _SECTOR_OF_ZEROS in properties
        stored_ms = store_timestamp_ms(record, 0)
        return (torn or "\0" in found.topic) and not self.covers(position, stored_ms)


def _on_disk(store: StoreDirectory, unclean: bool, known_end: int) -> _OnDisk:
    """What the checkpoint says; everything, where nobody can have lost what was not flushed."""
    if not unclean or known_end > 0 or not store.paths.checkpoint.exists():
        return _OnDisk(all=True)
    checkpoint = store.checkpoint()
    # 0 is where nothing is confirmed yet, and not the record there
    return _OnDisk(False, checkpoint.physic_timestamp_ms, checkpoint.confirm_offset or -1)


def scan(
    store: StoreDirectory,
    config: Config,
    start: int,
    wrote: int,
    unclean: bool,
    least_end: int,
    dispatched: int,
) -> Scanned:
    """Walk from `start` to the end of the log, which is `wrote` where that is known (not -1).

    It is `least_end` at least: so far the log went when its damage was found.
    """
    scanned, pending = Scanned(start, start), list[Damage]()
    least_end = max(least_end, wrote)
    # a clean store's queues know its end, if it has any
    known_end = None if unclean or least_end > 0 else dispatched or None
    if known_end is not None and known_end <= store.segments[-1].end:
        least_end = known_end
    on_disk = _on_disk(store, unclean, least_end)
    held = 0  # whole records behind damage that nobody has flushed
    segment_bytes, checksum = config.mapped_file_size_commit_log_bytes, config.recovery_checksum
    for position, found, size, record, reason in store.scan_log(start, checksum=checksum):
        if found is Found.END or 0 <= wrote <= position:
            break
        if reason == NO_RECORD_CRC:  # RocketMQ would cut off everything from here on
            raise _without_checksum(position)
        if found is Found.RECORD and on_disk.doubts(position, record):
            found, reason = Found.DAMAGED, "topic or properties are torn"
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
        scanned.add(position, size, record if is_record else None)
        if scanned.end == wrote:
            break  # what lies behind it may be a whole segment of warm pages
    scanned.damaged = bool(pending or scanned.quarantined)
    scanned.torn_records = held
    if scanned.end < least_end:
        reasons = [*(each.reason for each in pending[:1]), f"the log was written up to {least_end}"]
        scanned.quarantined += damage_between(
            store.paths, segment_bytes, scanned.end, least_end, "; ".join(reasons)
        )
        scanned.end = least_end
    return scanned


def _without_checksum(position: int) -> StoreDamaged:
    return StoreDamaged(
        "a record has no checksum of its own, which force_verify_prop_crc asks for",
        f"log offset {position}",
        "the store was not written with it: penstock up --set force_verify_prop_crc=false",
    )


def dispatched_to(queues: Sequence[QueueFiles]) -> int:
    """The end of the newest record that one of these names. Each looks it up once."""
    return max([0, *(queue.dispatched_to for queue in queues)])
