"""Whole records on a wire that breaks, and an actor that dies: each stored once, in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from penstock.client.core.sending.record_sender import MAX_IN_FLIGHT, PAUSE_MS, RecordSender
from penstock.shared.errors import (
    PenstockError,
    ProtocolError,
    TopicNotFound,
)
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Appended, QueueRun

from .breaking_wire import BreakingWire


def frame_of(topic: str, keys: list[str]) -> tuple[list[QueueRun], bytes]:
    """Records with these keys for queue 0."""
    raw = [encode_record(Record(topic, b"x", encode_properties({"UNIQ_KEY": key}))) for key in keys]
    return [QueueRun(topic, 0, len(keys))], b"".join(raw)


class Driven(RecordSender):
    """As the wire drives a producer core."""

    def tick(self, now_ms: int) -> None:
        pass


class AnyLife(BreakingWire):
    """An actor with a list of frames to put, whose lives end at any time."""

    def __init__(self, make_wire: Callable[[], Any]) -> None:
        super().__init__(make_wire)
        self.work: list[tuple[str, list[str]]] = []
        self.generation = self.saved = self.saved_floor = 0
        # frames of this life that the earlier one may have put
        self.doubtful = 0
        self.begin()

    def begin(self) -> None:
        self.generation += 1
        self.sender = self.wire.core = Driven("run", "actor", self.generation, "", self.saved_floor)
        self.put_next = self.saved
        self.known: dict[int, Appended] = {}

    @rule(topic=st.sampled_from("ab"), count=st.integers(1, 3))
    def there_is_more(self, topic: str, count: int) -> None:
        first = sum(len(keys) for _, keys in self.work)
        self.work.append((topic, [f"k{first + i}" for i in range(count)]))

    @rule(count=st.sampled_from([1, 2, 40]))
    def frames_are_put(self, count: int) -> None:
        for number in range(self.put_next, min(len(self.work), self.put_next + count)):
            stored_after = self.sender.stored_after if number < self.doubtful else -1
            self.sender.put(*frame_of(*self.work[number]), number, stored_after)
            self.doubtful = max(self.doubtful, number + 1)
            self.put_next = number + 1

    @rule(heard=st.booleans(), arrived=st.sampled_from([0, 100]))
    def frames_are_stored_and_their_answers_are_lost(self, heard: bool, arrived: int) -> None:
        """What the rules by themselves come to too rarely."""
        self.there_is_more("a", 2)
        self.there_is_more("b", 1)
        self.wire.heal(3)  # a session is open
        self.frames_are_put(1000)
        self.wire.now_ms += 1
        self.wire.pump(1000)
        self.wire.to_writer(self.wire.now, 1000)
        self.wire.to_producer(1 if heard else 0)
        self.hear()
        self.wire.cut(arrived)

    def hear(self) -> None:
        for number, outcome, _ in self.sender.outcomes():
            assert isinstance(outcome, Appended), outcome
            self.known[number] = outcome

    @rule()
    def progress_is_saved(self) -> None:
        while self.saved in self.known:
            self.saved += 1
        self.saved_floor = self.sender.floor

    @rule(arrived=st.sampled_from([0, 1, 100]))
    def the_actor_is_killed(self, arrived: int) -> None:
        self.wire.cut(arrived)
        self.begin()

    @rule(survivors=st.integers(0, 5))
    def the_power_fails(self, survivors: int) -> None:
        """Then the actor dies too; the one that comes then is another run's."""
        super().the_power_fails(survivors)
        self.begin()

    @invariant()
    def nothing_is_stored_twice_or_out_of_its_order(self) -> None:
        log = self.wire.writer.log
        keys = [each.key for each in log]
        assert len(set(keys)) == len(keys)
        assert keys == [f"k{number}" for number in range(len(keys))]
        by_key = {each.key: each for each in log}
        for number, answer in self.known.items():
            for run in answer.runs:
                found = by_key[self.work[number][1][run.first]]
                assert (run.queue_offset, run.physical_offset) == found[3:]
                assert found.position < self.wire.writer.flushed

    def teardown(self) -> None:
        for _ in range(4):
            self.frames_are_put(1000)
            self.wire.heal()
            self.hear()
        assert len(self.sender) == 0 and self.sender.waiting_bytes == 0
        assert len(self.wire.writer.log) == sum(len(keys) for _, keys in self.work)
        self.nothing_is_stored_twice_or_out_of_its_order()


def test_in_any_history_each_record_is_stored_once_and_in_order(
    make_wire: Callable[[], Any],
) -> None:
    few = settings(max_examples=200, stateful_step_count=40)
    run_state_machine_as_test(partial(AnyLife, make_wire), settings=few)


def test_a_frame_that_is_refused_is_told_and_the_others_are_stored(
    make_wire: Callable[[], Any],
) -> None:
    wire = make_wire()
    sender = wire.core = Driven("run", "actor", 1)
    wire.writer.gone = {"b"}
    for number, topic in enumerate("aba"):
        sender.put(*frame_of(topic, [f"k{number}"]), number)
    wire.heal(5)
    found = {tag: result for tag, result, _ in sender.outcomes()}
    assert isinstance(found[1], TopicNotFound)
    assert isinstance(found[0], Appended) and isinstance(found[2], Appended)
    assert [each.key for each in wire.writer.log] == ["k0", "k2"] and not len(sender)


def test_what_the_writer_does_not_understand_is_told_of_everything(
    make_wire: Callable[[], Any],
) -> None:
    sender = Driven("run", "actor", 1)
    sender.put(*frame_of("a", ["k"]), "tag")
    assert len(list(sender.outgoing(1000))) == 1
    answer = messages.refusal(ProtocolError("a header is no message of this protocol"), 0)
    sender.received([messages.encode(answer)], 1000)
    ((tag, outcome, stored_after),) = sender.outcomes()
    assert tag == "tag" and stored_after == -1
    assert isinstance(outcome, PenstockError)
    assert outcome.what == "a header is no message of this protocol"
    assert sender.is_idle, "what has its outcome is not sent later"


def test_no_more_frames_than_the_window_are_on_their_way(make_wire: Callable[[], Any]) -> None:
    wire = make_wire()
    sender = wire.core = Driven("run", "actor", 1)
    for number in range(3 * MAX_IN_FLIGHT):
        sender.put(*frame_of("a", [f"k{number}"]), number)
    wire.pump(1000)
    wire.to_writer(wire.now, 1000)
    wire.to_producer(1000)
    assert len(list(sender.outgoing(wire.now_ms))) == MAX_IN_FLIGHT


def test_after_a_pause_retries_are_not_looked_for_in_what_others_stored_meanwhile(
    make_wire: Callable[[], Any],
) -> None:
    wire = make_wire()
    sender = wire.core = Driven("run", "actor", 1)
    sender.put(*frame_of("a", ["k0"]), 0)
    wire.heal(3)
    wire.writer.wrote += 5000
    wire.now_ms += PAUSE_MS + 1
    sender.put(*frame_of("a", ["k1"]), 1)
    wire.heal(3)
    assert [each.tag for each in sender.outcomes()] == [0, 1] and sender.floor >= 5000
