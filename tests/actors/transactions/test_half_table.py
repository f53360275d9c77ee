"""The table of half messages against a plain model: a dictionary."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.transactions import half_table
from penstock.actors.transactions.half_table import COMMITTED, MOST_CHECKS, ROLLED_BACK, HalfTable

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["grow", "commit", "rollback", "check"]), st.integers(0, 30)),
    max_size=60,
)


@given(st.integers(0, 1 << 40), ACTIONS)
def test_it_says_what_a_dictionary_says(base: int, actions: list[tuple[str, int]]) -> None:
    table, model = HalfTable(base), dict[int, int]()
    for action, number in actions:
        offset = base + number
        if action == "grow":
            for each in range(table.end, offset):
                model[each] = 0
            table.extend(offset)
        elif action == "check":
            if table.is_open(offset):
                table.count_check(offset)
                model[offset] += 1
        else:
            state = COMMITTED if action == "commit" else ROLLED_BACK
            is_open = model.get(offset, COMMITTED) <= MOST_CHECKS
            assert table.finish(offset, state) == is_open
            if is_open:
                model[offset] = state
        left = [each for each, state in model.items() if state <= MOST_CHECKS]
        assert list(table.open_from(base)) == left
        assert table.open == len(left)
        assert table.oldest == min(left, default=table.end)
        assert {each: table.state(each) for each in model} == model


def test_what_has_ended_long_ago_is_forgotten_and_what_is_open_never_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_table, "REMEMBERED", 100)
    monkeypatch.setattr(half_table, "_FORGOTTEN_AT_ONCE", 10)
    table = HalfTable(0)
    table.extend(1000)
    for offset in range(500):
        table.finish(offset, COMMITTED)
    assert table.forget() == 400 and table.base == 400
    assert table.state(400) == COMMITTED and list(table.open_from(0)) == list(range(500, 1000))
    with pytest.raises(IndexError):
        table.state(399)
    table.finish(600, COMMITTED)
    assert table.forget() == 0 and table.oldest == 500


def test_a_million_open_ones_take_a_megabyte() -> None:
    table = HalfTable(0)
    table.extend(1_000_000)
    assert table.open == 1_000_000 and table.size_bytes == 1_000_000
    assert sys.getsizeof(table._states) < 1_300_000


def test_one_whose_producer_was_asked_more_often_than_is_counted_is_open_and_may_end() -> None:
    table = HalfTable(5)
    table.extend(7)
    for _ in range(2 * MOST_CHECKS):
        table.count_check(5)
    assert table.state(5) == MOST_CHECKS and table.is_open(5)
    assert list(table.open_from(0)) == [5, 6]
    assert table.finish(5, COMMITTED) and not table.is_open(5) and table.oldest == 6
