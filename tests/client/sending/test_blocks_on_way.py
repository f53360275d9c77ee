"""Several blocks on their way at once: whoever else works on the queues, and whatever gets lost,
each input has its effect once. Against a plain model of what the broker compares."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.core.blocks import Input, Queue
from penstock.client.groups.exactly_once import ExactlyOnce
from penstock.shared.errors import BrokerTimeout, OffsetsMoved, PenstockError
from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC

TOPIC, QUEUES = "in", 2


class Log:
    """The broker: it takes frames in their order, and compares."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(range(QUEUES), NONE)
        self.effects: list[tuple[int, int]] = []
        self.waiting: deque[Future] = deque()

    def take(self) -> None:
        """The next frame."""
        frame = self.waiting.popleft()
        wrong = {
            queue: self.values[queue]
            for queue, (before, _) in frame.moves.items()
            if before != self.values[queue]
        }
        if wrong:
            frame.error = OffsetsMoved("moved", json.dumps({TOPIC: wrong}))
        else:
            self.values |= {queue: to for queue, (_, to) in frame.moves.items()}
            self.effects += frame.effects
        if frame.is_lost:
            frame.error = BrokerTimeout("nobody has answered")
        frame.is_done = True

    def reset(self, queue: int, offset: int) -> None:
        """An operator's word: what is from there on is to be done again."""
        self.values[queue] = offset
        self.effects = [each for each in self.effects if each[0] != queue or each[1] < offset]


class Future:
    """The outcome of a frame: whoever asks for it has the broker take what is before it."""

    def __init__(self, log: Log, moves: Any, effects: list[tuple[int, int]]) -> None:
        self._log, self.moves, self.effects = log, moves, effects
        self.is_done = self.is_lost = False
        self.error: PenstockError | None = None

    def done(self) -> bool:
        return self.is_done

    def exception(self) -> PenstockError | None:
        while not self.is_done:
            self._log.take()
        return self.error

    def result(self) -> None:
        if (error := self.exception()) is not None:
            raise error


class Outputs(list[tuple[int, int]]):
    """A block: what is made of each input."""

    topics = frozenset(("out",))


class Member:
    """A program: it reads on from where it is told, and its frames go to the log."""

    def __init__(self, log: Log) -> None:
        self.log, self.at = log, dict.fromkeys(range(QUEUES), 0)
        self.taken: list[tuple[int, int]] = []
        self.claim, self.loses = 0, False
        self.work = ExactlyOnce("group", self, lambda: self)  # type: ignore[arg-type, return-value]  # a model

    # as the producer
    def route(self, topic: str) -> None:
        assert topic in (OFFSETS_TOPIC, "out")

    def send_block(self, block: Outputs, group: str, moves: Mapping[str, Any]) -> Future:
        future = Future(self.log, moves[TOPIC], list(block))
        future.is_lost, self.loses = self.loses, False
        self.log.waiting.append(future)
        return future

    # as the source
    def inputs(self) -> Mapping[Queue, Input]:
        found: dict[Queue, Input] = {}
        for queue, offset in self.taken:
            begin = found[TOPIC, queue].begin if (TOPIC, queue) in found else offset
            found[TOPIC, queue] = Input(begin, offset + 1, self.claim)
        return found

    def on_way(self) -> list[tuple[int, int]]:
        parts, self.taken = self.taken, []
        return parts

    def done(self, parts: Any) -> None:
        assert parts

    def go_on(self, offsets: Mapping[Queue, int], parts: Sequence[Any]) -> None:
        for (_, queue), offset in offsets.items():
            self.at[queue] = offset

    def back(self) -> None:
        for queue, offset in reversed(self.taken):
            self.at[queue] = min(self.at[queue], offset)
        self.taken = []

    # as the program
    def block(self, counts: list[int], ahead: int) -> None:
        for queue, count in enumerate(counts):
            for _ in range(count):
                self.taken.append((queue, self.at[queue]))
                self.at[queue] += 1
        try:
            self.work.store(Outputs(self.taken), ahead, lambda stored: None)  # type: ignore[arg-type]  # a model
        except BrokerTimeout:
            self.taken = []


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("block"),
            st.integers(0, 1),
            st.lists(st.integers(0, 3), min_size=QUEUES, max_size=QUEUES),
            st.integers(0, 3),
        ),
        st.tuples(st.just("take"), st.integers(0, 3)),
        st.tuples(st.just("lose"), st.integers(0, 1)),
        st.tuples(st.just("reset"), st.integers(0, QUEUES - 1), st.integers(0, 9)),
        st.tuples(st.just("claim"), st.integers(0, 1)),
        st.tuples(st.just("settle"), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=600)
@given(steps)
def test_each_input_has_its_effect_once_with_blocks_on_their_way(steps: list[Any]) -> None:
    log = Log()
    members = [Member(log), Member(log)]
    for what, *rest in steps:
        if what == "block":
            number, counts, ahead = rest
            members[number].block(counts, ahead)
        elif what == "take":
            for _ in range(min(rest[0], len(log.waiting))):
                log.take()
        elif what == "reset":
            queue, offset = rest
            log.reset(queue, min(offset, max(log.values[queue], 0)))
        elif what == "lose":
            members[rest[0]].loses = True
        elif what == "claim":
            members[rest[0]].claim += 1
        else:
            with suppress(BrokerTimeout):
                members[rest[0]].work.settle()
    for member in members:
        member.loses = False
        with suppress(BrokerTimeout):
            member.work.settle()
    for queue, value in log.values.items():
        done = [offset for at, offset in log.effects if at == queue]
        assert sorted(done) == list(range(max(value, 0)))
    # and it goes on: a member that is alone has every block stored, once it knows where it is
    last, told = members[0], list[bool]()
    last.work.again()
    for _ in range(12):
        last.taken = [(queue, last.at[queue]) for queue in range(QUEUES)]
        for queue in range(QUEUES):
            last.at[queue] += 1
        last.work.store(Outputs(last.taken), 2, told.append)  # type: ignore[arg-type]  # a model
    last.work.settle()
    assert told[-3:] == [True] * 3 and len(told) == 12
