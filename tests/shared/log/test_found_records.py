"""Whether found records go through the socket, or only their place does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.log.found_records import (
    LEAST_DIRECT_BYTES,
    LEAST_RANGE_BYTES,
    FoundRecords,
    places_of,
    ranges_of,
)
from penstock.shared.loops.forms import RANGE
from penstock.shared.wire.pulled_parts import Place


@given(st.lists(st.lists(st.integers(1, 50_000), min_size=1, max_size=9), max_size=4))
def test_only_what_is_much_and_lies_together_has_places(sizes: list[list[int]]) -> None:
    found = []
    for number, lengths in enumerate(sizes):
        base = number << 20
        packed = b"".join(RANGE.pack(base, base + length) for length in lengths)
        found.append(FoundRecords(memoryview(b""), base, packed, sum(lengths)))
    size, count = sum(map(sum, sizes)), sum(map(len, sizes))
    places = places_of(found)
    if size >= LEAST_DIRECT_BYTES and size >= LEAST_RANGE_BYTES * count:
        assert places == tuple(Place(n << 20, len(each)) for n, each in enumerate(sizes))
        assert len(ranges_of(found)) == RANGE.size * count
    else:
        assert places == ()


@pytest.mark.parametrize(("count", "size"), [(1, LEAST_DIRECT_BYTES), (9, 9 * LEAST_RANGE_BYTES)])
@pytest.mark.parametrize("less", [0, 1])
def test_just_enough_has_places_and_a_byte_less_has_none(count: int, size: int, less: int) -> None:
    found = FoundRecords(memoryview(b""), 4096, bytes(count * RANGE.size), size - less)
    assert places_of([found]) == (() if less else (Place(4096, count),))
    assert places_of([found._replace(is_copy=True)]) == ()
    assert places_of([found, found._replace(is_copy=True)]) == (), "one of them is in no file yet"
