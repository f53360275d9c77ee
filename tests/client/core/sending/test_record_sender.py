"""Whole records on a wire that breaks, and an actor that dies: each stored once, in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from penstock.client.core.sending.record_sender import MAX_IN_FLIGHT, PAUSE_MS, RecordSender
from penstock.shared.errors import (
    BrokerBusy,
    PenstockError,
    ProtocolError,
    SegmentUnavailable,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Appended, QueueRun, StoredRun

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


class Talk:
    """A sender with an open session, and what the writer says, word by word."""

    def __init__(self, count: int = 0) -> None:
        self.sender = RecordSender("run", "actor", 1)
        self.now_ms = 1000
        (hello,) = self.sent()
        assert isinstance(hello, messages.Hello)
        self.welcome(hello, wrote=100)
        for number in range(count):
            self.sender.put(*frame_of("a", [f"k{number}"]), number)
        self.appends = [each for each in self.sent() if isinstance(each, messages.Append)]
        assert len(self.appends) == count

    def sent(self) -> list[messages.ProduceRequest]:
        parts = self.sender.outgoing(self.now_ms)
        return [messages.decode_produce_request(header) for header, *_ in parts]

    def answer(self, answer: messages.ProduceAnswer) -> None:
        self.sender.received([messages.encode(answer)], self.now_ms)

    def welcome(self, hello: messages.Hello, wrote: int) -> None:
        said = hello.producer, hello.session, hello.next_seq, wrote
        self.answer(messages.Welcome(*said, 4096, 1 << 20, 1))

    def store(self, append: messages.Append, at: int) -> None:
        runs = tuple(StoredRun(0, 0, at) for _ in append.runs)
        self.answer(Appended(append.producer, append.session, append.seq, runs, 1, b""))

    def refuse(self, append: messages.Append, error: PenstockError) -> None:
        self.answer(messages.refusal(error, append.seq, append.session))


def test_a_frame_that_is_out_of_step_begins_a_session_with_all_that_has_no_answer() -> None:
    talk = Talk(3)
    first = talk.appends[0]
    talk.store(first, 150)
    other = messages.OutOfStep(first.producer, first.session - 1, 2)
    talk.answer(other)
    assert not talk.sent(), "another session is over, and not this one"
    talk.answer(messages.OutOfStep(first.producer, first.session, 2))
    (hello,) = talk.sent()
    assert isinstance(hello, messages.Hello) and hello.session == first.session + 1
    talk.answer(messages.OutOfStep(first.producer, hello.session, 2))
    talk.now_ms += 1
    talk.welcome(hello, wrote=300)
    again = talk.sent()
    assert [each.retry for each in again if isinstance(each, messages.Append)] == [True, True]
    assert [each.tag for each in talk.sender.outcomes()] == [0] and len(talk.sender) == 2


def test_what_the_writer_took_before_it_was_busy_ends_no_trouble() -> None:
    talk = Talk(3)
    talk.refuse(talk.appends[1], BrokerBusy("busy", 1, "later", retry_after_ms=500))
    assert isinstance(talk.sender.trouble, BrokerBusy)
    talk.store(talk.appends[0], 150)
    assert isinstance(talk.sender.trouble, BrokerBusy), "the next frame is not taken yet"
    talk.refuse(talk.appends[2], BrokerBusy("busy", 1, "later", retry_after_ms=500))
    assert not talk.sent() and talk.sender.wait_ms(talk.now_ms) > 0
    talk.now_ms += talk.sender.wait_ms(talk.now_ms)
    (hello,) = talk.sent()
    assert isinstance(hello, messages.Hello)
    talk.welcome(hello, wrote=300)
    again = [each for each in talk.sent() if isinstance(each, messages.Append)]
    assert [each.retry for each in again] == [False, False], "it has taken none of them"
    talk.store(again[0], 300)
    assert talk.sender.trouble is None


def test_nothing_waits_once_all_of_it_has_failed() -> None:
    talk = Talk(2)
    talk.sender.put(*frame_of("b", ["k9"]), 9)
    assert talk.sender.waiting_bytes > 0
    talk.answer(messages.refusal(ProtocolError("what is this?"), 0))
    assert talk.sender.waiting_bytes == 0 and talk.sender.is_idle
    found = [(each.tag, each.stored_after) for each in talk.sender.outcomes()]
    assert found == [(0, 100), (1, 100), (9, -1)], "the last one was never sent"


def test_a_frame_that_may_lie_at_the_log_s_beginning_has_a_session_that_looks_there() -> None:
    talk = Talk()
    sender = RecordSender("run", "actor", 2, stored_after=500)
    talk.sender, talk.now_ms = sender, 2000
    (hello,) = talk.sent()
    assert isinstance(hello, messages.Hello) and hello.stored_after == 500
    talk.welcome(hello, wrote=900)
    sender.put(*frame_of("a", ["old"]), 0, stored_after=0)
    (again,) = talk.sent()
    assert isinstance(again, messages.Hello) and again.stored_after == 0
    assert again.session == hello.session + 1


@pytest.mark.parametrize("silence_ms", [PAUSE_MS, PAUSE_MS + 1])
def test_a_sender_that_had_nothing_for_long_begins_a_session(silence_ms: int) -> None:
    talk = Talk(1)
    talk.store(talk.appends[0], 150)
    talk.now_ms += silence_ms
    talk.sender.put(*frame_of("a", ["late"]), 1)
    (request,) = talk.sent()
    assert isinstance(request, messages.Hello if silence_ms > PAUSE_MS else messages.Append)


@pytest.mark.parametrize("kind", [StoreUnavailable, SegmentUnavailable])
def test_a_trouble_that_may_pass_gives_nothing_up(kind: type[PenstockError]) -> None:
    """The writer's session goes on: what came after the refused frame may be stored."""
    talk = Talk(3)
    talk.refuse(talk.appends[0], kind("the disk is full", 0))
    assert isinstance(talk.sender.trouble, kind) and talk.sender.outcomes() == []
    talk.now_ms += talk.sender.wait_ms(talk.now_ms)
    (hello,) = talk.sent()
    assert isinstance(hello, messages.Hello)
    talk.welcome(hello, wrote=300)
    again = [each for each in talk.sent() if isinstance(each, messages.Append)]
    assert [each.retry for each in again] == [False, True, True]
    for append in again:
        talk.store(append, 400)
    assert [each.tag for each in talk.sender.outcomes()] == [0, 1, 2]
    assert talk.sender.trouble is None


@pytest.mark.parametrize("stored_after", [-1, 0, 5])
def test_records_that_may_be_stored_already_are_sent_as_such(stored_after: int) -> None:
    talk = Talk()
    talk.sender = RecordSender("run", "actor", 1)
    talk.welcome(talk.sent()[0], wrote=0)  # type: ignore[arg-type]  # a Hello
    talk.sender.put(*frame_of("a", ["k"]), 0, stored_after)
    (append,) = talk.sent()
    assert isinstance(append, messages.Append)
    assert append.retry == append.scattered == (stored_after >= 0)


def test_actors_and_runs_are_different_producers_and_lives_of_one_actor_are_the_same() -> None:
    def hello(run: str, actor: str, life: int) -> messages.Hello:
        ((header, *_),) = RecordSender(run, actor, life).outgoing(0)
        found = messages.decode_produce_request(header)
        assert isinstance(found, messages.Hello)
        return found

    first, second = hello("run", "actor", 1), hello("run", "actor", 2)
    assert first.producer == second.producer and second.session - first.session > 1 << 30
    others = hello("other", "actor", 1), hello("run", "other", 1)
    assert len({first.producer, *(each.producer for each in others)}) == 3


def test_a_sender_says_what_it_has_and_whether_there_is_room() -> None:
    talk = Talk(MAX_IN_FLIGHT - 1)
    sender = talk.sender
    assert sender.has_room and not sender.is_idle
    sender.put(*frame_of("a", ["next"]), 99)
    assert not sender.has_room and sender.wait_ms(talk.now_ms) >= 1
    (last,) = talk.sent()
    assert not sender.has_room, "as many as may be are on their way"
    assert isinstance(last, messages.Append)
    for append in (*talk.appends, last):
        talk.store(append, 150)
    assert sender.has_room and sender.is_idle and sender.waiting_bytes == 0
    assert len(sender.outcomes()) == MAX_IN_FLIGHT and sender.outcomes() == []
    assert sender.wait_ms(talk.now_ms) == PAUSE_MS
    sender.put(*frame_of("a", ["more"]), 100)
    assert sender.wait_ms(talk.now_ms) == 0


def test_only_a_refused_retry_may_be_stored_all_the_same() -> None:
    talk = Talk(2)
    gone = TopicNotFound("there is no topic of this name", "a")
    late = messages.refusal(gone, talk.appends[0].seq, talk.appends[0].session - 1)
    talk.answer(late)
    assert talk.sender.outcomes() == [], "it was of another session"
    talk.refuse(talk.appends[0], gone)
    talk.answer(messages.OutOfStep(talk.appends[1].producer, talk.appends[1].session, 2))
    (hello,) = talk.sent()
    assert isinstance(hello, messages.Hello)
    talk.welcome(hello, wrote=300)
    (again,) = talk.sent()
    assert isinstance(again, messages.Append) and again.retry
    talk.refuse(again, gone)
    assert [each.stored_after for each in talk.sender.outcomes()] == [-1, 100]


def test_nothing_that_is_put_later_lies_below_what_is_known_to_be_stored() -> None:
    talk = Talk(2)
    assert talk.sender.floor == 100
    first, second = talk.appends
    runs = StoredRun(0, 0, 150), StoredRun(1, 1, 900)
    talk.answer(Appended(first.producer, first.session, first.seq, runs, 1, b""))
    assert talk.sender.floor == 100, "the other one may lie there"
    talk.store(second, 700)
    assert talk.sender.floor == 900
