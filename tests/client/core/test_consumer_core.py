"""A consumer core and a model of the reader on a wire that loses: every message once, in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.client.core.consumer_core import WAIT_MS, ConsumerCore
from penstock.client.core.log_files import TRY_AGAIN_MS
from penstock.client.core.reading.queues_aside import ASIDE_MS
from penstock.client.core.reading.records_at_hand import (
    AHEAD_BYTES,
    DIRECT_AHEAD_BYTES,
    PULL_BYTES,
)
from penstock.client.core.selection import choose
from penstock.client.core.timeouts import MAX_REPEAT_MS, REPEAT_MS
from penstock.shared.errors import (
    BrokerTimeout,
    ConnectError,
    InvalidArgument,
    OffsetOutOfRange,
    ProtocolError,
    QueueNotFound,
    QueueUnreadable,
    StoreUnavailable,
    TopicNotFound,
    WrongStore,
)
from penstock.shared.formats.properties import LOST
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_QUEUE_ID
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal
from penstock.shared.wire.pulled_parts import UnreadableQueue

NOW_MS = 1_700_000_000_000
WireMaker = Callable[..., Any]


def offsets(seen: list[tuple[int, int, bytes]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for queue_id, offset, body in seen:
        assert body == f"{queue_id}/{offset}".encode()
        found.setdefault(queue_id, []).append(offset)
    return found


class AnyHistory(RuleBasedStateMachine):
    """Messages come and expire, requests and answers get lost, repeated and late."""

    def __init__(self, make_reader: WireMaker, make_consumer: WireMaker, log: Any = None) -> None:
        super().__init__()
        self.reader = make_reader(declared=1, log=log)
        self.make_consumer = make_consumer
        self.heard: list[list[bytes]] = []

    @initialize(follow=st.booleans(), counts=st.lists(st.integers(0, 9), max_size=3))
    def begin(self, follow: bool, counts: list[int]) -> None:
        for queue_id, count in enumerate(counts):
            if count:
                self.reader.append(queue_id, count)
        self.wire = self.make_consumer(self.reader, follow=follow, direct=True)
        self.follow = follow
        self.ends: dict[int, int] | None = None

    @rule(queue_id=st.integers(0, 3), count=st.integers(1, 5))
    def messages_come(self, queue_id: int, count: int) -> None:
        self.reader.append(queue_id, count)

    @rule(queue_id=st.integers(0, 3), low=st.integers(0, 12))
    def messages_expire(self, queue_id: int, low: int) -> None:
        self.reader.expire(queue_id, low)

    @rule(ms=st.sampled_from([1, 50, 200, 400]), connected=st.sampled_from([True, True, False]))
    def the_consumer_asks(self, ms: int, connected: bool) -> None:
        self.wire.now_ms += ms
        self.wire.ask(connected)

    @rule(at_most=st.sampled_from([1, 3, 1000]), final=st.booleans())
    def the_reader_answers(self, at_most: int, final: bool) -> None:
        self.wire.read(at_most, final)

    @rule()
    def the_consumer_hears(self) -> None:
        if self.wire.answers and self.ends is None:
            described = messages.decode_consume_answer(self.wire.answers[0][0])
            assert isinstance(described, messages.Described)
            self.ends = {queue.queue_id: queue.max_offset for queue in described.queues}
        self.heard = (self.heard + self.wire.answers)[-4:]
        self.wire.hear()

    @rule()
    def all_goes_well_for_a_moment(self) -> None:
        self.the_consumer_asks(REPEAT_MS, True)
        self.the_reader_answers(3, False)
        self.the_consumer_hears()
        self.the_consumer_asks(1, True)

    @rule(which=st.integers(0, 3))
    def an_answer_comes_again(self, which: int) -> None:
        """A request that was repeated is answered twice; the second answer may come late."""
        self.wire.answers += self.heard[which : which + 1]

    @rule(answers=st.booleans())
    def something_is_lost(self, answers: bool) -> None:
        (self.wire.answers if answers else self.wire.requests).clear()

    @rule()
    def files_are_gone(self) -> None:
        self.reader.lose_files()

    @invariant()
    def every_queue_has_been_seen_in_order_and_without_a_gap_but_for_what_expired(self) -> None:
        for queue_id, found in offsets(self.wire.seen).items():
            assert found == sorted(set(found))
            holes = set(range(found[-1] + 1)) - set(found)
            assert all(hole < self.reader.queues[queue_id].low for hole in holes)

    def teardown(self) -> None:
        self.the_consumer_hears()
        self.wire.answers.clear()
        self.wire.requests.clear()
        while self.ends is None:
            self.wire.now_ms += REPEAT_MS
            self.wire.ask()
            self.the_reader_answers(1000, True)
            self.the_consumer_hears()
        self.wire.run()
        seen = offsets(self.wire.seen)
        for queue_id, queue in self.reader.queues.items():
            last = len(queue.bodies) if self.follow else self.ends.get(queue_id, 0)
            found = seen.get(queue_id, [])
            missing = set(range(last)) - set(found)
            assert all(offset < queue.low for offset in missing), "only what expired was missed"
            assert not found or found[-1] < last, "without follow: what was there, and no more"
        assert self.wire.core.finished or self.follow


def test_any_history_shows_every_message_once_and_in_order(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    few = settings(max_examples=150, stateful_step_count=30)
    machine = partial(AnyHistory, make_reader, make_consumer)
    run_state_machine_as_test(machine, settings=few)


def test_so_does_any_history_of_one_that_reads_the_log_itself(
    make_reader: WireMaker, make_consumer: WireMaker, make_log: Callable[[], Any]
) -> None:
    few = settings(max_examples=150, stateful_step_count=30)
    machine = partial(AnyHistory, make_reader, make_consumer, make_log())
    run_state_machine_as_test(machine, settings=few)


def test_a_fetch_that_was_given_up_is_made_good_by_the_next_answer(
    make_reader: WireMaker, make_consumer: WireMaker, make_log: Callable[[], Any]
) -> None:
    reader = make_reader(log=make_log())
    reader.append(0, 3)
    wire = make_consumer(reader, direct=True)
    wire.run(1)
    wire.ask()
    wire.read()
    (answer,) = wire.answers
    wire.answers.clear()
    wire.core.received(answer, wire.now_ms)
    assert wire.core.has_unread and not wire.core.ready
    reader.append(0, 3)
    reader.log = None  # the next answer has its records with it
    assert offsets(wire.run(5)) == {0: [0, 1, 2, 3, 4, 5]}
    wire.core.received(answer, wire.now_ms)
    assert not wire.core.has_unread, "it is an old one by now"


def test_files_that_are_gone_are_asked_for_by_the_socket_and_again_after_a_while(
    make_reader: WireMaker, make_consumer: WireMaker, make_log: Callable[[], Any]
) -> None:
    reader = make_reader(log=make_log())
    reader.append(0, 3)
    wire = make_consumer(reader, direct=True)
    assert len(wire.run(5)) == 3 and reader.from_log == 1
    reader.append(0, 3)
    wire.ask()
    wire.read()
    reader.lose_files()
    wire.hear()
    assert len(wire.run(5)) == 6 and reader.from_log == 2, "by the socket"
    wire.now_ms += TRY_AGAIN_MS
    wire.run(3)  # of which the last answers the pull that is held
    reader.append(0, 3)
    assert len(wire.run(5)) == 9 and reader.from_log == 3


# --- where to begin ---


@pytest.fixture
def reader(make_reader: WireMaker) -> Any:
    """Queue 0 with ten messages of which three have expired, queue 1 with two, queue 2 declared."""
    reader = make_reader(declared=3)
    reader.append(0, 10)
    reader.append(1, 2)
    reader.expire(0, 3)
    return reader


@pytest.mark.parametrize(
    ("start", "first", "second"),
    [
        ("earliest", 3, 0),
        ("latest", 10, 2),
        (0, 3, 0),
        (5, 5, 5),
        ("7", 7, 7),
        (dt.datetime.fromtimestamp((NOW_MS + 60) / 1000, dt.UTC), 5, 0),
        (dt.datetime.fromtimestamp((NOW_MS + 61) / 1000, dt.UTC), 6, 0),
        (dt.datetime.fromtimestamp((NOW_MS + 115) / 1000, dt.UTC), 10, 1),
        (dt.datetime(1900, 1, 1, tzinfo=dt.UTC), 3, 0),
        (dt.datetime(2100, 1, 1, tzinfo=dt.UTC), 10, 2),
        ("-1h", 3, 0),
        ({0: 6}, 6, 0),
        ({0: 6, 1: 1}, 6, 1),
    ],
)
def test_a_consumer_begins_where_it_is_told_to(
    reader: Any, start: Any, first: int, second: int, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, start=start)
    seen = offsets(wire.run())
    assert seen.get(0, []) == list(range(first, 10))
    assert seen.get(1, []) == list(range(second, 2))
    assert wire.core.losses.count == (3 if start == 0 else 0), "what was named and is gone"
    reader.append(0, 1)
    assert offsets(wire.run()).get(0, [])[-1] == 10, "and goes on with what comes"


def test_a_queue_that_comes_later_begins_as_an_empty_one_would(
    reader: Any, make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    for start, first in (("latest", 0), ("earliest", 0), (2, 2), ({7: 3}, 3)):
        wire = make_consumer(reader, start=start)
        wire.run()
        fresh = make_reader()
        fresh.queues = dict(reader.queues)
        wire.reader = fresh
        fresh.append(7, 5)
        assert offsets(wire.run())[7] == list(range(first, 5)), start


def test_what_has_expired_is_passed_over_counted_and_told_once(
    reader: Any, make_consumer: WireMaker, caplog: pytest.LogCaptureFixture
) -> None:
    wire = make_consumer(reader, start={0: 1, 1: 0})
    assert offsets(wire.run())[0] == list(range(3, 10))
    assert wire.core.losses.count == 2
    assert [record.getMessage() for record in caplog.records] == [
        "messages of orders, queue 0, have expired or are lost: going on at offset 3 instead of 1"
    ]
    reader.append(0, 5)
    reader.expire(0, 12)
    assert offsets(wire.run())[0][-3:] == [12, 13, 14]
    assert wire.core.losses.count == 4
    assert len(caplog.records) == 1


def test_what_is_lost_is_passed_over_counted_and_told_once(
    reader: Any, make_consumer: WireMaker, caplog: pytest.LogCaptureFixture
) -> None:
    reader.lost = {(0, 4), (0, 5), (1, 0), (0, 11)}
    wire = make_consumer(reader, start={0: 3, 1: 0}, follow=False)
    wire.run(1)  # it has heard where the queues end
    reader.append(0, 3)  # not asked for, the lost one among them neither
    seen = offsets(wire.run())
    assert (seen[0], seen[1]) == ([3, 6, 7, 8, 9], [1])
    assert wire.core.losses.count == 3 and wire.core.finished
    assert [record.getMessage() for record in caplog.records] == [
        "messages of orders are lost: a repair of the store has found them damaged"
    ]


def test_a_body_that_names_the_mark_of_lost_messages_is_a_message(
    reader: Any, make_consumer: WireMaker
) -> None:
    reader.append(0, 1)
    reader.queues[0].bodies[10] = LOST.encode()
    wire = make_consumer(reader, start={0: 9}, queues=[0])
    assert [body for _, _, body in wire.run()] == [b"0/9", LOST.encode()]
    assert wire.core.losses.count == 0


def test_only_the_queues_that_were_named_are_read(reader: Any, make_consumer: WireMaker) -> None:
    wire = make_consumer(reader, queues=[1])
    reader.append(5, 3)
    assert offsets(wire.run()) == {1: [0, 1]}
    assert set(wire.core.cursors) == {1}
    reader.append(8, 1)
    wire.now_ms += REPEAT_MS
    wire.ask()
    wire.read()
    assert wire.requests and not wire.answers, "nor is it woken by others"


def test_a_queue_that_is_not_there_is_an_error(reader: Any, make_consumer: WireMaker) -> None:
    wire = make_consumer(reader, queues=[1, 9])
    with pytest.raises(QueueNotFound, match="9. It has queues 0 to 2;"):
        wire.run()


def test_a_topic_that_is_not_there_is_an_error_or_waited_for(
    make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    with pytest.raises(TopicNotFound):
        make_consumer(make_reader(), follow=False).run()
    wire = make_consumer(make_reader())
    assert wire.run() == []
    one = make_consumer(wire.reader, queues=[0])
    assert one.run(1) == [], "nor is a queue of it missed"
    wire.reader.append(0, 2)
    assert offsets(wire.run()) == offsets(one.run()) == {0: [0, 1]}


def test_without_follow_an_empty_topic_is_finished_at_once(
    make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    wire = make_consumer(make_reader(declared=4), follow=False)
    assert wire.run() == [] and wire.core.finished


def test_without_follow_it_ends_where_the_topic_ended_and_asks_for_nothing_behind(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, follow=False)
    wire.run(1)
    reader.append(0, 4)
    reader.append(6, 4)
    wire.now_ms += REPEAT_MS
    wire.ask()
    wire.read(9)
    wire.hear()
    wire.ask()
    asked = messages.decode_consume_request(wire.requests[-1][0])
    assert isinstance(asked, messages.Pull) and asked.cursors == {1: 0}, "queue 0 is done"
    assert offsets(wire.run()) == {0: list(range(3, 10)), 1: [0, 1]}
    assert wire.core.cursors == {0: 10, 1: 2, 2: 0}


def test_without_follow_it_is_finished_when_the_last_message_is_taken(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, follow=False)
    arrived(wire)
    assert wire.core.left == 9 and not wire.core.finished
    assert wire.core.outgoing(wire.now_ms) == [], "all of it is at hand"
    wire.hear()
    assert wire.core.left == 0 and wire.core.finished


def test_a_queue_that_expires_past_its_end_takes_nothing_off_what_is_left_of_others(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, follow=False)
    wire.run(1)
    reader.append(0, 10)
    reader.expire(0, 15)
    arrived(wire, at_most=0)
    assert wire.core.cursors == {0: 15, 1: 0, 2: 0}
    assert wire.core.left == 2


def test_a_pull_with_a_filter_looks_no_further_than_the_ends_unless_the_consumer_follows(
    reader: Any, make_consumer: WireMaker
) -> None:
    for follow, ends in ((False, {0: 10, 1: 2}), (True, {})):
        wire = make_consumer(reader, follow=follow, selection=choose("TagA", "", "", NOW_MS))
        wire.run(1)
        wire.ask()
        asked = messages.decode_consume_request(wire.requests[0][0])
        assert isinstance(asked, messages.Pull) and asked.subscription is not None
        assert asked.subscription.ends == ends


# --- silence ---


@pytest.mark.parametrize(("timeout_ms", "held_ms"), [(1001, 500), (60_000, WAIT_MS)])
def test_a_pull_is_held_for_half_of_the_timeout_at_most(
    reader: Any, make_consumer: WireMaker, timeout_ms: int, held_ms: int
) -> None:
    wire = make_consumer(reader, timeout_ms=timeout_ms)
    wire.run(1)
    wire.ask()
    asked = messages.decode_consume_request(wire.requests[0][0])
    assert isinstance(asked, messages.Pull) and asked.wait_ms == held_ms


def test_a_silent_broker_is_an_error_after_the_timeout_and_again_after_another(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, timeout_ms=1000)
    for _ in range(2):
        began = wire.now_ms
        with pytest.raises(ConnectError, match="1000 ms"):
            while wire.now_ms < began + 5000:
                wire.now_ms += 50
                wire.ask()
        assert 1000 <= wire.now_ms - began <= 1300
    assert offsets(wire.run())[1] == [0, 1], "and it goes on when the broker is back"


def test_where_another_stores_broker_answers_that_is_the_error(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, timeout_ms=1000)
    wire.core.aim.store = "/mine"
    wire.ask()
    wrong = refusal(WrongStore("the broker runs on another store", "/theirs"), 1)
    wire.answers.append([encode(wrong)])
    wire.arrive()
    assert wire.core.aim.away, "its driver looks for the broker"
    with pytest.raises(WrongStore, match="/theirs, and not on /mine"):
        for _ in range(10):
            wire.now_ms += 150
            wire.ask()
    assert offsets(wire.run())[1] == [0, 1] and not wire.core.aim.away


def test_what_cannot_be_sent_is_tried_again_soon_and_the_broker_is_looked_for(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader)
    wire.ask(connected=False)
    assert wire.core.aim.away and wire.core.wait_ms(wire.now_ms) == 10
    wire.now_ms += 10
    wire.ask()
    assert len(wire.requests) == 1


def test_a_busy_caller_is_no_silent_broker(reader: Any, make_consumer: WireMaker) -> None:
    wire = make_consumer(reader, timeout_ms=1000)
    wire.run()
    for _ in range(3):
        wire.now_ms += 60_000
        wire.ask()
        wire.now_ms += 100
        wire.ask()


@pytest.mark.parametrize("timeout_ms", [100, 1000])
def test_at_the_end_there_is_nobody_to_hear_from(
    reader: Any, timeout_ms: int, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, follow=False, timeout_ms=timeout_ms)
    wire.run()
    assert wire.core.finished
    wire.now_ms += 60_000
    wire.ask()
    assert wire.requests == []


def test_a_request_is_repeated_until_it_is_answered(reader: Any, make_consumer: WireMaker) -> None:
    wire = make_consumer(reader)
    sent = []
    for _ in range(100):
        wire.now_ms += 10
        wire.ask()
        sent += wire.requests
        wire.requests.clear()
    assert len(sent) == 1000 // REPEAT_MS and len(set(sent)) == 1


def test_where_losses_are_heard_of_a_request_is_repeated_each_time_later_and_silence_is_in_time(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, hears_losses=True, timeout_ms=20_000)
    wire.now_ms += REPEAT_MS
    began = wire.now_ms
    sent = []
    with pytest.raises(BrokerTimeout):
        while True:
            wire.ask()
            sent += [wire.now_ms] * len(wire.requests)
            wire.requests.clear()
            wire.now_ms += max(1, wire.core.wait_ms(wire.now_ms))
    assert wire.now_ms == began + 20_001
    gaps = [after - before for before, after in zip(sent, sent[1:], strict=False)]
    assert gaps[:5] == [REPEAT_MS, 2 * REPEAT_MS, 4 * REPEAT_MS, 8 * REPEAT_MS, MAX_REPEAT_MS]
    assert wire.core.is_waiting_long
    wire.core.connection_lost()
    assert not wire.core.is_waiting_long
    assert wire.core.wait_ms(sent[-1] + 1) == REPEAT_MS - 1


def test_an_error_of_the_broker_is_raised_and_the_next_request_goes_out(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader)
    wire.ask()
    number = messages.decode_consume_request(wire.requests.pop()[0]).request
    wire.answers.append([encode(refusal(StoreUnavailable("r", "v"), number))])
    with pytest.raises(StoreUnavailable):
        wire.hear()
    assert offsets(wire.run())[1] == [0, 1]


def arrived(wire: Any, at_most: int = 1000) -> None:
    """Describe and one pull are answered, and nothing is taken."""
    for _ in range(2):
        wire.now_ms += REPEAT_MS
        wire.ask()
        wire.read(at_most)
        wire.arrive()


@pytest.mark.parametrize(("direct", "most"), [(False, AHEAD_BYTES), (True, DIRECT_AHEAD_BYTES)])
def test_no_more_is_asked_for_while_much_is_at_hand(
    direct: bool, most: int, make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    wire = make_consumer(make_reader(), direct=direct)
    wire.reader.append(0, 50_000)
    arrived(wire)
    pulls = 1
    while wire.core.outgoing(wire.now_ms):
        wire.now_ms += REPEAT_MS
        wire.ask()
        wire.read(1000)
        wire.arrive()
        pulls += 1
    assert most < pulls * 1000 * 105 < most + 200_000
    wire.hear()
    assert len(wire.seen) == pulls * 1000 and wire.core.outgoing(wire.now_ms)


def test_the_next_is_asked_for_before_what_has_come_is_taken(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, start=5, queues=[0])
    arrived(wire, 2)
    wire.ask()
    asked = messages.decode_consume_request(wire.requests[0][0])
    assert isinstance(asked, messages.Pull) and asked.cursors == {0: 7}
    assert wire.core.ready and wire.core.positions == {0: 5}, "not taken, so to be read again"
    assert [message.queue_offset for message in wire.core.take()] == [5, 6]
    assert wire.core.positions == {0: 7} and not wire.core.ready


@pytest.mark.parametrize("size", [PULL_BYTES // 2, PULL_BYTES])
def test_parts_that_are_together_longer_than_what_is_taken_at_once_are_taken_one_by_one(
    make_consumer: WireMaker, make_reader: WireMaker, size: int
) -> None:
    wire = make_consumer(make_reader())
    for queue_id in range(3):
        wire.reader.append(queue_id, 1)
        wire.reader.queues[queue_id].bodies[0] = bytes(size)
    arrived(wire)
    taken = [[each.queue_id for each in wire.core.take()] for _ in range(4)]
    assert taken == [[0], [1], [2], []]


def test_of_bodies_too_only_those_that_were_chosen_are_taken(
    reader: Any, make_consumer: WireMaker
) -> None:
    """The broker compares only the hashes of tags."""
    wire = make_consumer(reader, selection=choose("TagA", "", "", NOW_MS))
    arrived(wire)
    assert wire.core.ready and wire.core.take_bodies() == []


def test_what_came_before_an_error_is_taken_before_it_is_raised(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, start=8, queues=[0])
    arrived(wire)
    wire.ask()
    number = messages.decode_consume_request(wire.requests.pop()[0]).request
    wire.answers.append([encode(refusal(StoreUnavailable("r", "v"), number))])
    wire.arrive()
    assert [message.queue_offset for message in wire.core.take()] == [8, 9]
    with pytest.raises(StoreUnavailable):
        wire.core.take()
    reader.append(0, 1)
    assert offsets(wire.run())[0] == [10]


@pytest.mark.parametrize("follow", [True, False])
def test_a_topic_that_has_lost_a_queue_is_read_on_in_the_others(
    reader: Any, make_consumer: WireMaker, follow: bool
) -> None:
    wire = make_consumer(reader, follow=follow)
    wire.ask()
    wire.read()
    wire.arrive()
    wire.ask()
    number = messages.decode_consume_request(wire.requests.pop()[0]).request
    del reader.queues[1]
    reader.declared = 1
    wire.answers.append([encode(refusal(QueueNotFound("no such queue", 1), number))])
    wire.arrive()
    wire.ask()
    assert isinstance(messages.decode_consume_request(wire.requests[-1][0]), messages.Describe)
    wire.read()
    wire.arrive()
    wire.ask()
    pull = messages.decode_consume_request(wire.requests[-1][0])
    assert isinstance(pull, messages.Pull) and pull.known_queues == 1, "a second one would be new"
    assert offsets(wire.run()).keys() == {0}
    assert wire.core.cursors.keys() == {0}
    assert wire.core.left == 0 and wire.core.finished is not follow


def test_an_answer_that_is_too_long_to_be_heard_is_an_error_and_is_asked_for_again(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, queues=[1])
    wire.ask()
    wire.core.given_up(1000)
    wire.requests.clear()
    assert wire.core.outgoing(wire.now_ms) == []
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        wire.core.take()
    assert len(wire.core.outgoing(wire.now_ms)) == 1
    assert offsets(wire.run()) == {1: [0, 1]}


def test_records_that_were_not_asked_for_are_an_error_and_are_asked_for_again(
    reader: Any, make_consumer: WireMaker
) -> None:
    """The queue before them is read, and nothing after them is lost."""
    wire = make_consumer(reader, start={0: 3, 1: 0})
    wire.ask()
    wire.read()
    wire.arrive()
    wire.ask()
    wire.read()
    ((header, payload),) = wire.answers
    at = payload.index(b"1/0") - AT_BODY_V4 + AT_QUEUE_ID
    wire.answers = [[header, payload[:at] + (7).to_bytes(4, "big") + payload[at + 4 :]]]
    wire.arrive()
    wire.ask()  # what is after them: the answer will be too late
    wire.read(final=True)
    assert [message.queue_offset for message in wire.core.take()] == list(range(3, 10))
    with pytest.raises(QueueUnreadable, match="topic orders, queue 1, offset 0"):
        wire.core.take()
    assert wire.core.positions[1] == 0 and not wire.core.ready
    wire.ask()
    assert wire.core.wait_ms(wire.now_ms) == REPEAT_MS, "a request for the others is on its way"
    assert offsets(wire.run()) == {}, "it is not asked for at full speed"
    wire.now_ms += ASIDE_MS
    assert offsets(wire.run()) == {1: [0, 1]}


def cannot_be_read(wire: Any, queue_id: int, *slices: messages.QueueSlice) -> None:
    """The pull that was asked is answered so; these slices have no records."""
    number = messages.decode_consume_request(wire.requests.pop()[0]).request
    why = UnreadableQueue(queue_id, "a file is missing", f"queue {queue_id}", "")
    pulled = messages.Pulled(number, slices, (0, 1, 2), "", unreadable=(why,))
    wire.answers.append([encode(pulled), b""])
    wire.arrive()


def test_where_no_queue_can_be_read_nothing_is_asked_until_one_is_tried_again(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, queues=[1])
    arrived(wire, at_most=0)
    cannot_be_read(wire, 1)
    with pytest.raises(QueueUnreadable):
        wire.core.take()
    assert wire.core.outgoing(wire.now_ms) == []
    assert wire.core.wait_ms(wire.now_ms) == ASIDE_MS
    wire.now_ms += ASIDE_MS
    assert offsets(wire.run()) == {1: [0, 1]}


def test_without_follow_a_queue_that_cannot_be_read_is_told_of_after_all_that_the_others_have(
    reader: Any, make_consumer: WireMaker
) -> None:
    wire = make_consumer(reader, queues=[0, 1], follow=False)
    arrived(wire, at_most=0)
    cannot_be_read(wire, 1, messages.QueueSlice(0, 3, 3, 5, 10, 0))
    assert wire.core.take() == [], "queue 0 has more"
    wire.ask()
    wire.read()
    wire.arrive()
    assert [message.queue_offset for message in wire.core.take()] == [5, 6, 7, 8, 9]
    with pytest.raises(QueueUnreadable, match="a file is missing"):
        wire.core.take()
    assert not wire.core.finished


def test_an_answer_that_is_not_fetched_yet_is_dropped_where_its_queue_goes_back(
    make_reader: WireMaker, make_consumer: WireMaker, make_log: Callable[[], Any]
) -> None:
    """It begins after the message that is asked for again."""
    reader = make_reader()
    reader.append(0, 4)
    wire = make_consumer(reader, direct=True)
    wire.run(1)
    wire.ask()
    wire.read(2)
    ((header, payload),) = wire.answers
    at = payload.index(b"0/1") - AT_BODY_V4 + AT_QUEUE_ID
    wire.answers = [[header, payload[:at] + (7).to_bytes(4, "big") + payload[at + 4 :]]]
    wire.arrive()
    reader.log = make_log()
    wire.ask()
    wire.read()
    (answer,) = wire.answers
    wire.answers.clear()
    wire.core.received(answer, wire.now_ms)
    assert wire.core.has_unread
    assert [message.queue_offset for message in wire.core.take()] == [0]
    assert not wire.core.has_unread and wire.core.positions == {0: 1}
    with pytest.raises(QueueUnreadable, match="queue 0, offset 1"):
        wire.core.take()
    wire.now_ms += ASIDE_MS
    assert offsets(wire.run()) == {0: [1, 2, 3]}


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_an_answer_that_does_not_hold_what_it_says_is_an_error(
    reader: Any, make_consumer: WireMaker, size: int
) -> None:
    wire = make_consumer(reader, queues=[1])
    wire.ask()
    wire.read()
    wire.arrive()
    wire.ask()
    number = messages.decode_consume_request(wire.requests.pop()[0]).request
    part = messages.QueueSlice(1, 0, 2, 0, 2, size)
    wire.answers.append([encode(messages.Pulled(number, (part,), (1,), "")), b"x" * 200])
    with pytest.raises(ProtocolError):
        wire.arrive()
    assert offsets(wire.run()) == {1: [0, 1]}


# --- arguments ---


@pytest.mark.parametrize(
    "start", [-1, "yesterday", "", "15m", "²", "-5y", 1 << 63, "9" * 5000, "0001-01-01", {0: -1}]
)
def test_what_is_no_start_is_a_typed_error(
    start: Any, make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    with pytest.raises(InvalidArgument):
        make_consumer(make_reader(), start=start)


@pytest.mark.parametrize(("start", "ends"), [(4, 3), (1 << 30, 3), (1, 0)])
def test_a_start_behind_the_end_of_every_queue_is_an_error_and_not_nothing(
    start: int, ends: int, make_consumer: WireMaker, make_reader: WireMaker
) -> None:
    reader = make_reader(declared=2)
    if ends:
        reader.append(0, ends)
        reader.append(1, 1)
    with pytest.raises(OffsetOutOfRange, match=f"{start}.*ends at {ends}"):
        make_consumer(reader, start=start, follow=False).run()
    make_consumer(reader, start=ends, follow=False).run()  # what has read all may look again
    make_consumer(reader, start=start, follow=True).run()  # and who follows waits for more


def test_so_is_one_past_the_ends_of_the_queues_that_were_named(
    reader: Any, make_consumer: WireMaker
) -> None:
    with pytest.raises(OffsetOutOfRange, match="4.*ends at 2"):
        make_consumer(reader, start=4, follow=False, queues=[1, 2]).run()


def test_a_topic_is_checked_at_once() -> None:
    with pytest.raises(InvalidArgument):
        ConsumerCore("tcp://x:1", "a/b", NOW_MS, timeout_ms=1000)
