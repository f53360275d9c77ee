"""Exactly-once blocks: the outputs and the offsets of the inputs are stored in one frame.

    outputs: Block.add ... -> frame()  ->  begin | outputs | offsets      see offsets_record.py
    offsets: Values.moves() -> stored() | moved()

The broker stores a block only if its input queues' offsets are where the block says. If another
member has already stored a block for the same inputs, this one is refused, so nothing is stored
twice. A member learns a queue's offset by trying: its first block states the offset that came with
the claim, and if that is out of date, the refusal names the right one.
Pure: no sockets, no threads, every call passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from penstock.client.core.sending.encoding import BatchMessage, check_common
from penstock.client.core.sending.frames import Frame, SendFuture
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.records import RecordsFrame, Staged, StagedFrame, fit
from penstock.client.core.sending.selectors import SelectedBy
from penstock.shared.errors import InvalidMessage, OffsetsMoved
from penstock.shared.loops.forms import Draft
from penstock.shared.messaging.offsets_record import NONE, OFFSETS_QUEUE, begin_of, move_of
from penstock.shared.messaging.staged_records import Records
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.wire.messages import MAX_RUNS

# topic and queue
Queue = tuple[str, int]
# topic -> queue -> (from, to)
Moves = Mapping[str, Mapping[int, tuple[int, int]]]
# The most bytes that the two records around the outputs take without the inputs' offsets, and the
# most that each offset adds.
AROUND_BYTES, _OFFSET_BYTES = 4096, 64


class Input(NamedTuple):
    """What a block has read of a queue: the offsets from `begin` up to but not including `end`.

    `claim` stays the same object as long as nobody else can have been given the queue. `given` is
    the offset that came with the claim: the member has acknowledged what lies between `given` and
    `begin` without blocks.
    """

    begin: int
    end: int
    claim: Hashable
    given: int = NONE


class Block:
    """The outputs of one block, in the order in which they were sent."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._drafts: list[tuple[str, Draft, int, str | None, int | SelectedBy | None]] = []
        # outputs encoded beforehand, together with their queues
        self._records: list[Records] = []
        # or outputs that the broker already has
        self._staged: Staged | None = None
        self._size = 0

    def __len__(self) -> int:
        staged = self._staged.total if self._staged is not None else 0
        return len(self._drafts) + sum(each.total for each in self._records) + staged

    @property
    def topics(self) -> set[str]:
        """The topics whose queues have to be known before the block is sent."""
        return {topic for topic, *_ in self._drafts}

    def add(
        self, topic: str, message: BatchMessage, shard: str | None, queue: int | SelectedBy | None
    ) -> None:
        """Take an output. Raises InvalidMessage or a subclass, and then nothing has changed."""
        encoder = self._core.encoder
        topic, queue, _ = check_common(topic, queue, "", True)
        draft = encoder.draft(message, shard)
        size = encoder.room(topic, draft)
        self._check(self._size + size)
        self._drafts.append((topic, draft, size, shard, queue))
        self._size += size

    def put(self, records: Records) -> None:
        """Take outputs encoded beforehand, for queues that only the broker checks.

        They come after the other outputs, and nobody is told their offsets. Raises InvalidMessage.
        """
        records = fit(records, self._core.encoder)
        size = len(records.payload)
        self._check(self._size + size)
        self._records.append(records)
        self._size += size

    def name(self, staged: Staged) -> None:
        """Use outputs that the broker already has, encoded for its shape, as all of the block's."""
        assert not len(self), "the outputs of a block are sent, or staged"
        self._staged = staged

    def _check(self, size: int) -> None:
        limit = self._core.terms.max_frame_bytes
        if 0 < limit < size + AROUND_BYTES:
            raise InvalidMessage(
                f"the block's outputs take more than {limit} bytes, which are stored at once",
                size,
                "end the block after fewer inputs",
            )

    def send(
        self, group: str, moves: Mapping[str, Mapping[int, tuple[int, int]]], now_ms: int
    ) -> SendFuture:
        """Have the core send the frame. The last record's future, returned, stands for all of them.

        The queues of all topics must be known. May be called again once the previous frame was
        refused. Raises InvalidMessage, QueueNotFound.
        """
        core = self._core
        self._check(self._size + _OFFSET_BYTES * sum(map(len, moves.values())))
        placed = [
            (topic, core.routes.queue_for(topic, shard, queue), draft, size)
            for topic, draft, size, shard, queue in self._drafts
        ]
        frame = self._frame()
        frame.whole = True
        body, properties = move_of(group, moves)
        if len(self):
            self._put_own(frame, *begin_of(group, len(self) + 2), now_ms)
            frame.open_runs.clear()
            for topic, queue_id, draft, size in placed:
                self._put(frame, topic, queue_id, draft, size, now_ms)
        future = self._put_own(frame, body, properties, now_ms)
        runs = len(frame.runs) + sum(len(each.runs) for each in self._records)
        if runs > MAX_RUNS:
            raise InvalidMessage(
                f"the block's outputs go to more than {MAX_RUNS - 2} queues",
                runs - 2,
                "end the block after fewer inputs, or send to fewer queues",
            )
        core.outbox.put_frame(frame)
        core.intake.count(frame.unsettled, frame.size)
        return future

    def _frame(self) -> Frame:
        if self._staged is not None:
            return StagedFrame("durable", self._staged)
        return RecordsFrame("durable", self._records) if self._records else Frame("durable")

    def _put_own(
        self, frame: Frame, body: bytes, properties: dict[str, str], now_ms: int
    ) -> SendFuture:
        message = BatchMessage(body, properties["TAGS"], properties["KEYS"])
        draft = self._core.encoder.draft(message, None, compressed=False)
        size = self._core.encoder.room(OFFSETS_TOPIC, draft)
        return self._put(frame, OFFSETS_TOPIC, OFFSETS_QUEUE, draft, size, now_ms)

    def _put(
        self, frame: Frame, topic: str, queue_id: int, draft: Draft, size: int, now_ms: int
    ) -> SendFuture:
        future = SendFuture(self._core.sender, self._core.encoder.numbers.next(now_ms))
        # the end of the block waits for all futures, so none of their errors goes unseen
        future.seen = True
        frame.put(topic, queue_id, draft, size, future, True)
        return future


class _Value(NamedTuple):
    """What a member takes for a queue's offset. `is_sure`: the broker has confirmed it."""

    claim: Hashable
    offset: int
    is_sure: bool = True


class Values:
    """What a member knows of its group's offsets, as the broker compares them."""

    def __init__(self) -> None:
        self._known: dict[Queue, _Value] = {}

    def moves(self, inputs: Mapping[Queue, Input]) -> dict[str, dict[int, tuple[int, int]]]:
        """The offsets that a block of these inputs moves: from where each queue is taken to be."""
        made: dict[str, dict[int, tuple[int, int]]] = {}
        for name, (begin, end, claim, given) in inputs.items():
            known = self._known.get(name)
            if known is None or known.claim != claim:
                before = given if 0 <= given <= begin else begin
                known = self._known[name] = _Value(claim, before, is_sure=False)
            made.setdefault(name[0], {})[name[1]] = known.offset, end
        return made

    def knows(self, inputs: Mapping[Queue, Input]) -> bool:
        """Whether this member knows that all these queues are where the inputs begin. If so, their
        block may be sent before the previous one is answered."""
        return all(
            (known := self._known.get(name)) is not None
            and known.claim == each.claim
            and known.is_sure
            and known.offset != NONE
            and each.begin >= known.offset
            for name, each in inputs.items()
        )

    def at(self, name: Queue) -> int:
        """The offset of a queue, or NONE if it is not known."""
        known = self._known.get(name)
        return known.offset if known is not None and known.is_sure else NONE

    def passed(self, inputs: Mapping[Queue, Input]) -> dict[Queue, int] | None:
        """Where the queues should go on, if one was handed out from below its offset; else None.

        That happens when a claim came from a coordinator that lags what blocks have stored.
        """
        values = {
            name: known.offset
            for name, each in inputs.items()
            if (known := self._known.get(name)) is not None
            and known.claim == each.claim
            and each.begin < known.offset
        }
        if not values:
            return None
        return {name: values.get(name, each.begin) for name, each in inputs.items()}

    def stored(self, inputs: Mapping[Queue, Input]) -> None:
        """A block of these inputs is stored."""
        for name, each in inputs.items():
            self._known[name] = _Value(each.claim, each.end)

    def moved(self, inputs: Mapping[Queue, Input], error: OffsetsMoved) -> dict[Queue, int] | None:
        """A block was refused. Returns where its queues should go on, or None if the same block may
        be sent again because nobody has worked exactly once on these queues before."""
        found = {
            (topic, queue): offset
            for topic, queues in error.offsets.items()
            for queue, offset in queues.items()
            if (topic, queue) in inputs
        }
        is_first = bool(found)
        for name, offset in found.items():
            is_first &= offset == NONE and self._known[name].offset != NONE
            self._known[name] = _Value(inputs[name].claim, offset)
        if is_first:
            return None
        # a queue without an offset can only go on at what the block has read
        return {
            name: found[name] if found.get(name, NONE) != NONE else each.begin
            for name, each in inputs.items()
        }

    def refused(self, inputs: Mapping[Queue, Input], moves: Moves, error: OffsetsMoved) -> None:
        """A block that was believed to be stored has been refused. The error names the queues whose
        offsets are elsewhere; the others are still where the block was to begin."""
        for (topic, queue), each in inputs.items():
            self._known[topic, queue] = _Value(each.claim, moves[topic][queue][0])
        self.moved(inputs, error)

    def forget(self, inputs: Mapping[Queue, Input], moves: Moves) -> None:
        """It is unknown whether a block of these inputs was stored; the next block finds out.

        Until then it counts as not stored, because what lies before it may have been acknowledged
        without blocks.
        """
        for (topic, queue), each in inputs.items():
            before = moves[topic][queue][0]
            self._known[topic, queue] = _Value(each.claim, before, is_sure=False)
