"""Half messages that end now: frames of their copies and marks, and the outcomes of those frames.

    staged -> in a frame on its way to the writer -> stored, or refused

A frame holds the copies of some half messages and after them the op records that name them. It is
stored whole or not at all, whoever is killed. A power failure may cut it from its end: then there
is a copy without a mark, so whoever puts it again looks for the copy first. A copy for a queue that
is gone goes to one that its topic still has.

No sockets: the actor sends the sender's frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.actors.transactions.half_queues import HalfQueues
from penstock.actors.transactions.half_table import NAME_OF
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.clock import Clock
from penstock.shared.errors import PUT_OK, FlushTimeout, PenstockError, QueueNotFound
from penstock.shared.formats.message_id import key_origin, make_unique_key
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import KeyNumbers
from penstock.shared.messaging.half import as_sent, op_records
from penstock.shared.wire.messages import Appended, QueueRun

# Limits of one frame: endings that come while frames are on their way leave together.
MOST_AT_ONCE, FRAME_BYTES = 256, 512 << 10
MAX_IN_FLIGHT = 8


class Place(NamedTuple):
    """Where a copy is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int


class Ending:
    """A half message that ends. `copy` is the record to store with its mark, if there is one."""

    __slots__ = (
        "offset",
        "state",
        "copy",
        "half_at",
        "waiters",
        "alone",
        "stored",
        "stored_after",
        "place",
    )

    def __init__(self, offset: int, state: int, copy: Record | None) -> None:
        self.half_at = -1  # the half message's log offset
        self.offset, self.state, self.copy = offset, state, copy
        # whom to answer: (connection, request)
        self.waiters: list[tuple[bytes, int]] = []
        # whether to send it alone, because a frame with others was refused
        self.alone = False
        self.stored = False
        # after a refusal in such a frame: it may be stored already, from this log offset on; or -1
        self.stored_after = -1
        self.place: Place | None = None


class Endings:
    """The endings that are not stored yet, by their offset in the half queue."""

    def __init__(
        self,
        sender: RecordSender,
        queues: HalfQueues,
        shape: Shape,
        host: bytes,
        run_began: int,
        clock: Clock,
        queues_of: Callable[[str], int],
    ) -> None:
        """`host` is the broker's; `run_began` is the log's end at the start of this run.
        `queues_of` returns how many queues a topic has now; 0 if it is gone."""
        self._queues_of = queues_of
        self._sender, self._queues = sender, queues
        self._run_began = run_began
        self._shape, self._host, self._clock = shape, host, clock
        self._numbers = KeyNumbers(key_origin(host[:-4], clock.now_ms()))
        self._staged: deque[Ending] = deque()
        self._open: dict[int, Ending] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, offset: int) -> Ending | None:
        return self._open.get(offset)

    def put(self, ending: Ending, half: Record) -> None:
        """The half message ends like this, and leaves with the next frame."""
        ending.half_at = half.physical_offset
        self._open[ending.offset] = ending
        self._stage(ending)

    def _stage(self, ending: Ending) -> None:
        # A power failure may have cut a frame of an earlier run, and a RocketMQ broker that is
        # killed loses the marks of its last seconds. Then the copy is stored and only the mark is
        # missing. Frames of this run are whole.
        if ending.copy is not None and ending.half_at < self._run_began:
            ending.place = self._stored(ending.copy, ending.half_at)
            ending.copy = None if ending.place is not None else ending.copy
        self._staged.append(ending)

    def _stored(self, copy: Record, after: int) -> Place | None:
        """Where an earlier run has stored this copy of the half message at `after`."""

        def is_it(record: Record) -> bool:
            properties = with_prop_crc_room(record.properties, False)
            return (properties, record.body) == (copy.properties, copy.body)

        queue = copy.topic, copy.queue_id
        if copy.prepared_transaction_offset:
            found = self._queues.commits_before(*queue, self._run_began).get(after)
        else:
            found = self._queues.find(*queue, after, self._run_began, is_it)
        if found is None:
            return None
        return Place(found.queue_id, found.queue_offset, found.physical_offset)

    def leave(self) -> int:
        """Put what is staged into frames, while few are on their way; returns how many frames."""
        frames = 0
        while self._staged and len(self._sender) < MAX_IN_FLIGHT:
            self._put_frame(self._next_frame())
            frames += 1
        return frames

    def _next_frame(self) -> list[Ending]:
        endings: list[Ending] = []
        size = 0
        while self._staged and len(endings) < MOST_AT_ONCE:
            ending = self._staged[0]
            size += len(ending.copy.body) + len(ending.copy.properties) if ending.copy else 0
            if endings and (size > FRAME_BYTES or ending.alone or endings[0].alone):
                break
            endings.append(self._staged.popleft())
        return endings

    def _put_frame(self, endings: list[Ending]) -> None:
        # copies first: if a power failure cuts a frame, its beginning is left
        records = [ending.copy for ending in endings if ending.copy is not None]
        for state, name in NAME_OF.items():
            offsets = [ending.offset for ending in endings if ending.state == state]
            records += op_records(offsets, name, self._keys(), self._clock.now_ms(), self._host)
        raw = [encode_record(as_sent(record, self._shape)) for record in records]
        tag = endings, [len(each) for each in raw]
        # an ending that may be stored already is alone in its frame
        self._sender.put(_runs(records), b"".join(raw), tag, endings[0].stored_after)

    def _move(self, ending: Ending) -> bool:
        """Have the copy go to a remaining queue, the same one for all copies for its queue. False
        if there is none."""
        copy = ending.copy
        count = self._queues_of(copy.topic) if copy is not None else 0
        if copy is None or not count:
            return False
        ending.copy = replace(copy, queue_id=copy.queue_id % count)
        return True

    def _keys(self) -> Iterator[str]:
        """UNIQ_KEYs: a record without one cannot be recognized when it is sent again."""
        while True:
            number = self._numbers.next(self._clock.now_ms())
            yield make_unique_key(self._numbers.origin, number)

    def settled(self) -> Iterator[tuple[Ending, PenstockError | None]]:
        """Endings `stored` since the last call, with their places, and those that were refused.

        If a frame of several is refused, each goes again by itself: one of them may be wrong.
        """
        for (endings, sizes), outcome, stored_after in self._sender.outcomes():
            error: PenstockError | None = None
            if isinstance(outcome, Appended):
                _place(endings, sizes, outcome)
                if outcome.status != PUT_OK:
                    error = FlushTimeout("the disk has not answered in time", outcome.status)
            elif len(endings) > 1:
                for ending in endings:
                    ending.alone, ending.stored_after = True, stored_after
                self._staged.extend(endings)
                continue
            elif isinstance(outcome, QueueNotFound) and self._move(endings[0]):
                self._stage(endings[0])
                continue
            else:
                error = outcome
            for ending in endings:
                del self._open[ending.offset]
                yield ending, error


def _runs(records: list[Record]) -> list[QueueRun]:
    runs: list[QueueRun] = []
    for record in records:
        if runs and (runs[-1].topic, runs[-1].queue_id) == (record.topic, record.queue_id):
            runs[-1] = QueueRun(record.topic, record.queue_id, runs[-1].count + 1)
        else:
            runs.append(QueueRun(record.topic, record.queue_id, 1))
    return runs


def _place(endings: list[Ending], sizes: list[int], answer: Appended) -> None:
    """Note that they are stored, and where each copy is."""
    for ending in endings:
        ending.stored = True
    with_copy = [ending for ending in endings if ending.copy is not None]
    runs: Any = [*answer.runs, None]
    for number, ending in enumerate(with_copy):
        while runs[1] is not None and runs[1].first <= number:
            del runs[0]
        first, queue_offset, physical = runs[0].first, runs[0].queue_offset, runs[0].physical_offset
        assert ending.copy is not None
        ending.place = Place(
            ending.copy.queue_id,
            queue_offset + number - first,
            physical + sum(sizes[first:number]),
        )
