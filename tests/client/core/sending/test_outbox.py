"""Frames that wait to leave: which of them a message joins, when one may leave, which are late."""

from __future__ import annotations

from threading import Condition

import pytest

from penstock.client.core.sending.encoding import BrokerLimits, waiting_form
from penstock.client.core.sending.frames import Frame, Sender, SendFuture
from penstock.client.core.sending.outbox import MAX_FULL_IN_FLIGHT, MAX_IN_FLIGHT, Outbox
from penstock.client.core.sending.round_robin import RoundRobin
from penstock.client.core.sending.routes import Parked
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.loops.active import Intake, KeyNumbers
from penstock.shared.loops.forms import FRAME_BYTES, Plain
from penstock.shared.messaging.delayed import Delay

ORIGIN = KeyOrigin("0A" * 10, 0)
SENDER = Sender(Condition(), ORIGIN)


@pytest.fixture
def outbox() -> Outbox:
    turns = RoundRobin()
    turns.begin("orders", 9)
    plain = Plain(SendFuture, SENDER, "", KeyNumbers(ORIGIN), BrokerLimits(), 0, 0)
    return Outbox(Intake(plain, turns.now, {}), turns)


def put(outbox: Outbox, size: int = 1, ack: str = "", queue_id: int = 0) -> None:
    outbox.put("orders", queue_id, ack, b"", size, SendFuture(SENDER, 0))


def taken(outbox: Outbox) -> list[tuple[str, int]]:
    """Of each frame: its acknowledgement and how many messages it has."""
    frames = []
    while outbox:
        frames.append(outbox.take())
    return [(frame.ack, frame.unsettled) for frame in frames]


@pytest.mark.parametrize(
    ("messages", "frames"),
    [
        ([(1, ""), (1, ""), (1, "")], [("", 3)]),
        ([(1, ""), (1, "flushed"), (1, "flushed"), (1, "")], [("", 1), ("flushed", 2), ("", 1)]),
        ([(FRAME_BYTES - 1, ""), (1, "")], [("", 2)]),
        ([(FRAME_BYTES - 1, ""), (2, ""), (1, "")], [("", 1), ("", 2)]),
        ([(2 * FRAME_BYTES, ""), (1, "")], [("", 1), ("", 1)]),
    ],
)
def test_a_message_joins_the_open_frame_if_it_is_of_its_kind_and_has_room(
    outbox: Outbox, messages: list[tuple[int, str]], frames: list[tuple[str, int]]
) -> None:
    for size, ack in messages:
        put(outbox, size, ack)
    assert taken(outbox) == frames and not outbox
    put(outbox)
    assert taken(outbox) == [("", 1)], "none joins one that was taken"


def test_a_message_joins_the_open_frame_after_an_earlier_one_has_left(outbox: Outbox) -> None:
    put(outbox, FRAME_BYTES)
    put(outbox)
    assert outbox.take().unsettled == 1
    put(outbox)
    assert taken(outbox) == [("", 2)]


def test_a_delayed_message_goes_where_all_wait_and_to_no_other_queue(outbox: Outbox) -> None:
    delay = Delay(3)
    future = SendFuture(SENDER, 0)
    outbox.enter(7, Parked("orders", [b"x"], 1, future, None, None, "", delay=delay))
    (run,) = outbox.take().runs
    assert (run.topic, run.queue_id, run.fixed) == (delay.topic, delay.queue_id, True)
    assert run.drafts == [waiting_form(b"x", "orders", 7, delay)]


def test_nothing_joins_a_frame_that_is_put_whole(outbox: Outbox) -> None:
    put(outbox)
    whole = Frame("")
    outbox.put_frame(whole)
    put(outbox)
    found = [outbox.take() for _ in range(3)]
    assert found[1] is whole and [each.unsettled for each in found] == [1, 0, 1]


@pytest.mark.parametrize(
    ("in_flight", "frames", "closed", "may"),
    [
        (0, 0, False, True),
        (MAX_IN_FLIGHT - 1, 1, False, True),
        (MAX_IN_FLIGHT, 0, False, False),
        (MAX_IN_FLIGHT, 1, False, False),
        (MAX_IN_FLIGHT, 1, True, True),
        (MAX_IN_FLIGHT, 2, False, True),
        (MAX_FULL_IN_FLIGHT - 1, 2, False, True),
        (MAX_FULL_IN_FLIGHT, 2, True, False),
    ],
)
def test_more_frames_may_leave_while_full_ones_wait(
    outbox: Outbox, in_flight: int, frames: int, closed: bool, may: bool
) -> None:
    for _ in range(frames):
        outbox.put_frame(Frame("")) if closed else put(outbox, FRAME_BYTES)
    assert outbox.may_leave(in_flight) == may


def test_frames_are_given_up_that_have_waited_since_before_a_time(outbox: Outbox) -> None:
    for now_ms in (100, 200, 300):
        put(outbox)
        assert outbox.give_up(now_ms, 0) == []
    put(outbox)  # its time begins with the next look
    assert outbox.give_up(350, 100) == []
    assert [each.since_ms for each in outbox.give_up(360, 201)] == [100, 200]
    assert [each.since_ms for each in outbox.give_up(400, 1000)] == [300, 350]
    assert not outbox and outbox.give_up(500, 1000) == []


@pytest.mark.parametrize(
    ("before", "tried", "after"),
    [
        ((), (), ()),
        ((), (3,), (3,)),
        ((1, 2), (3,), (1, 2)),
        ((1,), (3, 4), (3, 4)),
        ((1,), (), (1,)),
    ],
)
def test_a_frame_remembers_the_longest_list_of_queues_that_have_refused_messages_of_it(
    outbox: Outbox,
    before: tuple[int, ...],
    tried: tuple[int, ...],
    after: tuple[int, ...],
) -> None:
    put(outbox, FRAME_BYTES)  # of another frame
    for each in (before, tried):
        made = Parked("orders", [b""], 1, SendFuture(SENDER, 0), None, None, "", tried=each)
        outbox.enter(3, made)
    first, second = outbox.take(), outbox.take()
    assert (first.tried, second.tried) == ((), after) and second.unsettled == 2
