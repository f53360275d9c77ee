"""Pulls with a filter: the reader searches queues for what matches, a bounded bit at a time.

    put() -> turn(), turn(), ... -> something matches, or the time is over -> the answer

A filter may match one message in a million, so a pull is not searched for at once: it takes turns
with the others, and a look takes in at most `max_filter_message_size_bytes` of queue entries. No
entry is looked at twice: the pull's cursors move on here, and the answer says how far, even if
nothing matched. A pull at its queues' end waits for more, and only a match wakes its consumer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.actors.reader.held_pulls import (
    NEVER_MS,
    HeldPull,
    Outcome,
    moved,
    unreadable_queue,
)
from penstock.shared.errors import PenstockError
from penstock.shared.filters.message_filter import Filter
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.log.found_records import FoundRecords
from penstock.shared.queue.matching import read_matching
from penstock.shared.queue.reader import MAX_PULL_BYTES, QueueDeleted, QueueReader
from penstock.shared.wire.messages import QueueSlice
from penstock.shared.wire.pulled_parts import UnreadableQueue

# A turn ends after this many looks, or this time: plain pulls wait for the reader meanwhile.
LOOKS_AT_ONCE = 256
TURN_MS = 5
NO_END = 1 << 63


class FilteredPull(NamedTuple):
    """A filtered pull in progress. `cursors` move on; it began at `held.pull.cursors`."""

    held: HeldPull
    filter: Filter
    # queue id -> the offset at which the consumer wants no more of the queue
    ends: dict[int, int]
    cursors: dict[int, int]
    # errors of queues that cannot be read where their cursors are
    unreadable: dict[int, UnreadableQueue]


class FilteredPulls:
    """All filtered pulls that have no answer yet, one for each consumer."""

    def __init__(
        self,
        queues: QueueReader,
        look_bytes: int,
        room: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """A look takes in `look_bytes` of queue entries; `room` says how many bytes of records an
        answer may have at the moment."""
        self._queues = queues
        self._look_entries = max(1, look_bytes // CQ_ENTRY_BYTES)
        self._room = room
        self._now_ms = now_ms
        self._wanted: dict[bytes, FilteredPull] = {}
        # peers whose pulls may have entries to look at, next first
        self._turns: OrderedDict[bytes, None] = OrderedDict()
        # no pull's time is over before this; after an answer it may be earlier than needed
        self.due_ms = NEVER_MS
        self._queued = -1
        self._turn_ends_ms = 0
        # how many looks the last turn made; if any, there may be more to do at once
        self.looks = 0

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def has_turns(self) -> bool:
        """Whether some pulls were not looked at since they came, or since their queues grew."""
        return bool(self._turns)

    def put(self, wanted: FilteredPull) -> None:
        """Take a pull in place of the consumer's last one. The same pull again changes nothing."""
        held = wanted.held
        before = self._wanted.get(held.peer)
        if before is None or before.held.pull.request != held.pull.request:
            self._wanted[held.peer] = wanted
            self._turns[held.peer] = None
            self.due_ms = min(self.due_ms, held.until_ms)

    def drop(self, peer: bytes) -> None:
        self._wanted.pop(peer, None)
        self._turns.pop(peer, None)

    def waiting(self) -> list[HeldPull]:
        """The pulls that have no answer yet."""
        return [wanted.held for wanted in self._wanted.values()]

    def clear(self) -> None:
        """All connections have closed."""
        self._wanted.clear()
        self._turns.clear()

    def turn(self, queued: int) -> Iterator[Outcome]:
        """Look at pulls that may have entries to look at: at all of them if `queued` has moved.

        Yields outcomes one at a time: how much of one answer was sent decides how much the next may
        have.
        """
        has_moved, self._queued = queued != self._queued, queued
        self.looks = 0
        if not self._wanted:
            self.due_ms = NEVER_MS
            return
        if has_moved:
            self._turns.update(dict.fromkeys(self._wanted))
        began_ms = self._now_ms()
        self._turn_ends_ms = began_ms + TURN_MS
        while self._turns and self.looks < LOOKS_AT_ONCE and self._has_time():
            peer, _ = self._turns.popitem(last=False)
            self.looks += 1
            outcome, is_to_go_on = self._look(self._wanted[peer])
            if is_to_go_on:
                # at the end of the line: the others get their look first
                self._turns[peer] = None
            if outcome is not None:
                yield outcome
        if began_ms >= self.due_ms:
            for wanted in list(self._wanted.values()):
                if wanted.held.until_ms <= began_ms:
                    yield self._answer(wanted, {})
            waiting = (wanted.held.until_ms for wanted in self._wanted.values())
            self.due_ms = min(waiting, default=NEVER_MS)

    def answer_all(self) -> Iterator[Outcome]:
        """Tell all consumers how far their pulls have come: the reader stops."""
        for wanted in list(self._wanted.values()):
            yield self._answer(wanted, {})

    def answer_oldest(self) -> Outcome:
        """Tell the consumer that has waited longest how far its pull has come."""
        return self._answer(next(iter(self._wanted.values())), {})

    def _has_time(self) -> bool:
        return self._now_ms() < self._turn_ends_ms

    def _look(self, wanted: FilteredPull) -> tuple[Outcome | None, bool]:
        """Look once: the answer if there is one, and whether there is more to look at first."""
        found: dict[int, FoundRecords] = {}
        complete, more = self._find(wanted, found)
        return (self._answer(wanted, found), False) if complete else (None, more)

    def _has_gone(self, slot: int, cursor: int, error: Exception) -> bool:
        """Whether the next look will not meet this error: the queue was deleted, or its messages
        have expired, since the cleaner moves the min offset before it deletes."""
        if isinstance(error, QueueDeleted):
            return True
        return isinstance(error, FileNotFoundError) and cursor < self._queues.range(slot)[0]

    def _find(self, wanted: FilteredPull, found: dict[int, FoundRecords]) -> tuple[bool, bool]:
        """(there is something to tell, there is more to look at). Moves the cursors on."""
        queues = self._queues.queues(wanted.held.pull.topic)
        complete, more = len(queues) > wanted.held.pull.known_queues, False
        left = self._look_entries
        left_bytes = min(max(wanted.held.pull.max_bytes, 1), MAX_PULL_BYTES, self._room())
        for queue_id, cursor in list(wanted.cursors.items()):
            slot = queues.get(queue_id, -1)
            low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
            end = wanted.ends.get(queue_id, NO_END)
            stop = min(high, end)
            if low <= cursor < stop and left > 0 and left_bytes > 0:
                until = min(stop, cursor + left)
                try:
                    records, after = read_matching(
                        *(self._queues, slot, cursor, until, left_bytes, wanted.filter),
                        self._has_time,
                    )
                except (PenstockError, OSError) as error:
                    if self._has_gone(slot, cursor, error):
                        more = True
                    else:
                        wanted.unreadable[queue_id] = unreadable_queue(wanted.held, queue_id, error)
                        complete = True
                    continue
                complete = complete or after == cursor  # the next message is lost: see `moved`
                left -= after - cursor
                left_bytes -= records.size
                # a queue that was looked at goes to the end of the line, so that no queue starves
                # another
                del wanted.cursors[queue_id]
                wanted.cursors[queue_id] = cursor = after
                if records.size:
                    found[queue_id] = records
            complete = complete or cursor < low or cursor >= end or queue_id in found
            complete = complete or cursor > high and self._queued >= wanted.held.position
            more = more or cursor < stop
        return complete, more

    def _answer(self, wanted: FilteredPull, found: dict[int, FoundRecords]) -> Outcome:
        """Answer with how far each queue was searched, and what was found."""
        held = wanted.held
        self.drop(held.peer)
        slices, unreadable = [], dict(wanted.unreadable)
        for queue_id in wanted.cursors:
            try:
                part = self._slice(wanted, queue_id, found)
            except (PenstockError, OSError) as error:
                unreadable[queue_id] = unreadable_queue(held, queue_id, error)
                continue
            if part is not None:
                slices.append(part)
        records = [found[part.queue_id] for part in slices if part.queue_id in found]
        return Outcome(held.peer, held.pull, slices, records, list(unreadable.values()))

    def _slice(
        self, wanted: FilteredPull, queue_id: int, found: dict[int, FoundRecords]
    ) -> QueueSlice | None:
        held = wanted.held
        began, cursor = held.pull.cursors[queue_id], wanted.cursors[queue_id]
        slot = self._queues.queues(held.pull.topic).get(queue_id, -1)
        span = low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
        if cursor > began:
            size = found[queue_id].size if queue_id in found else 0
            # what the pull has looked at had not expired then, even if it has by now
            return QueueSlice(queue_id, began, cursor, min(low, began), high, size)
        is_complete = self._queued >= held.position
        return moved(self._queues, slot, queue_id, cursor, span, is_complete)
