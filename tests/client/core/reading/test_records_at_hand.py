"""Records that have come and are not taken, compared with a plain list of parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.message import Part
from penstock.client.core.reading.records_at_hand import (
    AHEAD_BYTES,
    DIRECT_AHEAD_BYTES,
    DIRECT_PULL_BYTES,
    PULL_BYTES,
    RecordsAtHand,
    pull_bytes,
)


def part(queue_id: int, start: int, size: int) -> Part:
    return Part(queue_id, start, start + 1, start + 1, b"", (7, 7 + size))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "pop", "split", "drop", "all"]),
            st.integers(0, 2),
            st.integers(0, 9),
        )
    )
)
def test_each_queue_has_its_first_offset_and_all_bytes_are_counted(
    steps: list[tuple[str, int, int]],
) -> None:
    at_hand, model = RecordsAtHand(), list[Part]()

    def starts(parts: list[Part]) -> dict[int, int]:
        found: dict[int, int] = {}
        for each in parts:
            found.setdefault(each.queue_id, each.start)
        return found

    for number, (what, queue_id, size) in enumerate(steps):
        if what == "put":
            at_hand.put(part(queue_id, number, size))
            model.append(part(queue_id, number, size))
        elif what == "all":
            assert at_hand.drop() == starts(model)
            model = []
        elif what == "drop":
            gone = [each for each in model if each.queue_id == queue_id]
            assert at_hand.drop(queue_id) == starts(gone)
            model = [each for each in model if each.queue_id != queue_id]
        elif model and what == "pop":
            at_hand.pop()
            del model[0]
        elif model:
            first = model[0]
            pieces = [part(first.queue_id, first.start, 0), part(first.queue_id, 99, first.size)]
            at_hand.split_first(*pieces)
            model[:1] = pieces
        assert bool(at_hand) == bool(model) and at_hand.starts == starts(model)
        assert at_hand.size_bytes == sum(each.size for each in model)
        assert not model or at_hand.first == model[0]


@pytest.mark.parametrize(
    ("direct", "pull", "ahead"),
    [(False, PULL_BYTES, AHEAD_BYTES), (True, DIRECT_PULL_BYTES, DIRECT_AHEAD_BYTES)],
)
def test_no_more_is_asked_for_once_this_much_waits(direct: bool, pull: int, ahead: int) -> None:
    at_hand = RecordsAtHand()
    assert pull_bytes(direct) == pull and not at_hand.is_enough(direct)
    at_hand.put(part(0, 0, ahead - 1))
    assert not at_hand.is_enough(direct)
    at_hand.put(part(0, 1, 1))
    assert at_hand.is_enough(direct)
