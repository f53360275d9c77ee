"""Durations that are counted: their sum, and how many there were up to each bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.memory.durations import BUCKETS, bucket_of
from penstock.shared.memory.positions import HISTOGRAMS, Positions, create_positions

NAMES = [each.name for each in HISTOGRAMS]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1 << 45) | st.integers(0, 9_000_000)))
)
def test_each_duration_is_counted_in_its_own_bucket_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, counted: list[tuple[str, int]]
) -> None:
    page = tmp_path_factory.mktemp("page") / "positions"
    create_positions(page)
    model = {name: (0, [0] * BUCKETS) for name in NAMES}
    for each in HISTOGRAMS:
        positions = Positions(page, each.owner)
        for name, duration_ns in counted:
            if name == each.name:
                positions.count_duration(name, duration_ns)
                total, buckets = model[name]
                buckets[bucket_of(duration_ns)] += 1
                model[name] = total + duration_ns, buckets
        positions.close()
    seen = Positions(page, "")
    assert {name: seen.durations(name) for name in NAMES} == model
    seen.close()
