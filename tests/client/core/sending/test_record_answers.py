"""A record sender and what the writer says to it, word by word: what it sends next."""

from __future__ import annotations

import pytest

from penstock.client.core.sending.busy_broker import CONNECT_MS, MOST_MS, PROBE_MS
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


def frame_of(topic: str, keys: list[str]) -> tuple[list[QueueRun], bytes]:
    """Records with these keys for queue 0."""
    raw = [encode_record(Record(topic, b"x", encode_properties({"UNIQ_KEY": key}))) for key in keys]
    return [QueueRun(topic, 0, len(keys))], b"".join(raw)


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


def appends(requests: list[messages.ProduceRequest]) -> list[messages.Append]:
    """All of them are frames."""
    found = [each for each in requests if isinstance(each, messages.Append)]
    assert len(found) == len(requests)
    return found


def hello(talk: Talk) -> messages.Hello:
    """The only request that leaves now."""
    (request,) = talk.sent()
    assert isinstance(request, messages.Hello)
    return request


def wrote(talk: Talk, asked: messages.Hello, next_seq: int) -> None:
    """The answer to a question: the writer has taken the frames below that number."""
    said = asked.producer, asked.session, next_seq, 100
    talk.answer(messages.Welcome(*said, 4096, 1 << 20, 1))


def test_a_question_comes_when_nothing_was_answered_for_a_while_since_the_oldest_left() -> None:
    talk = Talk(1)
    talk.store(talk.appends[0], 150)
    talk.now_ms += PAUSE_MS - 1
    for number, wait_ms in ((1, PROBE_MS), (2, PROBE_MS - 50)):
        talk.sender.put(*frame_of("a", [f"k{number}"]), number)
        (append,) = appends(talk.sent())
        assert talk.sender.wait_ms(talk.now_ms) == wait_ms
        talk.now_ms += 50
    talk.store(append, 150)
    assert talk.sender.wait_ms(talk.now_ms) == PROBE_MS
    talk.now_ms += PROBE_MS - 1
    assert not talk.sent()
    talk.now_ms += 1
    assert hello(talk).next_seq == talk.appends[0].seq + 1, "the first without an answer"
    assert not talk.sent()


def test_frames_that_the_writer_had_not_taken_when_it_was_asked_were_lost() -> None:
    talk = Talk(2)
    talk.now_ms += MOST_MS
    wrote(talk, hello(talk), 3)
    assert not talk.sent(), "it has both"
    talk.now_ms += MOST_MS
    asked = hello(talk)
    talk.sender.put(*frame_of("a", ["k2"]), 2)
    assert len(appends(talk.sent())) == 1
    wrote(talk, asked, 3)
    assert not talk.sent(), "the third one left after the question"
    talk.now_ms += MOST_MS
    wrote(talk, hello(talk), 3)
    again = hello(talk)
    assert (again.session, again.next_seq) == (asked.session + 1, 4), "by now it would be there"
    talk.welcome(again, wrote=300)
    sent = appends(talk.sent())
    assert [(each.seq, each.retry) for each in sent] == [(4, True), (5, True), (6, True)]
    for append in sent:
        talk.store(append, 300)
    assert [each.stored_after for each in talk.sender.outcomes()] == [-1, -1, -1]


def test_a_question_that_is_answered_after_all_frames_are_changes_nothing() -> None:
    talk = Talk(1)
    talk.now_ms += MOST_MS
    asked = hello(talk)
    talk.store(talk.appends[0], 150)
    wrote(talk, asked, 1)
    assert talk.sender.is_open and not talk.sent() and talk.sender.is_idle


def test_no_answer_to_an_earlier_question_opens_the_session_of_a_busy_writer() -> None:
    talk = Talk(1)
    talk.now_ms += MOST_MS
    asked = hello(talk)
    talk.refuse(talk.appends[0], BrokerBusy("busy", 1, "later", retry_after_ms=500))
    wrote(talk, asked, 1)
    assert not talk.sender.is_open and not talk.sent()
    talk.now_ms += talk.sender.wait_ms(talk.now_ms)
    again = hello(talk)
    assert again.session == asked.session + 1
    wrote(talk, asked, 1)
    assert not talk.sender.is_open, "that session is over"
    talk.welcome(again, wrote=100)
    assert [each.retry for each in appends(talk.sent())] == [False]


def test_a_writer_that_stays_busy_is_left_alone_longer_until_it_takes_a_frame() -> None:
    talk = Talk(1)
    (append,) = talk.appends
    for least_ms, most_ms in ((200, 250), (400, 500), (200, 250)):
        talk.refuse(append, BrokerBusy("busy", 1, "later", retry_after_ms=200))
        assert least_ms <= talk.sender.wait_ms(talk.now_ms) <= most_ms
        talk.now_ms += most_ms
        talk.welcome(hello(talk), wrote=100)
        (append,) = appends(talk.sent())
        if least_ms == 400:
            talk.store(append, 150)
            talk.sender.put(*frame_of("a", ["next"]), "next")
            (append,) = appends(talk.sent())


def test_a_frame_that_cannot_be_stored_now_goes_again_soon_and_once() -> None:
    talk = Talk(3)
    talk.refuse(talk.appends[0], StoreUnavailable("the disk is full", 0))
    assert talk.sender.wait_ms(talk.now_ms) == 200
    talk.now_ms += 150
    talk.refuse(talk.appends[1], StoreUnavailable("the disk is full", 0))
    assert talk.sender.wait_ms(talk.now_ms) == 50, "it goes with the first one"
    talk.now_ms += 50
    talk.welcome(hello(talk), wrote=300)
    assert [each.retry for each in appends(talk.sent())] == [False, True, True]


def test_a_lost_connection_is_followed_by_a_question_soon() -> None:
    talk = Talk(1)
    talk.sender.not_connected(talk.now_ms)
    assert talk.sender.wait_ms(talk.now_ms) == CONNECT_MS
    talk.now_ms += CONNECT_MS
    assert hello(talk).session == talk.appends[0].session, "it may still be there"
    talk.answer(messages.OutOfStep(talk.appends[0].producer, talk.appends[0].session, 1))
    first = hello(talk)
    talk.sender.not_connected(talk.now_ms)
    assert talk.sender.wait_ms(talk.now_ms) == CONNECT_MS and not talk.sent()
    talk.now_ms += CONNECT_MS
    assert hello(talk) == first, "no other session is begun for that"


def test_a_session_that_nobody_opens_is_asked_for_again_after_longer_and_longer_pauses() -> None:
    sender, now_ms, waits = RecordSender("run", "actor", 1), 1000, []
    for _ in range(3):
        assert len(list(sender.outgoing(now_ms))) == 1 and not sender.is_open
        waits.append(sender.wait_ms(now_ms))
        now_ms += waits[-1]
        assert not list(sender.outgoing(now_ms - 1)) and sender.wait_ms(now_ms + 1) == 0
    assert waits == [PROBE_MS, 2 * PROBE_MS, 4 * PROBE_MS]


def test_the_next_session_looks_from_where_the_oldest_unanswered_frame_may_lie() -> None:
    talk = Talk(1)
    talk.store(talk.appends[0], 150)
    for number in (1, 2):
        talk.sender.put(*frame_of("a", [f"k{number}"]), number)
        (append,) = appends(talk.sent())
        talk.answer(messages.OutOfStep(append.producer, append.session - 1, append.seq))
    talk.answer(messages.OutOfStep(append.producer, append.session, append.seq))
    again = hello(talk)
    assert again.stored_after == 150
    talk.welcome(again, wrote=900)
    talk.sender.put(*frame_of("a", ["k3"]), 3)
    last = appends(talk.sent())[-1]
    for stored in (again, last):
        assert stored.producer == append.producer
    assert talk.sender.floor == 150 and len(talk.sender) == 3


def test_answers_of_a_session_that_is_over_settle_nothing() -> None:
    talk = Talk(1)
    (append,) = talk.appends
    said = append.producer, append.session - 1, append.seq, (StoredRun(0, 0, 700),), 1, b""
    talk.answer(Appended(*said))
    assert talk.sender.outcomes() == [] and talk.sender.floor == 100


def test_a_frame_of_which_nothing_was_left_to_store_says_nothing_of_the_log() -> None:
    talk = Talk(1)
    (append,) = talk.appends
    talk.answer(Appended(append.producer, append.session, append.seq, (), 1, b""))
    assert [each.tag for each in talk.sender.outcomes()] == [0] and talk.sender.floor == 100


@pytest.mark.parametrize("stored_after", [499, 500])
def test_a_frame_that_may_lie_where_the_session_looks_needs_no_other_one(stored_after: int) -> None:
    talk = Talk()
    talk.sender = RecordSender("run", "actor", 2, stored_after=500)
    talk.welcome(hello(talk), wrote=900)
    talk.sender.put(*frame_of("a", ["old"]), 0, stored_after)
    (request,) = talk.sent()
    assert isinstance(request, messages.Append if stored_after == 500 else messages.Hello)


@pytest.mark.parametrize("stored_after", [0, 300])
def test_a_frame_that_needs_another_session_lets_those_before_it_leave_first(
    stored_after: int,
) -> None:
    talk = Talk()
    talk.sender = RecordSender("run", "actor", 2, stored_after=500)
    talk.welcome(hello(talk), wrote=900)
    talk.sender.put(*frame_of("a", ["new"]), "new")
    talk.sender.put(*frame_of("a", ["old"]), "old", stored_after)
    (first,) = appends(talk.sent())
    again = hello(talk)
    assert again.stored_after == talk.sender.floor == stored_after
    talk.welcome(again, wrote=950)
    sent = appends(talk.sent())
    assert talk.sender.floor == stored_after, "on its way, too, it may lie there"
    assert [(each.seq - first.seq, each.retry, each.scattered) for each in sent] == [
        (1, True, False),
        (2, True, True),
    ]


def test_what_is_put_is_work_although_nothing_of_it_has_left() -> None:
    sender = RecordSender("run", "actor", 1)
    sender.put(*frame_of("a", ["k"]), 0)
    assert not sender.is_idle and len(sender) == 1


def test_nobody_is_asked_where_nothing_is_unanswered_and_at_once_where_it_is_for_long() -> None:
    talk = Talk(1)
    assert talk.sender.wait_ms(talk.now_ms + 10 * MOST_MS) == 1
    talk.store(talk.appends[0], 150)
    talk.now_ms += 10 * MOST_MS
    assert not talk.sent()


def test_questions_of_the_next_session_come_as_soon_as_those_of_the_first() -> None:
    talk = Talk(1)
    for _ in range(3):
        talk.now_ms += talk.sender.wait_ms(talk.now_ms)
        asked = hello(talk)
    assert talk.sender.wait_ms(talk.now_ms) > 4 * PROBE_MS
    talk.answer(messages.OutOfStep(asked.producer, asked.session, 1))
    assert hello(talk).session == asked.session + 1
    assert talk.sender.wait_ms(talk.now_ms) == PROBE_MS


def test_a_frame_has_one_outcome_however_often_it_is_answered() -> None:
    talk = Talk(2)
    gone = TopicNotFound("there is no topic of this name", "a")
    for _ in range(2):
        talk.store(talk.appends[0], 150)
        talk.refuse(talk.appends[1], gone)
    assert [each.tag for each in talk.sender.outcomes()] == [0, 1]
    talk.answer(messages.refusal(gone, 7))
    assert talk.sender.is_idle and talk.sender.outcomes() == []


def test_a_refusal_of_something_else_than_a_frame_fails_none() -> None:
    talk = Talk(1)
    talk.answer(messages.refusal(TopicNotFound("none is made", "b"), talk.appends[0].seq))
    assert talk.sender.outcomes() == [] and len(talk.sender) == 1


def test_a_refusal_is_an_answer_after_which_no_question_is_due() -> None:
    talk = Talk(2)
    talk.now_ms += PROBE_MS + 50
    talk.refuse(talk.appends[0], TopicNotFound("there is no topic of this name", "a"))
    assert talk.sender.wait_ms(talk.now_ms) == 2 * PROBE_MS


def test_a_retry_that_cannot_be_stored_now_is_a_retry_the_next_time() -> None:
    talk = Talk(1)
    (first,) = talk.appends
    talk.answer(messages.OutOfStep(first.producer, first.session, 1))
    talk.welcome(hello(talk), wrote=300)
    for _ in range(2):
        (again,) = appends(talk.sent())
        assert again.retry
        talk.refuse(again, StoreUnavailable("the disk is full", 0))
        talk.now_ms += talk.sender.wait_ms(talk.now_ms)
        talk.welcome(hello(talk), wrote=300)
