"""Durations that are counted: their sum, and how many there were up to each bound."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.memory.durations import BUCKETS, bucket_of, quantile_ns, upper_ns
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


# from 16,384 ns on each doubling has four buckets of one width
ENDS_NS = [(5 + each % 4) * (1 << each // 4 + 12) for each in range(BUCKETS)]
DURATIONS_NS = st.integers(0, 1 << 40) | st.sampled_from(
    [each + off for each in [0, 1, 2, 3, 4, *ENDS_NS] for off in (-1, 0, 1) if each + off >= 0]
)


@given(DURATIONS_NS)
def test_a_duration_is_in_the_first_bucket_that_ends_after_it(duration_ns: int) -> None:
    assert [upper_ns(each) for each in range(BUCKETS)] == ENDS_NS
    assert bucket_of(duration_ns) == min(bisect_right(ENDS_NS, duration_ns), BUCKETS - 1)


@given(st.lists(DURATIONS_NS), st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_a_quantile_is_the_end_of_the_bucket_of_the_duration_that_a_sorted_list_has_there(
    durations_ns: list[int], share: float
) -> None:
    counts = [0] * BUCKETS
    for each in durations_ns:
        counts[bucket_of(each)] += 1
    if not durations_ns:
        assert quantile_ns(counts, share) is None
        return
    there = sorted(durations_ns)[ceil(share * len(durations_ns)) - 1]
    assert quantile_ns(counts, share) == upper_ns(bucket_of(there))


def test_none_is_shorter_than_the_shortest_that_was_counted() -> None:
    counts = [0] * BUCKETS
    counts[7] = counts[9] = 1
    assert [quantile_ns(counts, share) for share in (0, 0.5, 1)] == [
        upper_ns(7), upper_ns(7), upper_ns(9),
    ]  # fmt: skip
