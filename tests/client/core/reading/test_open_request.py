"""What a consumer waits for: which answers are of use, and what is sent again."""

from __future__ import annotations

import pytest

from penstock.client.core.reading.open_request import OpenRequest
from penstock.client.core.timeouts import MAX_REPEAT_MS, REPEAT_MS
from penstock.shared.errors import NoPermission, ProtocolError
from penstock.shared.wire.messages import Pulled, QueueSlice, refusal

RUN = "0" * 16


def asked() -> OpenRequest:
    """A pull that was sent at 0 ms, and has the number 1."""
    request = OpenRequest(timeout_ms=10_000, hears_losses=True)
    request.repeats.begin(0)
    assert request.next_number() == 1
    assert request.put(b"pull", RUN) == b"pull"
    return request


def pulled(credit: int, *slices: tuple[int, int, int], number: int = 1) -> Pulled:
    """An answer: of each slice the queue, where it begins, and where it ends."""
    parts = tuple(QueueSlice(queue, at, to, 0, to, 100) for queue, at, to in slices)
    return Pulled(number, parts, (0, 1), RUN, credit=credit)


def test_a_pull_with_credit_left_waits_for_the_next_answer_and_without_it_is_over() -> None:
    request = asked()
    for credit, at in ((2, 0), (1, 1), (0, 2)):
        answer = pulled(credit, (0, at, at + 1))
        assert request.is_answered_by(answer)
        assert request.take(answer, {0: at, 1: 7}, 10)
        assert request.is_open == (credit > 0)
    assert not request.is_answered_by(pulled(0, (0, 3, 4)))


@pytest.mark.parametrize("at", [0, 2])
def test_an_answer_that_came_twice_or_after_one_that_got_lost_is_of_no_use(at: int) -> None:
    request = asked()
    assert request.take(pulled(5, (0, 0, 1)), {0: 0}, 10)
    assert not request.take(pulled(4, (0, at, at + 1)), {0: 1}, 20)
    assert not request.is_open, "another pull says where the consumer is"
    assert not request.is_answered_by(pulled(3, (0, 1, 2)))


def test_nor_is_one_that_is_right_for_one_queue_alone() -> None:
    request = asked()
    assert request.take(pulled(5, (0, 0, 1)), {0: 0, 1: 0}, 10)
    assert not request.take(pulled(4, (0, 1, 2), (1, 1, 2)), {0: 1, 1: 0}, 20)


@pytest.mark.parametrize("slices", [(0, 1, 2), (7, 0, 1)])
def test_a_first_answer_that_begins_elsewhere_is_no_answer_of_a_broker(
    slices: tuple[int, int, int],
) -> None:
    for credit in (0, 5):
        request = asked()
        with pytest.raises(ProtocolError, match="begins where nobody asked"):
            request.take(pulled(credit, slices), {0: 0}, 10)
        assert not request.is_open, "the next one is asked for at once"


def test_only_a_pull_without_an_answer_is_sent_again_as_it_was_and_to_the_same_run() -> None:
    request = asked()
    assert not request.has_to_change(RUN)
    assert request.has_to_change("1" * 16)
    assert request.take(pulled(5, (0, 0, 1)), {0: 0}, 10)
    assert request.has_to_change(RUN), "it says where the consumer was"
    request.put(b"another", RUN)
    assert not request.has_to_change(RUN)


def test_each_answer_is_a_sign_of_life_after_which_a_repeat_has_its_usual_time() -> None:
    request = asked()
    now_ms = 0
    while request.repeats.wait_ms(now_ms) < MAX_REPEAT_MS:
        now_ms += request.repeats.wait_ms(now_ms)
        assert request.repeats.take_due(now_ms)
    assert request.take(pulled(5, (0, 0, 1)), {0: 0}, now_ms)
    assert request.repeats.wait_ms(now_ms) == REPEAT_MS


def test_a_refusal_without_a_number_is_an_answer_to_whatever_is_open() -> None:
    request = asked()
    unread, other = (refusal(NoPermission("no", "orders"), number) for number in (0, 2))
    assert request.is_answered_by(unread) and not request.is_answered_by(other)
    assert request.take(unread, {0: 0}, 10)
    assert not request.is_open and not request.is_answered_by(unread)
