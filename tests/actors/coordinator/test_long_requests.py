"""Long requests have their steps in turns, and each has one answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.coordinator import long_requests
from penstock.actors.coordinator.long_requests import TURN_MS, LongRequests, Work
from penstock.shared.errors import BrokerBusy, TopicNotFound

PEER = b"peer"


class Bench:
    """Requests whose steps are noted, and a clock that each step moves."""

    def __init__(self) -> None:
        self.now_ms = 7
        self.long = LongRequests(lambda: self.now_ms)
        # whose they were, and whether it waits for somebody else since
        self.steps: list[tuple[int, bool]] = []

    def add(self, number: int, steps: list[tuple[bool, int]], is_refused: bool = False) -> None:
        """`steps`: whether it waits for somebody else then, and how long the step takes."""
        self.long.add(number, PEER, number, self.work(number, steps, is_refused))

    def work(self, number: int, steps: list[tuple[bool, int]], is_refused: bool = False) -> Work:
        for waits, took_ms in steps:
            self.steps.append((number, waits))
            self.now_ms += took_ms
            yield waits or None
        self.steps.append((number, False))
        if is_refused:
            raise TopicNotFound("there is no topic of this name", number)
        return number

    def turn(self) -> dict[int, Any]:
        """The answers that there are now, by request."""
        ended = self.long.work()
        found = {request: answer for peer, request, answer in ended if peer == PEER}
        assert len(found) == len(ended)
        return found


scripts = st.tuples(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 1, 3, 9])), max_size=6), st.booleans()
)


@given(st.lists(st.lists(scripts, max_size=6), min_size=1, max_size=4))
def test_each_has_its_steps_in_turn_and_one_answer(groups: list[Any]) -> None:
    it, wanted, found = Bench(), dict[int, bool](), dict[int, Any]()
    waiting: list[int] = []  # whose last step is longest ago comes first
    while groups or waiting:
        for steps, is_refused in groups.pop() if groups else ():
            number = len(wanted)
            it.add(number, steps, is_refused)
            assert it.long.busy and it.long.waits
            wanted[number] = is_refused
            waiting.append(number)
        it.steps, until_ms = [], it.now_ms + TURN_MS
        ended = it.turn()
        assert not ended.keys() & found.keys()
        found |= ended
        later = [number for number, _ in it.steps]
        for _ in it.steps:
            number = later.pop(0)
            assert number == waiting.pop(0), "whose turn it is"
            if number not in ended or number in later:
                waiting.append(number)
        assert it.long.waits == bool(waiting)
        last = dict(it.steps)
        assert it.long.busy == (not all(last.get(number, False) for number in waiting))
        assert it.now_ms >= until_ms or not it.long.busy, "time was left"
    for number, is_refused in wanted.items():
        assert isinstance(found[number], TopicNotFound) if is_refused else found[number] == number


def test_a_turn_ends_in_time_and_begins_with_the_one_that_waited_longest() -> None:
    it = Bench()
    for number in range(3):
        it.add(number, [(False, TURN_MS)] * 2)
    for number in (0, 1, 2, 0, 1, 2):
        assert it.turn() == {} and it.steps.pop() == (number, False) and not it.steps
    assert it.turn() == {0: 0, 1: 1, 2: 2} and not it.long.busy


def test_the_same_request_is_not_begun_twice_and_another_takes_its_place() -> None:
    it = Bench()
    it.long.add("key", PEER, 1, it.work(1, [(True, 0)] * 3))
    assert it.turn() == {} and not it.long.busy
    again = it.work(2, [])
    it.long.add("key", PEER, 1, again)
    assert next(again, "closed") == "closed" and not it.long.busy
    assert it.turn() == {} and it.steps == [(1, True)] * 2
    it.long.add("key", PEER, 2, it.work(2, []))
    assert it.long.busy and it.turn() == {2: 2} and not it.long.waits
    # of another asker with the same number it is another one
    it.long.add("key", PEER, 3, it.work(3, [(True, 0)]))
    it.long.add("key", b"other", 3, it.work(4, []))
    assert it.long.work() == [(b"other", 3, 4)]


def test_a_request_too_many_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_requests, "MAX_WAITING", 2)
    it = Bench()
    for number in (1, 2):
        it.add(number, [(True, 0)])
    with pytest.raises(BrokerBusy) as refused:
        it.add(3, [])
    assert refused.value.retry_after_ms == long_requests.BUSY_MS
    it.long.add(2, PEER, 4, it.work(4, []))  # in the place of one that is there
    assert it.turn() == {4: 4} and it.turn() == {1: 1}
    it.add(3, [])
    assert it.turn() == {3: 3}
