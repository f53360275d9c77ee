"""The offsets of groups that work exactly once: they follow the log, and an operator's go by it.

    OFFSETS_TOPIC -> move           what blocks have stored; the owner keeps the queue
                  -> reset          an operator's record, whoever sent it: claims on the queue end
    reset() -> a record             the writer compares blocks with it, so it comes first
    agree() -> a record             before a queue is given: where the group is by other means

A group may also acknowledge without blocks, and another broker may have used the store. The writer
compares blocks with the log alone. So if the group has come further than the log says, the log is
told before the queue gets its next owner. The writer compares that record like a block, so it takes
nothing back of a block that comes in between.

How far the topic was followed is an offset like any other, of a group of the broker's own: it is
in the journal with what it has moved. A block stored a moment before a queue is claimed may not be
seen yet: then the writer tells the new owner, at its first block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

from penstock.actors.coordinator.claim_spans import NONE
from penstock.actors.coordinator.claims import Claims
from penstock.actors.coordinator.move_records import MoveRecords, Moves
from penstock.actors.coordinator.notifications import Notifications
from penstock.shared.errors import InvalidMessage, OffsetsMoved, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import decode_record
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.offsets_record import (
    ANY,
    OFFSETS_QUEUE,
    OffsetsMove,
    read_body,
)
from penstock.shared.messaging.system_topics import (
    OFFSETS_GROUP,
    OFFSETS_TOPIC,
    STAGING_TOPIC,
)
from penstock.shared.process.actor import Stage
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.saved_offsets import load_offsets

# Records in a cycle.
AT_ONCE = 256
_Name = tuple[str, str, int]  # group, topic, queue id
_PLACE = OFFSETS_TOPIC, OFFSETS_QUEUE


class LogOffsets:
    """Follows one topic, whose only queue has the moves of offsets in order."""

    def __init__(
        self, stage: Stage, queues: QueueReader, claims: Claims, tell: Notifications
    ) -> None:
        self._stage, self._paths = stage, StorePaths(stage.config.store)
        self._queues, self._claims, self._tell = queues, claims, tell
        # values that blocks are compared with, as far as followed: group -> topic -> queue -> value
        self._known: dict[str, dict[str, dict[int, int]]] = {}
        self._next = self._applied = self._began = 0
        # deleted topic -> the log offset below which records are of the deleted one
        self._gone: dict[str, int] = {}
        self._deletions = 0
        self._records: MoveRecords | None = None

    def begin(self) -> None:
        """Call this after the saved offsets are loaded."""
        seat = self._claims.seat(OFFSETS_GROUP, _PLACE)
        self._applied = max(0, seat.offset) if seat is not None else 0
        self._began = self._stage.positions["wrote"]
        try:
            saved = load_offsets(self._paths.exact_offsets)
        except (OSError, StoreDamaged) as error:
            self._stage.report(f"which groups work exactly once is not all known: {error}")
            return
        self._gone = load_deleted_topics(self._paths.deleted_topics).ends()
        for group, topics in saved.offsets.items():
            for topic, offsets in topics.items():
                if saved.log_offset > self._gone.get(topic, -1):
                    self._known.setdefault(group, {})[topic] = dict(offsets)
        self._next = min(saved.queue_offset, self._applied)

    # --- following ---

    def work(self, now_ms: int) -> int:
        """Follow new records; returns how many, and how many answers of the writer came."""
        outcomes = 0 if self._records is None else self._records.work(now_ms)
        low, high = self._range()
        # after `high`: records of a topic that was created again come after its deletion
        self._look_at_deletions()
        start = max(self._next, low)
        if start >= high:
            if self._applied > high:
                self._forget_what_was_cut(high)
            return outcomes
        try:
            slot = self._queues.queues(OFFSETS_TOPIC)[OFFSETS_QUEUE]
            raw = self._queues.entries(slot, start, min(high, start + AT_ONCE))
        except FileNotFoundError:
            return outcomes  # it has expired: `low` moves
        moved: dict[_Name, int] = {}
        for at, (position, size, _) in enumerate(ENTRY.iter_unpack(raw), start):
            move = self._read(position, size) if size != BLANK_SIZE else None
            for name, before, to in _moves(move):
                # a Spark writer's progress in the staging topic, which nobody consumes
                if name[1] == STAGING_TOPIC or position < self._gone.get(name[1], 0):
                    continue
                self._note(name, to)
                if at >= self._applied and to != NONE and before == ANY:
                    moved.pop(name, None)
                    self._reset(name, to)
                elif at >= self._applied and to != NONE:
                    moved[name] = self._moved(moved.get(name, self._offset(name)), before, to)
        for (group, topic, queue_id), offset in moved.items():
            self._claims.move(group, (topic, queue_id), offset)
        self._next = start + len(raw) // ENTRY.size
        if self._next > self._applied:
            self._applied = self._next
            self._claims.move(OFFSETS_GROUP, _PLACE, self._next)
        return outcomes + self._next - start

    @staticmethod
    def _moved(at: int, before: int, to: int) -> int:
        """Where a group at `at` is after a record. If it is not where the record begins, it was
        moved by other means since, and what those acknowledged is not undone."""
        return to if at == before else max(at, to)

    def _offset(self, name: _Name) -> int:
        group, topic, queue_id = name
        seat = self._claims.seat(group, (topic, queue_id))
        return NONE if seat is None else seat.offset

    def _look_at_deletions(self) -> None:
        """Drop the values of deleted topics, as the writer does."""
        if (last := self._stage.positions["deleted_topics"]) == self._deletions:
            return
        self._deletions = last
        before = self._gone
        self._gone = load_deleted_topics(self._paths.deleted_topics).ends()
        new = {topic for topic, end in self._gone.items() if before.get(topic) != end}
        for topics in self._known.values():
            for topic in topics.keys() & new:
                del topics[topic]

    def _forget_what_was_cut(self, high: int) -> None:
        """More of the topic was followed than there is now: a power failure took the end of the log
        that was not on disk. What blocks had done there has to be done again."""
        if self._stage.positions["queued"] < self._began:
            return  # its queue does not have all records yet
        for group, topics in self._known.items():
            for topic, values in topics.items():
                for queue_id, value in values.items():
                    if self._offset((group, topic, queue_id)) > value:
                        self._claims.move(group, (topic, queue_id), value)
        self._next = self._applied = high
        self._claims.move(OFFSETS_GROUP, _PLACE, high)

    def _read(self, position: int, size: int) -> OffsetsMove | None:
        try:
            return read_body(decode_record(self._queues.view(position, position + size)).body)
        except (FileNotFoundError, StoreDamaged, InvalidMessage):
            return None  # it has expired, or it is a repair's filler

    def _note(self, name: _Name, to: int) -> None:
        group, topic, queue_id = name
        values = self._known.setdefault(group, {}).setdefault(topic, {})
        if to == NONE:
            values.pop(queue_id, None)
        else:
            values[queue_id] = to

    def _reset(self, name: _Name, offset: int) -> None:
        group, topic, queue_id = name
        seat = self._claims.seat(group, (topic, queue_id))
        if seat is not None and seat.offset == offset:
            return  # this coordinator has reset it itself
        owner, held = self._claims.reset(group, (topic, queue_id), offset)
        if owner:
            self._tell.reset(group, owner, held)

    # --- an operator's ---

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> Generator[bool, None, None]:
        """Have the log record it first, for queues that blocks have moved; yields True meanwhile.

        Raises the writer's refusal.
        """
        yield from self._caught_up()
        known = self._values(group, topic)
        moves = {queue_id: (ANY, to) for queue_id, to in offsets.items() if queue_id in known}
        if moves:
            yield from self._store(group, topic, moves)

    def end(self, group: str) -> Generator[bool, None, None]:
        """Have the log record that a group no longer has values; yields True meanwhile.

        Raises the writer's refusal; then some values may have ended, and others not.
        """
        yield from self._caught_up()
        for topic, queues in list(self._known.get(group, {}).items()):
            yield from self.reset(group, topic, dict.fromkeys(queues, NONE))

    # --- a group's that was moved by other means ---

    def agree(
        self, group: str, topic: str, queue_ids: Iterable[int], is_queued: Callable[[], bool]
    ) -> Generator[bool, None, None]:
        """Before queues are given: have the log record where the group is, if that is past what
        blocks have stored; yields True meanwhile.

        If the log is further than the group, it stays so: a member's commit may be older than a
        block. While the store takes no messages this waits, because blocks would repeat what was
        acknowledged. `is_queued` says whether the queues have what was stored before the request.
        """
        if OFFSETS_QUEUE in self._queues.queues(OFFSETS_TOPIC):
            while not is_queued():
                yield True
            yield from self._caught_up()
        for queue_id, value in self._values(group, topic).items():
            if queue_id in queue_ids and self._offset((group, topic, queue_id)) == NONE:
                self._claims.move(group, (topic, queue_id), value)
        while moves := self._passed(group, topic, queue_ids):
            try:
                yield from self._store(group, topic, moves)
                crash_point("group.agreed")
                now = {queue_id: to for queue_id, (_, to) in moves.items()}
            except OffsetsMoved as error:
                now = error.offsets[topic]
            # set here as well: it may take a while until these records are followed
            for queue_id, value in now.items():
                name = group, topic, queue_id
                self._note(name, value)
                if value > self._offset(name):
                    self._claims.move(group, (topic, queue_id), value)

    def _passed(self, group: str, topic: str, queue_ids: Iterable[int]) -> Moves:
        """Unowned queues in which the group is further than the log says."""
        found: Moves = {}
        values = self._values(group, topic)
        for queue_id in queue_ids:
            seat = self._claims.seat(group, (topic, queue_id))
            value = values.get(queue_id, NONE)
            if seat is not None and not seat.owner and seat.offset > value != NONE:
                found[queue_id] = value, seat.offset
        return found

    def _values(self, group: str, topic: str) -> dict[int, int]:
        return self._known.get(group, {}).get(topic, {})

    def _store(self, group: str, topic: str, moves: Moves) -> Generator[bool, None, None]:
        if self._records is None:
            self._records = MoveRecords(self._stage)
        yield from self._records.store(group, topic, moves)

    def _caught_up(self) -> Generator[bool, None, None]:
        """Wait until `work` has read everything that the queue has now."""
        _, wanted = self._range()
        while True:
            low, high = self._range()
            if max(low, self._next) >= wanted and self._applied <= high:
                return
            yield True

    def _range(self) -> tuple[int, int]:
        slot = self._queues.queues(OFFSETS_TOPIC).get(OFFSETS_QUEUE)
        return self._queues.range(slot) if slot is not None else (0, 0)

    def close(self) -> None:
        if self._records is not None:
            self._records.socket.close(linger=0)


def _moves(move: OffsetsMove | None) -> Iterator[tuple[_Name, int, int]]:
    """Each queue, and from where to where it moves."""
    if move is not None:
        for topic, queues in move.topics.items():
            for queue_id, (before, to) in queues.items():
                yield (move.group, topic, queue_id), before, to
