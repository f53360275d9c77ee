"""Start-up: finds where the log ends, by walking its records from one that is known to be good.

The walk meets whole records, blanks, and bytes that are neither. What each of them is follows from
what the store's witnesses say, from what the last run's memory says, and from what comes after it;
`Outcome` names every case with its reason. The result is a `LogEnd`: where the log ends, the damage
before that, which stays, and the torn tail after it, which is cut. Reads only; recover_log.py acts.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.shared.config import Config
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import AT_MAGIC, store_timestamp_ms
from penstock.shared.log.damage import Damage, damage_between
from penstock.shared.log.reader import reach_bytes
from penstock.shared.log.unfinished_block import unfinished_block
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.recovery.witness import Witness, confirmed_record, first_timestamp_ms
from penstock.shared.store.directory import StoreDirectory

# A disk writes 512 bytes whole or not at all. So a piece that is missing inside a record is at
# least this long, and one that is missing at its end takes the end of its properties.
_SECTOR_OF_ZEROS = bytes(512)
# No log reaches this offset, so as an upper bound it excludes nothing.
NOWHERE = sys.maxsize


class Outcome(Enum):
    """What stands at a place of the log and what becomes of it; the value is the reason."""

    # The log goes on.
    KEPT = "it is whole, and so is everything from the scan's start up to it"
    CONFIRMED = "it is whole and was on disk, so the damage before it was too: that is quarantined"
    # What follows decides: before a CONFIRMED record it is quarantined, at the log's end it is cut.
    DAMAGED = "no record and no blank begins here"
    TORN = "its body's checksum holds, but its properties have zeros: a page is not on disk"
    OVERHANGS = "it ends after the last run's memory says that the log does"
    HELD = "it is whole, but follows damage of a power failure, and nobody was told of it"
    # The walk ends here.
    UNWRITTEN = "only zeros follow"
    UNPUBLISHED = "the last run's memory says that the log ends here, whatever bytes follow"
    ABANDONED = "a RocketMQ cut the log before the damage, and left the bytes after it in place"
    UNCHECKED = "it lacks the checksum that RocketMQ would compare, which would cut it off"
    # After the walk, for damage that no CONFIRMED record follows, and for what is not there.
    TOLD = "somebody may have been told of it, so it is no torn tail: it is quarantined"
    CUT = "nobody was told of it, and nothing whole follows: a write that a crash cut off"
    MISSING = "the log is known to have gone on: what is not there is quarantined"


_WAITS = frozenset((Outcome.DAMAGED, Outcome.TORN, Outcome.OVERHANGS))
# The reason that a damaged range gets where the scan itself gave none.
_REASONS = {
    Outcome.TORN: "topic or properties are torn",
    Outcome.OVERHANGS: "it goes beyond the log's end",
}


class Bounds(NamedTuple):
    """What is known of the log's end before the walk, as log offsets.

    A bound that is not known has a value that binds nothing. So no caller has to ask whether it is
    known, and none can forget to.
    """

    least: int = 0  # the log went at least this far
    most: int = NOWHERE  # nothing from here on was published: the last run's memory says so
    left_at: int = NOWHERE  # where an orderly stop left the end: nothing is missing up to here


class LogEnd(msgspec.Struct):
    """Where the log ends, what stands before that, and what is to be cut after it."""

    end: int
    records_end: int  # the end of the last record; `end` may be after a blank
    last_record: int = 0  # where it begins; 0 where the walk met none
    timestamp_ms: int = 0  # its store time
    messages: int = 0
    quarantined: list[Damage] = []
    has_torn_tail: bool = False
    torn_records: int = 0  # whole records in that tail: cutting it keeps them in a file
    torn_end: int = 0  # where the last of them ends
    look_from: int = 0  # a record at least a frame before the end, or the walk's first one

    @property
    def damaged(self) -> bool:
        return self.has_torn_tail or bool(self.quarantined)


def scan_start(
    store: StoreDirectory, witness: Witness, unclean: bool, most: int, dispatched: int
) -> int:
    """The offset of a record before which all is known to be good, in log, consume queues and
    index.

    `most` is the log's end according to the last run's memory; `dispatched`, according to the
    consume queues.
    """
    limit_ms = witness.checkpoint.recovery_timestamp_ms
    start = max(store.log_start, confirmed_record(store, witness.checkpoint))
    for segment in reversed(store.segments):
        if segment.base <= start:
            break
        if segment.base >= most:
            continue  # allocated ahead of the writer: no record of the log is in there
        timestamp_ms = first_timestamp_ms(store, segment.base)
        # RocketMQ's rule. After a clean stop all is on disk, and the last segment will do.
        if timestamp_ms and (not unclean or timestamp_ms <= limit_ms):
            start = segment.base
            break
    if start <= dispatched:
        return start
    # The queues end before what the checkpoint says, or are gone. Dispatching has to begin again in
    # the segment of their last record, whatever is known of the log itself.
    bases = [segment.base for segment in store.segments if segment.base <= dispatched]
    return max([store.log_start, *bases])


def find_log_end(
    store: StoreDirectory, config: Config, start: int, bounds: Bounds, witness: Witness
) -> LogEnd:
    """Walk from `start`, where a good record begins, to the log's end.

    Raises StoreDamaged for a record without the checksum that the configuration demands, and
    OSError for a segment that cannot be read.
    """
    walk = LogWalk(store, config, start, bounds, witness)
    # A whole segment of warm pages may follow the end, and the scan would look through all of it
    # for a record. So at the end it is not asked for another step; nor if the walk begins there.
    if start >= bounds.most:
        return walk.settle()
    for position, kind, size, record, reason in store.scan_log(start, checksum=_checksum(config)):
        outcome = walk.judge(position, kind, size, record, reason)
        if outcome is Outcome.KEPT:
            walk.keep(position, size, kind, record)
            if position + size == bounds.most:
                break
        elif outcome in _WAITS:
            walk.wait(position, size, reason or _REASONS.get(outcome, outcome.value))
        elif outcome is Outcome.HELD:
            walk.hold(position, size, kind)
        elif outcome is Outcome.CONFIRMED:
            walk.confirm()
            walk.keep(position, size, kind, record)
            if position + size == bounds.most:
                break
        elif outcome is Outcome.UNCHECKED:
            raise _without_checksum(position)
        else:
            break
    return walk.settle()


def cut_unfinished_block(store: StoreDirectory, found: LogEnd, least: int) -> None:
    """Have the log end before a block of exactly_once() of which a power failure took the rest.

    Nobody was answered for it, and nobody has seen it: positions move by whole frames. A block that
    begins below `least`, up to which somebody may know the log, is left. Records of a block that is
    cut are kept in a file with the rest of the torn tail.
    """
    if found.end <= least:
        return  # any block begins below the end, so it is left: a start after a kill reads no more
    steps = store.scan_log(found.look_from, checksum=Checksum.NONE)
    block = unfinished_block(steps, found.end)
    if block is None or block.begin < least:
        return
    found.torn_records += block.records
    found.torn_end = max(found.torn_end, found.end)
    found.has_torn_tail = True
    found.end, found.records_end = block.begin, block.before_end or block.begin
    found.last_record, found.timestamp_ms = block.before, block.before_ms
    found.messages -= block.records


class LogWalk:
    """The decisions of one walk, and what it has seen so far."""

    def __init__(
        self,
        store: StoreDirectory,
        config: Config,
        start: int,
        bounds: Bounds,
        witness: Witness,
    ) -> None:
        self._paths = store.paths
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._bounds = bounds
        self._most = bounds.most
        self._witness = witness
        self._may_be_cut = witness.may_be_cut
        self._found = LogEnd(start, start, look_from=start)
        self._reach, self._near = reach_bytes(config), start
        # Damage that no confirmed record has followed yet, in log order.
        self._pending: list[Damage] = []
        # The number of whole records after that damage, which may be cut with it.
        self._held = 0
        self._last_record: memoryview | None = None

    def judge(
        self, position: int, kind: Kind, size: int, record: memoryview, reason: str
    ) -> Outcome:
        """What stands at `position`. Changes nothing; called once for each step of the scan."""
        if kind is Kind.END:
            return Outcome.UNWRITTEN
        # A segment is allocated and warmed ahead of the writer, and one that was recycled or torn
        # may hold anything there, whole records too. Memory knows better than the bytes do.
        if position >= self._most:
            return Outcome.UNPUBLISHED
        # Such a record is whole by its body's checksum. RocketMQ would cut the log here, and with
        # it every message after this one, so the start is refused and the log stays as it is.
        if reason == NO_RECORD_CRC:
            return Outcome.UNCHECKED
        if kind is Kind.DAMAGED:
            return Outcome.DAMAGED
        # The writer publishes whole records only, so it did not write this one.
        if position + size > self._most:
            return Outcome.OVERHANGS
        # The zeros are looked for first: nearly no record has them, and the search is quick.
        if (
            kind is Kind.RECORD
            and self._may_be_cut
            and (not record[-1] or _SECTOR_OF_ZEROS in bytes(record))
            and self._is_torn(position, record)
        ):
            return Outcome.TORN
        if not self._pending:
            return Outcome.KEPT
        damage_at = self._pending[0].position
        # A RocketMQ that recovers cuts by moving its write position; what stood further on stays in
        # the file until it is overwritten. It is no part of a log that ended before the damage.
        if damage_at >= self._bounds.left_at:
            return Outcome.ABANDONED
        # After a power failure pages may be there while others before them are not. A record proves
        # that the damage before it is inside the log only if it is known to have been on disk. Its
        # store time is read here and not for each record: it costs as much as the rest of a step.
        # A blank has none, and never proves anything.
        if self._witness.tears(damage_at) and not (
            kind is Kind.RECORD and self._witness.covers(position, store_timestamp_ms(record, 0))
        ):
            return Outcome.HELD
        return Outcome.CONFIRMED

    def _is_torn(self, position: int, record: memoryview) -> bool:
        """Whether a record whose body is whole has zeros where no writer puts any.

        The body's checksum does not cover the properties, and the writer takes none that end in a
        zero. (A topic that contains one is damage to the scan already.) A record that is known to
        have been on disk was not torn by this crash, and is served as it is.
        """
        properties = decode_record(record).properties
        has_zeros = properties.endswith(b"\0") or _SECTOR_OF_ZEROS in properties
        return has_zeros and not self._witness.covers(position, store_timestamp_ms(record, 0))

    def keep(self, position: int, size: int, kind: Kind, record: memoryview) -> None:
        """The log goes on with a whole record, or with the blank that ends a segment."""
        found = self._found
        found.end = position + size
        if kind is Kind.RECORD:
            found.messages += 1
            found.last_record = position
            if position - self._near >= self._reach:
                found.look_from, self._near = self._near, position
            found.records_end = found.end
            self._last_record = record  # its time is read once, at the end

    def wait(self, position: int, size: int, reason: str) -> None:
        """Note damage, no further than the log may go. What follows tells what it is."""
        stop = min(position + size, self._most)
        self._pending += self._damage(position, stop, reason)

    def hold(self, position: int, size: int, kind: Kind) -> None:
        """Note a step after damage. It is cut with the damage unless a confirmed record follows."""
        self._held += kind is Kind.RECORD
        self._found.torn_end = position + size

    def confirm(self) -> None:
        """A confirmed record follows, so what was in doubt lies inside the log: its damage stays,
        and its whole records count."""
        self._found.quarantined += self._pending
        self._found.messages += self._held
        self._pending, self._held = [], 0

    def settle(self) -> LogEnd:
        """Decide about damage that no confirmed record follows, and about what is missing."""
        found, torn = self._found, list[Damage]()
        for damage in self._pending:
            if self._settle_one(damage) is Outcome.TOLD:
                found.quarantined.append(damage)
                found.end = damage.end
            else:
                torn.append(damage)
        found.has_torn_tail = bool(torn)
        found.torn_records = self._held
        if self._last_record is not None:
            found.timestamp_ms = store_timestamp_ms(self._last_record, 0)
        least = self._bounds.least
        if found.end < least:  # Outcome.MISSING
            # A shorter log would give the missing offsets again, to other messages.
            reasons = [*(each.reason for each in torn[:1]), f"the log was written up to {least}"]
            found.quarantined += self._damage(found.end, least, "; ".join(reasons))
            found.end = least
        return found

    def _settle_one(self, damage: Damage) -> Outcome:
        """Whether damage at the log's end may be cut."""
        return Outcome.TOLD if damage.position < self._witness.told_to else Outcome.CUT

    def _damage(self, start: int, stop: int, reason: str) -> list[Damage]:
        return damage_between(self._paths, self._segment_bytes, start, stop, reason)


def _checksum(config: Config) -> Checksum:
    """Which checksum of each record is compared."""
    if not config.check_crc_on_recover:
        return Checksum.NONE
    return Checksum.RECORD if config.force_verify_prop_crc else Checksum.BODY


def _without_checksum(position: int) -> StoreDamaged:
    return StoreDamaged(
        "a record has no checksum of its own, which force_verify_prop_crc asks for",
        f"log offset {position}",
        "the store was not written with it: penstock up --set force_verify_prop_crc=false",
    )


def dispatched_to(store: StoreDirectory) -> int:
    """The log offset past the newest record that a queue names. Where the record is whole, its own
    size counts: a bent size in the entry would make the log longer than it is, and what is not
    there would count as damage."""
    found = 0
    for queue in sorted(store.queues(), key=lambda each: each.dispatched_to, reverse=True):
        if queue.dispatched_to <= found:
            break
        found = max(found, _named_end(store, queue))
    return found


def _named_end(store: StoreDirectory, queue: QueueFiles) -> int:
    position = queue.log_offset(queue.max_offset - 1)
    try:
        store.record_at(position)
    except (StoreDamaged, OffsetOutOfRange):
        return queue.dispatched_to  # the log may have lost it
    return position + int.from_bytes(store.read_log(position, AT_MAGIC), "big")
