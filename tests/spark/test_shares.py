"""A limit shared out among queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.shares import share

QUEUES = st.dictionaries(
    st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 1 << 40)), max_size=6
)


@given(QUEUES, st.integers(1, 1 << 41))
def test_the_limit_is_used_and_kept_and_every_queue_gets_its_part(
    queues: dict[int, tuple[int, int]], most: int
) -> None:
    starts = {key: start for key, (start, _) in queues.items()}
    ends = {key: start + count for key, (start, count) in queues.items()}
    found = share(starts, ends, most)
    total = sum(count for _, count in queues.values())
    assert sum(found[key] - starts[key] for key in queues) == min(most, total)
    for key, (start, count) in queues.items():
        assert start <= found[key] <= ends[key]
        if total > most:
            assert abs((found[key] - start) - most * count / total) <= 1 + 1e-6 * most
