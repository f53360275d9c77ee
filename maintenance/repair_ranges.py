"""What a repair will replace: the damaged ranges of a log, and the messages that each of them held.

A range does not say what it held, but other things do: if a queue's offsets jump over it, the
messages between them are lost, and entries of consume queues that point into it name theirs. So
each queue stays as dense as RocketMQ requires. damage_walk.py finds the damage. Only reads.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.maintenance.bent_records import bent_records
from penstock.maintenance.damage_walk import Gap, Look, Progress, RangeRepair, Walk
from penstock.maintenance.displaced_records import (
    Claimed,
    Queue,
    claimed_ends,
    claims_of,
    queues_of,
)
from penstock.shared.config import Config
from penstock.shared.formats.tombstone import LostMessage, smallest_tombstone_bytes
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import Damage, damage_between, joined, load_quarantine
from penstock.shared.queue.deleted_topics import load_living_queues
from penstock.shared.queue.known_queues import QueueEnd
from penstock.shared.recovery.find_log_end import dispatched_to
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.directory import StoreDirectory


class RangePlan(NamedTuple):
    """What a repair replaces; and, by name, the ends of queues that only records in the damage
    tell: once it is replaced these cannot be found out again."""

    ranges: list[RangeRepair]
    ends: dict[str, QueueEnd]


def plan_ranges(
    paths: StorePaths,
    config: Config,
    found: Recovered | None,
    progress: Progress | None,
    begun: Sequence[Damage],
    look: Look,
) -> RangePlan:
    """Every damaged range before a whole record, or before the end that is known.

    For ranges that a killed repair had `begun`, this includes what it has replaced already: a range
    stays one range, with one copy of its bytes, whichever repair completes it. `look` finds
    stretches of whole records, ahead of the walk.
    """
    with StoreDirectory(paths.root) as store:
        walk = Walk(store, config, found, begun).run(progress, look)
        if bent := set(bent_records(store, walk.vacant)):
            walk = Walk(store, config, found, begun, bent).run(progress, look)
        known_end = found.log_end if found is not None else _known_end(paths, store)
        if walk.end < known_end:
            size = config.mapped_file_size_commit_log_bytes
            reason = f"the log was written up to {known_end}"
            for each in damage_between(paths, size, walk.end, known_end, reason):
                walk.add(each)
        losses = _Losses(walk, config)
        # The order matters: entries name their messages, ends only count them, and gaps use the
        # room that is left.
        losses.take_entries()
        losses.take_ends(load_living_queues(paths))
        losses.place_gaps()
        return RangePlan(walk.ranges, losses.ends)


def _known_end(paths: StorePaths, store: StoreDirectory) -> int:
    """How far the log went, by what was known of its damage and by a clean store's queues."""
    ends = [each.end for each in load_quarantine(paths)]
    if not store.is_unclean:
        ends.append(min(dispatched_to(store), store.files_end))
    return max(ends, default=0)


class _Losses:
    """Which messages the ranges of a walk held, by everything else that tells of them."""

    def __init__(self, walk: Walk, config: Config) -> None:
        self._walk = walk
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self.ends: dict[str, QueueEnd] = {}  # of queues, by records in the damage

    def take_ends(self, known: Mapping[str, QueueEnd]) -> None:
        """A queue that is known to have gone on has lost what is missing after its last record. So
        have queues whose last records name wrong slots, and those of records in the damage."""
        named: dict[tuple[str, int], tuple[int, int]] = {}
        for each in self._walk.ranges:
            for topic, queue_id, slot in each.lost:
                here = slot + 1, each.damage.position - 1
                named[topic, queue_id] = max(here, named.get((topic, queue_id), here))
        nameless = {each.damage.position for each in self._walk.ranges if not each.lost}
        ends = dict.fromkeys(self._walk.order.tails, QueueEnd())
        for name, known_end in known.items():
            topic, _, number = name.rpartition("/")
            ends[topic, int(number)] = known_end
        claimed = self._claimed_ends([self._walk.next, named, ends]) if self._walk.ranges else {}
        for queue, (_, known_end) in claimed.items():
            self.ends["{}/{}".format(*queue)] = ends[queue] = known_end
        for queue, (end, _) in ends.items():
            # a queue without records here has expired, except for what records in the damage claim
            begin = claimed[queue].begin if queue in claimed else end
            last = self._walk.next.get(queue, named.get(queue, (begin, -1)))
            lost = max(last, named.get(queue, last))
            misplaced = {each.position for each in self._walk.order.tails.get(queue, ())} & nameless
            end = max(end, lost[0] + len(misplaced))
            for (slot, past), stop in ((last, lost[0]), (lost, end)):
                if slot < stop:
                    gap = Gap(slot, stop, past, sys.maxsize)
                    self._walk.gaps.setdefault(queue, []).append(gap)

    def _claimed_ends(self, known: list[Mapping[Queue, tuple[int, int]]]) -> dict[Queue, Claimed]:
        """What the records in the damage tell, given what is already known of the queues' ends."""
        store = self._walk.store
        files = {(each.topic, each.queue_id): (each.max_offset, -1) for each in store.queues()}
        new = {queue: (0, -1) for queue in queues_of(store.paths.topics)}
        claims = claims_of(store.paths, joined(self._walk.damage), self._segment_bytes)
        damage = [each.damage for each in self._walk.ranges]
        return claimed_ends(claims, damage, [*known, files, new])

    def take_entries(self) -> None:
        """Entries that point into the damage name its messages, even the last of a queue."""
        if not self._walk.ranges:
            return
        starts, ends = self._bounds()
        for queue in self._walk.store.queues():
            key = (queue.topic, queue.queue_id)
            first, filled = self._walk.first.get(key, 0), self._walk.next.get(key, (0, -1))[0]
            for start, stop in queue.spans(queue.min_offset, queue.max_offset):
                offsets = queue.entries(start, stop)["offset"].astype(np.int64)
                numbers = np.searchsorted(starts, offsets, "right") - 1
                for index in np.flatnonzero((numbers >= 0) & (offsets < ends[numbers])).tolist():
                    slot = start + index
                    # If a record fills a slot it is not lost, whatever its entry says.
                    if not first <= slot < filled or self._is_in_gap(key, slot):
                        self._lose(int(numbers[index]), LostMessage(*key, slot))

    def _bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each range begins, and where it ends."""
        bounds = [(each.damage.position, each.damage.end) for each in self._walk.ranges]
        starts, ends = np.array(bounds, np.int64).reshape(-1, 2).T
        return starts, ends

    def _is_in_gap(self, key: tuple[str, int], slot: int) -> bool:
        gaps = self._walk.gaps.get(key, [])
        index = bisect_right(gaps, slot, key=lambda gap: gap.low) - 1
        return index >= 0 and slot < gaps[index].high

    def _lose(self, number: int, lost: LostMessage) -> bool:
        """Add this message's tombstone to a range. Returns whether there was room for the smallest
        form: a dense queue is more important than telling its consumers why."""
        need = smallest_tombstone_bytes(lost)
        if need > self._walk.room[number]:
            return False
        self._walk.room[number] -= need
        self._walk.ranges[number].lost.append(lost)
        return True

    def place_gaps(self) -> None:
        """Missing slots that no entry names go to damage between their neighbours, if any."""
        placed = {lost for each in self._walk.ranges for lost in each.lost}
        starts, _ = self._bounds()
        for queue, gaps in self._walk.gaps.items():
            for gap in gaps:
                # a range without room for one tombstone of a queue has none for the next either
                number = int(np.searchsorted(starts, gap.past, "right"))
                # the record after the gap may itself be damage: see _settle
                beyond = int(np.searchsorted(starts, gap.before, "right"))
                for slot in range(gap.low, gap.high):
                    lost = LostMessage(*queue, slot)
                    if lost in placed:
                        continue
                    while number < beyond and not self._lose(number, lost):
                        number += 1
                    if number >= beyond:
                        break
        for each in self._walk.ranges:
            # Entries and gaps were added separately. A queue's slots have to ascend along the log.
            each.lost.sort(key=lambda lost: (lost.topic, lost.queue_id, lost.queue_offset))
