"""Several answers of one queue at hand: where a consumer would go on, and what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.message import Part
from penstock.client.core.reading.queues_aside import ASIDE_MS
from penstock.client.core.reading.records_at_hand import AHEAD_BYTES
from penstock.client.core.timeouts import REPEAT_MS
from penstock.shared.errors import StoreDamaged, UnreadableBody
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_QUEUE_ID, AT_QUEUE_OFFSET
from penstock.shared.wire import messages

WireMaker = Callable[..., Any]


def arrive(wire: Any, answers: int, at_most: int) -> None:
    """This many answers come, of `at_most` messages each, and nobody takes them."""
    for _ in range(answers):
        wire.now_ms += REPEAT_MS
        wire.ask()
        wire.read(at_most)
        wire.arrive()


def test_a_consumer_would_go_on_at_the_first_message_that_is_not_taken(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    """Whoever stores these positions and resumes there loses nothing."""
    wire = make_consumer(make_reader())
    wire.reader.append(0, 10)
    arrive(wire, answers=1 + 3, at_most=2)  # the topic's description comes first
    assert wire.core.cursors == {0: 6}, "three answers are at hand"
    assert wire.core.positions == {0: 0}
    (first, *_) = wire.core.take()
    assert first.queue_offset == 0


def test_positions_are_those_of_each_queue_while_answers_of_two_alternate(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    wire = make_consumer(make_reader(), start={0: 1, 1: 2})
    for _ in range(4):
        wire.reader.append(0, 1)
        wire.reader.append(1, 1)
    arrive(wire, answers=1, at_most=0)
    for at_most in (1, 5):
        arrive(wire, answers=1, at_most=at_most)
    assert wire.core.cursors == {0: 4, 1: 4}
    assert wire.core.positions == {0: 1, 1: 2}


def test_after_an_error_all_that_was_at_hand_is_forgotten_and_asked_for_again(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    """Also when enough was at hand that nothing more was to be asked for."""
    wire = make_consumer(make_reader(), queues=[0])
    count = AHEAD_BYTES // 100 + 1000
    wire.reader.append(0, count)
    arrive(wire, answers=1, at_most=1)
    wire.now_ms += REPEAT_MS
    wire.ask()
    wire.read(500)
    ((header, payload),) = wire.answers
    at = payload.index(b"0/0") - AT_BODY_V4 + AT_QUEUE_ID
    wire.answers = [[header, payload[:at] + (7).to_bytes(4, "big") + payload[at + 4 :]]]
    wire.arrive()
    arrive(wire, answers=30, at_most=1000)
    assert not wire.requests and wire.core.cursors[0] < count, "enough is at hand"
    with pytest.raises(StoreDamaged, match="queue 0, offset 0"):
        wire.core.take()
    assert wire.core.positions == {0: 0} and not wire.core.ready
    wire.requests.clear()
    wire.now_ms += ASIDE_MS
    wire.ask()
    (asked,) = [messages.decode_consume_request(parts[0]) for parts in wire.requests]
    assert isinstance(asked, messages.Pull) and asked.cursors == {0: 0}
    offsets = [offset for _, offset, _ in wire.run(200)]
    assert offsets == list(range(count))


@pytest.mark.parametrize("take", ["take", "take_bodies"])
def test_what_stands_in_an_answer_before_a_message_that_cannot_be_read_is_taken(
    make_reader: WireMaker, make_consumer: WireMaker, take: str
) -> None:
    """The queue waits at that message, and not at the first of the answer, which is whole."""
    wire = make_consumer(make_reader(), queues=[0])
    wire.reader.append(0, 12)
    arrive(wire, answers=1, at_most=1)
    wire.now_ms += REPEAT_MS
    wire.ask()
    wire.read(7)
    ((header, payload),) = wire.answers
    at = payload.index(b"0/3") - AT_BODY_V4 + AT_QUEUE_ID
    wire.answers = [[header, payload[:at] + (7).to_bytes(4, "big") + payload[at + 4 :]]]
    wire.arrive()
    arrive(wire, answers=1, at_most=5)
    taken = getattr(wire.core, take)()
    assert [bytes(getattr(each, "body", each)) for each in taken] == [b"0/0", b"0/1", b"0/2"]
    with pytest.raises(StoreDamaged, match="queue 0, offset 3") as raised:
        wire.core.take()
    assert raised.value.queue_offset == 3
    assert wire.core.positions == {0: 3} and not wire.core.ready
    wire.now_ms += ASIDE_MS
    assert [offset for _, offset, _ in wire.run()] == list(range(3, 12))


def test_a_message_that_names_too_high_an_offset_is_the_one_that_cannot_be_read(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    """No checksum covers the number: what comes after it is whole, and begins where it was."""
    wire = make_consumer(make_reader(), queues=[0])
    wire.reader.append(0, 12)
    arrive(wire, answers=1, at_most=1)
    wire.now_ms += REPEAT_MS
    wire.ask()
    wire.read(9)
    ((header, payload),) = wire.answers
    at = payload.index(b"0/3") - AT_BODY_V4 + AT_QUEUE_OFFSET
    wire.answers = [[header, payload[:at] + (7).to_bytes(8, "big") + payload[at + 8 :]]]
    wire.arrive()
    assert [each.queue_offset for each in wire.core.take()] == [0, 1, 2]
    with pytest.raises(StoreDamaged, match="queue 0, offset 3") as raised:
        wire.core.take()
    assert raised.value.queue_offset == 3 and wire.core.positions == {0: 3}


def test_what_is_made_before_something_that_cannot_be_made_is_taken_and_then_that_is_raised(
    make_reader: WireMaker, make_consumer: WireMaker
) -> None:
    """As rows cannot be made of a body that has changed. Nothing is passed over by that."""

    def of_part(part: Part) -> tuple[list[int], bool]:
        if part.queue_id == 1:
            raise UnreadableBody("its bytes have changed", "queue 1, offset 0")
        return [part.queue_id], False

    wire = make_consumer(make_reader())
    wire.reader.append(0, 2)
    wire.reader.append(1, 2)
    arrive(wire, answers=1 + 2, at_most=2)
    assert wire.core.take_as(of_part, list) == [0]
    with pytest.raises(UnreadableBody):
        wire.core.take_as(of_part, list)
    assert wire.core.positions == wire.core.cursors == {0: 2, 1: 0}, "it is asked for again"
    assert [(queue, offset) for queue, offset, _ in wire.run()] == [(1, 0), (1, 1)]
