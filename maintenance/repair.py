"""Repair of a damaged store: RocketMQ and Penstock can run on it again, and no byte is lost.

    files    a stray file goes to STORE/penstock/quarantine/; a segment of a wrong length gets the
             right one, a missing one is made; what is cut off is also kept there
    log      the bytes of a damaged range are kept in quarantine/<log offset>.bin, then tombstones
             and fillers replace them, of the same length: everything after it keeps its offset
    queues   and index are made from the log, with a tombstone for each lost message

damage_walk.py finds the damage, and repair_ranges.py which messages it held.

Every step can be done twice: if a repair is killed, run it again. The caller holds the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import msgspec

from penstock.maintenance.damage_walk import Progress, RangeRepair
from penstock.maintenance.kept_bytes import bytes_of
from penstock.maintenance.rebuild import Rebuilt, rebuild_store
from penstock.maintenance.repair_files import plan_files
from penstock.maintenance.repair_ranges import plan_ranges
from penstock.maintenance.side_by_side import run_side_by_side
from penstock.maintenance.whole_stretches import whole_stretches
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import (
    NewFile,
    make_directory,
    make_files,
    opened,
    replace_lost,
    sync_directory,
    write_at,
)
from penstock.shared.formats.tombstone import lay_out
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import Damage, DamagedRanges, load_quarantine, save_quarantine
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.deleted_topics import load_living_queues
from penstock.shared.queue.known_queues import (
    WATERMARK,
    QueueEnd,
    load_known_flush,
    replace_known_queues,
)
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

# This many ranges, or bytes, are replaced between two syncs.
_AT_ONCE, _BYTES_AT_ONCE = 64, 64 << 20


class Repair(msgspec.Struct):
    """What a repair does, or would do."""

    applied: bool
    files: list[str]
    ranges: list[RangeRepair]
    rebuilt: Rebuilt | None = None

    @property
    def needed(self) -> bool:
        return bool(self.files or self.ranges)


def plan_repair(
    paths: StorePaths, config: Config, progress: Progress | None = None, processes: int = 1
) -> Repair:
    """What is to be repaired; changes nothing.

    If files are wrong, there may be more to do after they are repaired than this can see.
    """
    files = [step.text for step in plan_files(paths, config)]
    begun = load_quarantine(paths)
    look = partial(whole_stretches, processes=processes)
    return Repair(False, files, plan_ranges(paths, config, None, progress, begun, look).ranges)


def repair_store(
    paths: StorePaths,
    config: Config,
    clock: Clock,
    last_run: Run | None,
    progress: Progress | None = None,
    processes: int = 1,
) -> Repair:
    """Repair, durable on return. Raises StoreDamaged for what cannot be repaired, and OSError.
    `processes` work side by side.

    Until the last step quarantine.json names the damage, so a range that is partly replaced does
    not count as whole.
    """
    begun = load_quarantine(paths)
    make_directory(paths.staging)
    make_directory(paths.consume_queue)
    files = []
    for step in plan_files(paths, config):
        step.apply()
        files.append(step.text)
    with StoreSurvey(paths, config) as survey:
        found = recover_store(survey, last_run)
    # from here on a start knows where the log was damaged, and restores the queues after that
    save_quarantine(paths, _united(begun, found), clock.now_ms())
    look = partial(whole_stretches, processes=processes)
    ranges, ends = plan_ranges(paths, config, found, progress, begun, look)
    if ends:  # keep them before the damage is replaced that tells of them
        _keep_ends(paths, load_living_queues(paths) | ends)
    save_quarantine(paths, [each.damage for each in ranges], clock.now_ms())
    crash_point("repair.planned")
    for some in _groups(ranges):
        _replace(paths, config, some)
    crash_point("repair.replaced")
    if ranges:
        with StoreSurvey(paths, config) as survey:
            recover_store(survey, last_run)  # only now can a torn tail be cut
    done = Repair(True, files, ranges)
    index, run = config.message_index_enable, partial(run_side_by_side, processes=processes)
    # Queues are always made: if a file was given its length, it has zeros instead of entries.
    done.rebuilt = rebuild_store(
        paths, config, clock, queues=True, index=index, progress=progress, run=run
    )
    crash_point("repair.rebuilt")
    _note_ends(paths)
    save_quarantine(paths, [], clock.now_ms())
    return done


def _united(begun: Sequence[Damage], found: Recovered) -> list[Damage]:
    """What is damaged, and what a killed repair was working on."""
    known = DamagedRanges(begun)
    new = [each for each in found.quarantined if not known.touches(each.position, each.size)]
    begun = [each for each in begun if each.position >= found.log_start]
    return sorted([*begun, *new], key=lambda each: each.position)


def _note_ends(paths: StorePaths) -> None:
    """Note queues' present ends in the list, since a tombstone is not where its message was. For a
    queue that was known to go on further that end stays, and a start lets it go on there."""
    ends = load_living_queues(paths)
    with StoreDirectory(paths.root) as store:
        for queue in store.queues():
            name, end = f"{queue.topic}/{queue.queue_id}", queue.max_offset
            if end > queue.first_slot and end >= ends.get(name, QueueEnd()).end:
                ends[name] = QueueEnd(end, queue.log_offset(end - 1))
    _keep_ends(paths, ends)


def _keep_ends(paths: StorePaths, ends: dict[str, QueueEnd]) -> None:
    """Write the list; its flush offset stays. Durable on return."""
    flushed = load_known_flush(paths.known_queues)
    replace_known_queues(
        paths.known_queues, ends | ({WATERMARK: QueueEnd(flushed)} if flushed else {})
    )


def _groups(ranges: Sequence[RangeRepair]) -> Iterator[list[RangeRepair]]:
    """Ranges that share their syncs. A group's bytes are in memory at once, so they are limited."""
    held: list[RangeRepair] = []
    held_bytes = 0
    for each in ranges:
        if held and (len(held) == _AT_ONCE or held_bytes + each.damage.size > _BYTES_AT_ONCE):
            yield held
            held, held_bytes = [], 0
        held.append(each)
        held_bytes += each.damage.size
    if held:
        yield held


def _replace(paths: StorePaths, config: Config, ranges: Sequence[RangeRepair]) -> None:
    """Keep the ranges' bytes, and put tombstones there; durable on return.

    Several at once, since each sync takes as long as many writes. All copies of a group are on
    disk, including their names, before the first byte of the log changes.
    """
    make_directory(paths.quarantine)
    # files that exist were kept by an earlier try of this repair
    wanted = [each for each in ranges if not os.path.exists(each.kept_in)]
    files = [NewFile(each.kept_in, bytes_of(each.damage)) for each in wanted]
    make_files(paths.staging, files, 0, sparse=True)
    sync_directory(paths.quarantine)
    for file, group in groupby(ranges, key=lambda each: each.damage.file):
        with opened(file, os.O_RDWR) as handle:
            for each in group:
                damage = each.damage
                replace_lost(handle, damage.offset, damage.offset + damage.size)
                _put_tombstones(handle, config, each)
            os.fdatasync(handle)


def _put_tombstones(handle: int, config: Config, each: RangeRepair) -> None:
    damage = each.damage
    # Only there may a blank fill the rest: to readers of the log it is the segment's end.
    ends_segment = damage.end % config.mapped_file_size_commit_log_bytes == 0
    at = damage.offset
    for piece in lay_out(damage.position, damage.size, ends_segment, each.lost, each.stored_ms):
        write_at(handle, piece, at)
        crash_point("repair.mid_range")
        at += len(piece)
