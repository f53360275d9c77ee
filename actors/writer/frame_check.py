"""Everything that can be wrong with a produce frame before any of it is stored; and CheckedFrame,
with which nothing is wrong.

It has the configuration and the topics, but neither store nor sessions: so a frame is refused for
its contents alone, whatever came before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import structs

from penstock.actors.writer.system_records import check_system_records, first_recalled_ms
from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import InvalidArgument, InvalidMessage, PenstockError
from penstock.shared.formats.record_layout import Shape, body_span
from penstock.shared.layout import BLANK_HEADER_BYTES
from penstock.shared.loops.active import check_frame, check_properties
from penstock.shared.loops.forms import RunOf
from penstock.shared.messaging.offsets_record import OffsetsMove, decode_begin, decode_move
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC, QUEUES, TIMER_TOPIC
from penstock.shared.wire.messages import Append, QueueRun, StoredRun
from penstock.shared.wire.produce_rules import check_batch

_ACKS = ("", "durable", "written")
# topics whose records mean something to the broker
_OWN = frozenset((OFFSETS_TOPIC, TIMER_TOPIC))


class CheckedFrame(NamedTuple):
    """A checked frame.

    `starts` are the offsets of its records, with its length last. `stored` are records that an
    earlier try has stored: `runs`, `data` and `starts` have only the others, whose numbers are
    `left`. The frame was checked when the topics had version `topics`.
    """

    peer: bytes
    request: Append
    runs: Sequence[QueueRun]
    data: memoryview
    starts: list[int]
    stored: tuple[StoredRun, ...]
    since_ms: int
    topics: int
    # the offsets that it moves, if it is the outputs of a block that works exactly once
    move: OffsetsMove | None = None
    # when the first message that it recalls is due; -1: it recalls none
    recalled_ms: int = -1
    left: Sequence[int] = ()

    def without(self, stored: tuple[StoredRun, ...]) -> CheckedFrame:
        """The frame without these records, which are stored already; each has its own StoredRun."""
        gone = {each.first for each in stored}
        left = [number for number in range(len(self.starts) - 1) if number not in gone]
        pieces = [self.data[self.starts[at] : self.starts[at + 1]] for at in left]
        return self._replace(
            runs=runs_of(self.runs, left),
            data=memoryview(b"".join(pieces)),
            starts=[0, *accumulate(map(len, pieces))],
            stored=stored,
            left=left,
        )

    def with_stored(self, appended: Sequence[StoredRun]) -> tuple[StoredRun, ...]:
        """Where all records of the frame are; `appended` says where the remaining ones went."""
        if not self.stored:
            return tuple(appended)
        found = list(self.stored)
        ends = [*(run.first for run in appended[1:]), len(self.left)]
        for run, end in zip(appended, ends, strict=True):
            for at in range(run.first, end):
                # records that are adjacent both in the log and in the frame are one run
                if at == run.first or self.left[at] != self.left[at - 1] + 1:
                    offset = run.queue_offset + at - run.first
                    position = run.physical_offset + self.starts[at] - self.starts[run.first]
                    found.append(StoredRun(self.left[at], offset, position))
        return tuple(sorted(found, key=_first))


class FrameCheck:
    """Checks frames for one broker, whose records have `shape`."""

    def __init__(self, config: Config, topics: TopicAdmin, shape: Shape, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._shape = shape
        self._max_frame_bytes = config.max_frame_bytes
        self._max_record_bytes = config.max_record_bytes
        self._max_body_bytes = config.max_message_size_bytes
        self._max_batch_bytes = config.mapped_file_size_commit_log_bytes - BLANK_HEADER_BYTES
        # a cache of the topics at this version, because each frame asks
        self._version = -1
        self._known_topics: dict[str, tuple[bytes, int]] = {}

    def frame(self, peer: bytes, request: Append, payload: memoryview, now_ms: int) -> CheckedFrame:
        """Check a frame of which nothing is stored yet. Raises what `starts` raises."""
        starts = self.starts(request, payload)
        runs, version = request.runs, self._topics.version
        move, recalled_ms = None, -1
        if not _OWN.isdisjoint([run.topic for run in runs]):
            move = offsets_move(runs, payload, starts)
            recalled_ms = first_recalled_ms(runs, payload, starts, self._clock.now_ms())
        return CheckedFrame(
            peer, request, runs, payload, starts, (), now_ms, version, move, recalled_ms
        )

    def starts(self, request: Append, payload: bytes | memoryview) -> list[int]:
        """The offset of each record in the frame, with the frame's length last.

        Raises InvalidMessage, InvalidArgument, TopicNotFound or QueueNotFound.
        """
        limit = self._max_frame_bytes
        if len(payload) > limit:
            raise InvalidMessage(
                f"the frame is larger than {limit} bytes",
                len(payload),
                "send fewer messages at once",
            )
        if request.ack not in _ACKS:
            raise InvalidArgument(
                "there is no such acknowledgement",
                repr(request.ack),
                'ack is "durable", "written" or ""',
            )
        starts = check_frame(
            payload,
            self._queues_of(request.runs),
            self._max_record_bytes,
            self._max_body_bytes,
            self._shape,
        )
        check_properties(payload, starts, self._shape.prop_crc)
        first = 0
        for run in request.runs:
            if run.batch:
                self._check_batch(run, payload, starts[first : first + run.count + 1])
            if run.topic in QUEUES:
                places = starts[first : first + run.count + 1]
                check_system_records(run, payload, places, self._topics, self._clock.now_ms())
            first += run.count
        return starts

    def again(self, runs: Sequence[QueueRun]) -> PenstockError | None:
        """What is wrong with a frame's queues now: topics have changed since it was checked."""
        try:
            self._queues_of(runs)
        except PenstockError as error:
            return error
        return None

    def _queues_of(self, runs: Sequence[QueueRun]) -> list[RunOf]:
        """The queues that the frame's runs name. Raises TopicNotFound, QueueNotFound."""
        queues: list[RunOf] = []
        for run in runs:
            topic, queue_id = run.topic, run.queue_id
            name, count = self._known(topic)
            if not 0 <= queue_id < count:
                raise self._topics.no_such_queue(topic, queue_id, count)
            if not run.count:
                raise InvalidMessage("a run of the frame holds no record", f"{topic}/{queue_id}")
            queues.append((name, queue_id, run.count))
        return queues

    def _known(self, topic: str) -> tuple[bytes, int]:
        """A topic's name as records have it, and how many queues it has. Raises TopicNotFound."""
        if self._version != self._topics.version:
            self._version = self._topics.version
            self._known_topics.clear()
        found = self._known_topics.get(topic)
        if found is None:
            count = self._topics.queues(topic)
            if not count:  # not cached: the names of missing topics have no bound
                raise self._topics.not_found(topic)
            found = self._known_topics[topic] = topic.encode(), count
        return found

    def _check_batch(self, run: QueueRun, payload: bytes | memoryview, starts: list[int]) -> None:
        size = body_bytes = starts[-1] - starts[0]
        if size > self._max_body_bytes:
            body_bytes = sum(body_span(payload, at)[1] for at in starts[:-1])
        check_batch(run.topic, body_bytes, self._max_body_bytes)
        limit = self._max_batch_bytes
        if size > limit:
            what = f"the batch does not fit into a segment, which takes {limit} bytes"
            raise InvalidMessage(what, size, "send smaller batches")


def _first(run: StoredRun) -> int:
    return run.first


def runs_of(runs: Sequence[QueueRun], left: Sequence[int]) -> list[QueueRun]:
    """The runs of a frame of which only these records are left, in their order."""
    found, first = [], 0
    for run in runs:
        stop = first + run.count
        if count := bisect_left(left, stop) - bisect_left(left, first):
            found.append(structs.replace(run, count=count))
        first = stop
    return found


def offsets_move(
    runs: Sequence[QueueRun], payload: bytes | memoryview, starts: Sequence[int]
) -> OffsetsMove | None:
    """The offsets that a checked frame moves; None for a frame of messages alone.

    Raises InvalidMessage if its records of OFFSETS_TOPIC are not those of such a frame.
    """
    own = [at for at, run in enumerate(runs) if run.topic == OFFSETS_TOPIC]
    if not own:
        return None
    records = len(starts) - 1
    around = [0] if len(runs) == 1 else [0, len(runs) - 1]
    if own != around or any(runs[at].count != 1 or runs[at].batch for at in own):
        raise InvalidMessage(
            "a frame does not have its records of offsets around its outputs",
            f"runs {own} of {len(runs)} are of {OFFSETS_TOPIC}",
            "send such frames with consumer.exactly_once()",
        )
    move = decode_move(_body(payload, starts[-2]))
    if records == 1:
        return move
    named = decode_begin(_body(payload, starts[0]))
    if named != records:
        raise InvalidMessage(
            f"a frame has {records} records, and its first one says another number", named
        )
    return move


def _body(payload: bytes | memoryview, start: int) -> memoryview:
    at, length = body_span(payload, start)
    return memoryview(payload)[at : at + length]
