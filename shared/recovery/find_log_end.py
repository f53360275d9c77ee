"""Start-up: where the log ends, by walking its records from one that is known to be good.

What it finds is a `Scanned`: the end, the damage before it that stays, and the torn tail behind it
that goes. Reads only; what is done about it is recovery.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record import NO_RECORD_CRC, Kind, decode_record, store_timestamp_ms
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.log.damage import Damage, damage_between
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.recovery.witness import (
    Witness,
    confirmed_record,
    first_timestamp_ms,
)
from penstock.shared.store.directory import StoreDirectory

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


def scan_start(
    store: StoreDirectory, witness: Witness, unclean: bool, wrote: int, dispatched: int
) -> int:
    """A record of which everything before it is known to be good: log, consume queues and all.

    Behind `wrote`, where that is known (not -1), stands nothing that counts.
    """
    limit_ms = witness.checkpoint.recovery_timestamp_ms
    start = max(store.log_start, confirmed_record(store, witness.checkpoint))
    for segment in reversed(store.segments):
        if segment.base <= start:
            break
        if 0 <= wrote <= segment.base:
            continue
        timestamp_ms = first_timestamp_ms(store, segment.base)
        if timestamp_ms and (not unclean or timestamp_ms <= limit_ms):
            start = segment.base
            break
    if start <= dispatched:
        return start
    # the queues are behind what the checkpoint says, or not there at all
    bases = [segment.base for segment in store.segments if segment.base <= dispatched]
    return max([store.log_start, *bases])


def _is_torn(witness: Witness, position: int, record: memoryview) -> bool:
    """Whether a record may not have been on disk, and is not: it has zeros where none belong.

    No checksum covers topic and properties. No topic has a zero, and the writer takes no
    properties that end in one.
    """
    # quick, and no for nearly every record
    if not witness.may_be_cut or record[-1] and _SECTOR_OF_ZEROS not in bytes(record):
        return False
    found = decode_record(record)
    properties = found.properties
    torn = properties.endswith(b"\0") or _SECTOR_OF_ZEROS in properties
    return (torn or "\0" in found.topic) and not witness.covers(
        position, store_timestamp_ms(record, 0)
    )


class Ends(NamedTuple):
    """What is known of where the log ends, before it is looked at. Log offsets."""

    wrote: int  # what the last run's memory says; -1 without
    least: int  # so far it went when damage was found, or by what a witness says
    known: int | None  # where it ends in a store that was left clean; None where nobody says so


def _checksum(config: Config) -> Checksum:
    """What is compared of each record."""
    if not config.check_crc_on_recover:
        return Checksum.NONE
    return Checksum.RECORD if config.force_verify_prop_crc else Checksum.BODY


def scan(
    store: StoreDirectory, config: Config, start: int, ends: Ends, witness: Witness
) -> Scanned:
    """Walk from `start` to the end of the log."""
    scanned, pending, wrote = Scanned(start, start), list[Damage](), ends.wrote
    held = 0  # whole records behind damage that nobody has flushed
    segment_bytes, checksum = config.mapped_file_size_commit_log_bytes, _checksum(config)
    for position, found, size, record, reason in store.scan_log(start, checksum=checksum):
        if found is Kind.END or 0 <= wrote <= position:
            break
        if reason == NO_RECORD_CRC:  # RocketMQ would cut off everything from here on
            raise _without_checksum(position)
        if found is Kind.RECORD and _is_torn(witness, position, record):
            found, reason = Kind.DAMAGED, "topic or properties are torn"
        if found is Kind.DAMAGED or 0 <= wrote < position + size:
            stop = position + size if wrote < 0 else min(wrote, position + size)
            pending += damage_between(
                store.paths, segment_bytes, position, stop, reason or "it goes beyond the log's end"
            )
            continue
        if pending and ends.known is not None and pending[0].position >= ends.known:
            break  # left behind the log's end by a RocketMQ that cut it there
        is_record = found is Kind.RECORD
        may_be_torn = bool(pending) and witness.tears(pending[0].position)
        # not asked of each record: a store timestamp costs as much as the rest of the round
        if may_be_torn and not (
            is_record and witness.covers(position, store_timestamp_ms(record, 0))
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
    scanned.torn_records = held
    _close(scanned, store, config, ends, witness, pending)
    return scanned


def _close(
    scanned: Scanned,
    store: StoreDirectory,
    config: Config,
    ends: Ends,
    witness: Witness,
    pending: list[Damage],
) -> None:
    """What stands at the log's end, and has nothing whole behind it that would tell what it is."""
    least_end = max(ends.least, ends.wrote)
    if ends.known is not None and ends.known <= store.segments[-1].end:
        least_end = max(least_end, ends.known)
    if pending and pending[0].position < witness.told_to:
        # no torn tail: somebody was told of it, if not of what may be behind that
        told = [each for each in pending if each.position < witness.told_to]
        scanned.quarantined += told
        scanned.end, pending = told[-1].end, pending[len(told) :]
    scanned.damaged = bool(pending or scanned.quarantined)
    if scanned.end < least_end:
        reasons = [*(each.reason for each in pending[:1]), f"the log was written up to {least_end}"]
        size = config.mapped_file_size_commit_log_bytes
        scanned.quarantined += damage_between(
            store.paths, size, scanned.end, least_end, "; ".join(reasons)
        )
        scanned.end = least_end


def _without_checksum(position: int) -> StoreDamaged:
    return StoreDamaged(
        "a record has no checksum of its own, which force_verify_prop_crc asks for",
        f"log offset {position}",
        "the store was not written with it: penstock up --set force_verify_prop_crc=false",
    )


def dispatched_to(queues: Sequence[QueueFiles]) -> int:
    """The end of the newest record that one of these names. Each looks it up once."""
    return max([0, *(queue.dispatched_to for queue in queues)])
