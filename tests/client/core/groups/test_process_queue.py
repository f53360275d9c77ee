"""What is in hand of a queue, compared with a plain model: a dictionary of offsets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from penstock.client.core.groups.process_queue import Handful, ProcessQueue
from penstock.client.core.message import Message
from penstock.shared.formats.record import Record, encode_record


def message(offset: int) -> Message:
    return Message(encode_record(Record("orders", b"x", queue_offset=offset)))


class AnyUse(RuleBasedStateMachine):
    """Messages come with gaps; handfuls are finished, parted, cut and given back in any order, and
    whoever had one that was given back may finish it all the same."""

    orderly = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue("orders", 0, 10, 1, self.orderly)
        self.next = 10
        self.unfinished: set[int] = set()
        self.out: list[Handful] = []
        self.given_back: list[Handful] = []
        self.now_ms = 0
        # each offset that waits to be handed out, and from when on
        self.waiting: dict[int, int] = {}

    def offsets(self, handful: Handful) -> list[int]:
        places = handful.unfinished
        return [handful.lot.messages[place].queue_offset for place in places]

    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), rest=st.integers(0, 2))
    def messages_come(self, gaps: list[int], rest: int) -> None:
        made, at = [], self.next
        for gap in gaps:
            at += gap
            made.append(at)
            at += 1
        self.next = at + rest
        self.queue.put([message(each) for each in made], 10 * len(made), self.next)
        self.unfinished |= set(made)
        self.waiting |= dict.fromkeys(made, 0)

    @rule(most=st.integers(1, 4))
    def some_are_handed_out(self, most: int) -> None:
        due = [each for each, when in self.waiting.items() if when <= self.now_ms]
        handful = self.queue.take(most, self.now_ms)
        if self.orderly and self.out or self.now_ms < self.queue.suspended_until_ms:
            assert handful is None
        elif handful is None:
            # an orderly queue waits for its oldest message
            assert not due or self.orderly and min(self.unfinished) not in due
        else:
            found = self.offsets(handful)
            assert 1 <= len(found) <= most
            assert set(found) <= set(due)
            assert [each.queue_offset for each in handful.messages] == found, "and nothing else"
            assert found == sorted(found)
            if self.orderly:
                assert found[0] == min(self.unfinished)
            for each in found:
                del self.waiting[each]
            self.out.append(handful)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def some_are_finished(self, data: st.DataObject) -> None:
        self._finish(data, data.draw(st.sampled_from(self.out)))

    @precondition(lambda self: self.given_back)
    @rule(data=st.data())
    def some_are_finished_that_were_given_back(self, data: st.DataObject) -> None:
        self._finish(data, data.draw(st.sampled_from(self.given_back)))

    def _finish(self, data: st.DataObject, handful: Handful) -> None:
        start = data.draw(st.integers(handful.start, handful.stop - 1))
        stop = data.draw(st.integers(start + 1, handful.stop))
        places = [each for each in handful.unfinished if start <= each < stop]
        done = {handful.lot.messages[each].queue_offset for each in places}
        self.unfinished -= done
        self.waiting = {each: when for each, when in self.waiting.items() if each not in done}
        self.queue.finish(handful, start, stop)
        self._forget_finished()

    @precondition(lambda self: self.out and not self.orderly)
    @rule(data=st.data())
    def one_goes_its_own_way(self, data: st.DataObject) -> None:
        handful = data.draw(st.sampled_from(self.out))
        places = list(handful.unfinished)
        if not places:
            return  # whoever had them before has finished them
        place = data.draw(st.sampled_from(places))
        self.out.append(self.queue.part(handful, place))
        self._forget_finished()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), later_ms=st.sampled_from([0, 50]))
    def one_is_given_back(self, data: st.DataObject, later_ms: int) -> None:
        handful = data.draw(st.sampled_from(self.out))
        if data.draw(st.booleans()):
            place = data.draw(st.integers(handful.start, handful.stop - 1))
            rest = self.queue.cut(handful, place)
            if self.queue.holds(rest):
                self.out.append(rest)
            handful = rest
        self.waiting |= dict.fromkeys(self.offsets(handful), self.now_ms + later_ms)
        self.queue.give_back(handful, self.now_ms + later_ms)
        self.given_back.append(handful)
        self._forget_finished()

    def _forget_finished(self) -> None:
        self.out = [each for each in self.out if self.queue.holds(each)]

    @rule(later_ms=st.sampled_from([20, 70]))
    def nothing_is_handed_out_for_a_while(self, later_ms: int) -> None:
        self.queue.suspended_until_ms = self.now_ms + later_ms

    @rule()
    def time_passes(self) -> None:
        self.now_ms += 50

    @invariant()
    def nothing_is_committed_above_what_is_unfinished(self) -> None:
        assert self.queue.committable == min(self.unfinished, default=self.next)
        assert self.queue.count == len(self.unfinished)
        assert self.queue.is_idle == (not self.out)
        if not self.unfinished:
            assert self.queue.bytes == 0

    @invariant()
    def it_counts_what_is_not_done_below_any_offset(self) -> None:
        for offset in range(10, self.next + 2):
            expected = sum(each < offset for each in self.unfinished)
            assert self.queue.unfinished_below(offset) == expected

    @invariant()
    def it_says_when_the_next_is_due(self) -> None:
        due_ms = self.queue.due_ms()
        if not self.waiting:
            assert due_ms > 1 << 60
        elif not (self.orderly and self.out):  # else the one in hand is waited for
            assert self.queue.has_work(due_ms)
            assert not self.queue.has_work(due_ms - 1)

    @invariant()
    def nothing_is_in_two_hands(self) -> None:
        found = [each for handful in self.out for each in self.offsets(handful)]
        assert len(found) == len(set(found))
        assert not set(found) & self.waiting.keys()
        assert set(found) | self.waiting.keys() == self.unfinished


class OrderlyUse(AnyUse):
    orderly = True


def test_what_is_finished_after_it_was_given_back_leaves_no_empty_handful() -> None:
    queue = ProcessQueue("orders", 0, 10, 1, False)
    queue.put([message(each) for each in (10, 11)], 20, 12)
    all_of_it = queue.take(2, 0)
    assert all_of_it is not None
    queue.give_back(all_of_it, 0)
    queue.finish(all_of_it, 1, 2)  # its handler has come to an end after all
    first = queue.take(1, 0)
    assert first is not None and [each.queue_offset for each in first.messages] == [10]
    assert queue.take(1, 0) is None and not queue.has_returned


def test_what_was_given_back_for_sooner_does_not_wait_for_what_is_due_later() -> None:
    queue = ProcessQueue("orders", 0, 10, 1, False)
    queue.put([message(each) for each in (10, 11)], 20, 12)
    first, second = queue.take(1, 0), queue.take(1, 0)
    assert first is not None and second is not None
    queue.give_back(first, 100)
    queue.give_back(second, 50)
    assert not queue.has_work(49)
    assert queue.has_work(50)
    sooner = queue.take(2, 50)
    assert sooner is not None and [each.queue_offset for each in sooner.messages] == [11]
    assert not queue.has_work(99)


def test_any_use_is_as_the_model_says() -> None:
    run(AnyUse, settings=settings(max_examples=150, stateful_step_count=40))


def test_an_orderly_queue_is_handed_out_from_its_oldest_message_on() -> None:
    run(OrderlyUse, settings=settings(max_examples=150, stateful_step_count=40))


def test_a_queue_is_full_by_count_bytes_and_span() -> None:
    queue = ProcessQueue("orders", 0, 0, 1, False)
    limits: Any = {"max_messages": 3, "max_bytes": 100, "max_span": 10}
    assert not queue.is_full(**limits)
    queue.put([message(0), message(10)], 50, 11)
    assert queue.is_full(**limits)  # the span
    handful = queue.take(1, 0)
    assert handful is not None
    queue.finish(handful, 0, 1)
    assert not queue.is_full(**limits)
    queue.put([message(11), message(12)], 1, 13)
    assert queue.is_full(**limits)  # the count
    big = ProcessQueue("orders", 0, 0, 1, False)
    big.put([message(0)], 100, 1)
    assert big.is_full(**limits)
    orderly = ProcessQueue("orders", 0, 0, 1, True)
    orderly.put([message(0), message(10)], 50, 11)
    assert not orderly.is_full(**limits), "what it waits for is always its oldest message"


def test_an_offset_that_a_filter_has_passed_is_committed() -> None:
    queue = ProcessQueue("orders", 0, 5, 1, False)
    queue.put([], 0, 900)
    assert queue.committable == 900


def test_what_is_in_hand_longest_is_found() -> None:
    queue = ProcessQueue("orders", 0, 0, 1, False)
    queue.put([message(0), message(1)], 2, 2)
    first, second = queue.take(1, 1000), queue.take(1, 2000)
    assert first is not None and second is not None
    assert queue.held_since(1500) == [first]
    assert queue.held_since(1000) == []
    queue.finish(first, 0, 1)
    assert queue.held_since(2500) == [second]


def test_failures_are_counted_until_their_message_is_done() -> None:
    queue = ProcessQueue("orders", 0, 0, 1, False)
    queue.put([message(0), message(1)], 2, 2)
    queue.failures = {0: 1, 1: 2}
    handful = queue.take(2, 1000)
    assert handful is not None
    queue.finish(handful, 0, 1)
    assert queue.failures == {1: 2}
    queue.finish(handful, 1, 2)
    assert queue.failures == {}


def test_an_orderly_message_that_comes_back_alone_comes_before_those_that_came_back_with_it() -> (
    None
):
    queue = ProcessQueue("orders", 0, 0, 1, True)
    queue.put([message(0), message(1), message(2)], 3, 3)
    for most in (3, 1, 1):
        handful = queue.take(most, 1000)
        assert handful is not None and handful.messages[0].queue_offset == 0
        queue.give_back(handful, 1000)


@pytest.mark.parametrize(("given", "known"), [(None, 5), (0, 0), (9, 9)])
def test_a_queue_remembers_the_offset_that_came_with_its_claim(
    given: int | None, known: int
) -> None:
    assert ProcessQueue("orders", 0, 5, 1, False, given).given == known
