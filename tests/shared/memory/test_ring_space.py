"""The space of a ring, compared with a plain model: a list that says whose each byte is."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.shared.memory.ring_space import ALIGNMENT, RingSpace

SIZE = 16 * ALIGNMENT


class Span:
    """One span of the model."""

    def __init__(self, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length
        self.is_live = True

    @property
    def stop(self) -> int:
        return self.offset + max(1, self.length)


class AnySpace(RuleBasedStateMachine):
    """Spans taken, shortened and given back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.space = RingSpace(SIZE)
        # from the oldest live one on, in the order in which they were taken
        self.spans: list[Span] = []

    @rule(length=st.integers(0, SIZE + 2) | st.integers(0, 3 * ALIGNMENT))
    def take(self, length: int) -> None:
        offset = self.space.take(length)
        if offset < 0:
            assert length + ALIGNMENT > self._free_in_a_row()
            return
        taken = Span(offset, length)
        assert 0 <= offset <= taken.stop <= SIZE and offset % ALIGNMENT == 0
        for each in self._live():
            assert taken.stop <= each.offset or each.stop <= offset, "bytes that are taken"
        self.spans.append(taken)

    @precondition(lambda self: self.spans and self.spans[-1].is_live)
    @rule(part=st.integers(0, 100))
    def shorten(self, part: int) -> None:
        last = self.spans[-1]
        last.length = last.length * part // 100
        self.space.shorten(last.length)

    @precondition(lambda self: self.spans)
    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        given = self._live()[which % len(self._live())]
        self.space.give_back(given.offset)
        given.is_live = False
        while self.spans and not self.spans[0].is_live:
            del self.spans[0]

    @rule()
    def clear(self) -> None:
        self.space.clear()
        self.spans.clear()

    @invariant()
    def an_empty_ring_begins_at_its_start(self) -> None:
        if not self.spans:
            assert self.space.take(SIZE) == 0
            self.space.give_back(0)

    def _live(self) -> list[Span]:
        return [each for each in self.spans if each.is_live]

    def _free_in_a_row(self) -> int:
        """After the newest span, up to the oldest one or the ring's end; or before the oldest."""
        if not self.spans:
            return SIZE
        oldest, newest = self.spans[0].offset, self.spans[-1]
        if newest.offset < oldest:
            return oldest - newest.stop
        return max(SIZE - newest.stop, oldest)


TestAnySpace = AnySpace.TestCase
TestAnySpace.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_frames_answered_in_order_go_round_and_round() -> None:
    space = RingSpace(SIZE)
    seen = []
    after = space.take(3 * ALIGNMENT)
    for _ in range(20):
        taken = space.take(3 * ALIGNMENT)
        assert taken >= 0
        seen.append(taken)
        space.give_back(after)
        after = taken
    assert len(set(seen)) > 3, "the whole ring is used"


def test_what_is_given_back_out_of_order_is_free_when_all_before_it_is() -> None:
    space = RingSpace(4 * ALIGNMENT)
    spans = [space.take(ALIGNMENT) for _ in range(4)]
    assert spans == [0, 64, 128, 192] and space.take(1) == -1
    space.give_back(spans[1])
    assert space.take(1) == -1
    space.give_back(spans[0])
    assert space.take(2 * ALIGNMENT) == 0


def test_a_span_that_is_given_back_twice_is_an_error() -> None:
    space = RingSpace(SIZE)
    at = space.take(1)
    space.give_back(at)
    with pytest.raises(KeyError):
        space.give_back(at)
