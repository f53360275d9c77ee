"""Which member has which queue of a group, and how far the group has come in it. No I/O, no clock.

    (group, topic, queue) -> offset, epoch, owner

A queue has one owner or none. Each claim has an epoch that no other claim has, and only the owner
moves the offset, with the claim's epoch. A released claim is over, whatever its owner says of it
later. So a member that was taken for dead, and whose queue another one has, changes nothing. Words
from an ended connection may be read after those of the next one; so commits are numbered, and one
with a lower number than the last changes nothing either. Every change is noted for the journal as
the row that it leads to. A claim becomes valid when its row is written, which another file does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.actors.coordinator.claim_spans import NONE, Span, followed
from penstock.shared.progress.group_journal import Entry, Gone, Row, TopicGone
from penstock.shared.wire.group_messages import HeldClaim

Queue = tuple[str, int]  # of a group: topic, queue id
# A claim that is unknown here is not believed with an epoch this far past all known ones: clients
# and this process count epochs up to 1 << 62, and one false claim must not use them up.
MOST_AHEAD = 1 << 40


class Seat:
    """A queue of a group. `epoch` is that of the last claim; after a release it is a later one.

    `since_ms` is when its owner was given it, by the caller's clock; NONE if unknown, because no
    journal has it. `number` is that of the claim's last commit. No journal has that either:
    earlier commits went to the previous coordinator, and ended with its sockets. Nor does a journal
    have `first`, the offset at which the claim began, or the `spans` of earlier claims.
    """

    __slots__ = ("epoch", "first", "is_moved", "number", "offset", "owner", "since_ms", "spans")

    def __init__(self, offset: int = NONE, epoch: int = 0, owner: str = "") -> None:
        self.offset, self.epoch, self.owner, self.since_ms = offset, epoch, owner, NONE
        self.number = 0
        self.first = NONE
        self.is_moved = False
        self.spans: tuple[Span, ...] = ()

    @property
    def span(self) -> Span:
        """The owner's claim so far."""
        return Span(self.owner, self.first, self.offset, self.since_ms)

    def move(self, offset: int) -> None:
        self.offset = offset
        if self.first == NONE:
            self.first = offset

    def end(self, now_ms: int, seats: int) -> None:
        """The owner's claim is over. `seats` is how many seats there are in all."""
        self.spans = followed(self.spans, self.span._replace(until_ms=now_ms), seats)
        self.owner, self.since_ms = "", NONE


class Given(NamedTuple):
    """A new claim, or the one that its owner already has."""

    offset: int
    epoch: int
    is_moved: bool


class Claims:
    """All claims and offsets."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Seat]]] = {}
        # (group, client id) -> the queues that this client has
        self._owned: dict[tuple[str, str], set[Queue]] = {}
        self._next_epoch = 1
        # all claims with epochs below it are known: one that is missing was forgotten
        self._known_epochs = 1
        self.count = 0
        self._changes: list[Entry] = []

    # --- claims ---

    def claim(
        self, group: str, client: str, queue: Queue, offset: int = NONE, now_ms: int = NONE
    ) -> Given | None:
        """Give a queue to a client; None if another one has it. A queue without an offset begins at
        `offset`; if that is NONE, its owner's first commit sets it."""
        seat = self._seat(group, queue)
        if seat.owner and seat.owner != client:
            return None
        if not seat.owner:
            seat.owner, seat.epoch, seat.since_ms = client, self._next_epoch, now_ms
            seat.number, seat.first = 0, seat.offset
            self._next_epoch += 1
            self._owned.setdefault((group, client), set()).add(queue)
            self._note(group, queue, seat)
        if seat.offset == NONE != offset:
            seat.move(offset)
            self._note(group, queue, seat)
        return Given(seat.offset, seat.epoch, seat.is_moved)

    def hold(self, group: str, client: str, held: HeldClaim) -> bool:
        """Whether a claim that a client believes it has is its own. If the client lost it by being
        silent, it gets it back, unless another one has had the queue since."""
        queue = held.topic, held.queue_id
        seat = self.seat(group, queue)
        if seat is None or held.epoch != seat.epoch or seat.owner not in ("", client):
            return False
        if not seat.owner:
            seat.owner, seat.first = client, seat.offset
            self._owned.setdefault((group, client), set()).add(queue)
            self._note(group, queue, seat)
        return True

    def take_over(self, group: str, client: str, held: HeldClaim) -> bool:
        """Believe a claim that is unknown here: the journal is another store's, or gone.

        It has no offset yet; the client's next commit sets it. A claim that was forgotten with its
        topic or group is not believed: its offsets belong to what was deleted.
        """
        if not self._known_epochs <= held.epoch < self._next_epoch + MOST_AHEAD:
            return False
        queue = held.topic, held.queue_id
        seat = self._seat(group, queue)
        if seat.owner or seat.epoch:
            return False
        seat.owner, seat.epoch, seat.first = client, held.epoch, seat.offset
        self._next_epoch = max(self._next_epoch, held.epoch + 1)
        self._owned.setdefault((group, client), set()).add(queue)
        self._note(group, queue, seat)
        return True

    def release(
        self, group: str, client: str, queue: Queue, epoch: int, now_ms: int = NONE
    ) -> bool:
        """End a claim, if it is the client's; returns whether it was."""
        seat = self._own(group, client, queue, epoch)
        if seat is None:
            return False
        # a new epoch, or an earlier Join of the client, read late, would give the claim back
        seat.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._free(group, client, queue, seat, now_ms)
        return True

    def release_all(
        self, group: str, client: str, but: Iterable[Queue] = (), now_ms: int = NONE
    ) -> list[Queue]:
        """Free the queues of a client, except some; returns those that it freed."""
        freed = sorted(self._owned.get((group, client), set()) - set(but))
        for queue in freed:
            seat = self._groups[group][queue[0]][queue[1]]
            self._free(group, client, queue, seat, now_ms)
        return freed

    def _free(self, group: str, client: str, queue: Queue, seat: Seat, now_ms: int) -> None:
        seat.end(now_ms, self.count)
        self._drop(group, client, queue)
        self._note(group, queue, seat)

    def _drop(self, group: str, client: str, queue: Queue) -> None:
        owned = self._owned[group, client]
        owned.discard(queue)
        if not owned:
            del self._owned[group, client]

    # --- offsets ---

    def commit(
        self, group: str, client: str, queue: Queue, offset: int, epoch: int, number: int
    ) -> bool:
        """Whether the claim of this epoch is the client's. Then the commit counts, unless one with
        a higher number has come: an offset may go back, but not to that of an older commit."""
        seat = self._own(group, client, queue, epoch)
        if seat is None:
            return False
        if number < seat.number:
            return True
        seat.number = number
        if seat.offset != offset or seat.is_moved:
            seat.move(offset)
            seat.is_moved = False
            self._note(group, queue, seat)
        return True

    def reset(
        self, group: str, queue: Queue, offset: int, now_ms: int = NONE, is_moved: bool = True
    ) -> tuple[str, HeldClaim]:
        """Set an offset, whoever has the queue, and end its claim. Returns the owner and the claim.
        With `is_moved`, the next one to claim the queue is told."""
        seat = self._seat(group, queue)
        owner, held = seat.owner, HeldClaim(*queue, seat.epoch)
        if owner:
            self._free(group, owner, queue, seat, now_ms)
        seat.offset, seat.is_moved = offset, is_moved
        # a new epoch, or the previous owner could have the claim back
        seat.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._note(group, queue, seat)
        return owner, held

    def move(self, group: str, queue: Queue, offset: int) -> None:
        """Set an offset that the log says; the owner keeps the queue."""
        seat = self._seat(group, queue)
        if seat.offset != offset:
            seat.move(offset)
            self._note(group, queue, seat)

    def forget(self, group: str) -> None:
        """Drop a group with its offsets. Its epochs stay used."""
        self._known_epochs = self._next_epoch
        for topic, seats in self._groups.pop(group, {}).items():
            self.count -= len(seats)
            for queue_id, seat in seats.items():
                if seat.owner:
                    self._drop(group, seat.owner, (topic, queue_id))
        self._changes.append(Gone(group))

    def forget_topic(self, topic: str) -> None:
        """Drop all seats of a topic that was deleted: another one may get its name."""
        self._known_epochs = self._next_epoch
        known = False
        for group, topics in self._groups.items():
            seats = topics.pop(topic, None)
            if seats is None:
                continue
            known = True
            self.count -= len(seats)
            for queue_id, seat in seats.items():
                if seat.owner:
                    self._drop(group, seat.owner, (topic, queue_id))
        if known:
            self._changes.append(TopicGone(topic))

    # --- looking ---

    def seat(self, group: str, queue: Queue) -> Seat | None:
        return self._groups.get(group, {}).get(queue[0], {}).get(queue[1])

    def topics(self, group: str) -> dict[str, dict[int, Seat]]:
        """The seats of a group, by topic and queue."""
        return self._groups.get(group, {})

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def owned(self, group: str, client: str) -> set[Queue]:
        return self._owned.get((group, client), set())

    def owners(self) -> list[tuple[str, str]]:
        """(group, client id) of each client that has claims."""
        return list(self._owned)

    @property
    def next_epoch(self) -> int:
        return self._next_epoch

    def offsets(self) -> dict[str, dict[str, dict[int, int]]]:
        """All offsets, in the shape of consumerOffset.json."""
        return {
            group: {
                topic: found
                for topic, seats in topics.items()
                if (found := {at: s.offset for at, s in sorted(seats.items()) if s.offset != NONE})
            }
            for group, topics in self._groups.items()
        }

    # --- the journal ---

    def changes(self) -> list[Entry]:
        """The changes since the last call."""
        found, self._changes = self._changes, []
        return found

    def rows(self, saved: bool = True) -> Iterator[Row]:
        """The rows that consumerOffset.json cannot hold: those with an epoch. All rows unless the
        present offsets are `saved` in that file."""
        for group, topics in self._groups.items():
            for topic, seats in topics.items():
                for queue_id, seat in seats.items():
                    if seat.epoch or not saved:
                        yield _row(group, (topic, queue_id), seat)

    def load(self, row: Row) -> None:
        """Load a queue's row from a journal or the offsets' file, over what was known."""
        queue = row.topic, row.queue_id
        seat = self._seat(row.group, queue)
        if seat.owner:
            self._drop(row.group, seat.owner, queue)
        seat.offset, seat.epoch, seat.owner = row.offset, row.epoch, row.owner
        seat.is_moved = row.is_moved
        seat.since_ms, seat.first = NONE, row.offset
        if row.owner:
            self._owned.setdefault((row.group, row.owner), set()).add(queue)
        self.skip_epochs(row.epoch + 1)

    def skip_epochs(self, next_epoch: int) -> None:
        """Give no claim an epoch below this one; claims in use are loaded already."""
        self._known_epochs = self._next_epoch = max(self._next_epoch, next_epoch)

    # --- seats ---

    def _seat(self, group: str, queue: Queue) -> Seat:
        seats = self._groups.setdefault(group, {}).setdefault(queue[0], {})
        seat = seats.get(queue[1])
        if seat is None:
            seat = seats[queue[1]] = Seat()
            self.count += 1
        return seat

    def _own(self, group: str, client: str, queue: Queue, epoch: int) -> Seat | None:
        seat = self.seat(group, queue)
        return seat if seat is not None and seat.owner == client and seat.epoch == epoch else None

    def _note(self, group: str, queue: Queue, seat: Seat) -> None:
        self._changes.append(_row(group, queue, seat))


def _row(group: str, queue: Queue, seat: Seat) -> Row:
    return Row(group, *queue, seat.offset, seat.epoch, seat.owner, seat.is_moved)
