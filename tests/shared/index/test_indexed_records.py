"""Which records have to be looked at: exactly the candidates, and those that the file has not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.index.indexed_records import IndexedRecords

OFFSETS = st.lists(st.integers(0, 20), max_size=12)


@given(OFFSETS, st.sets(st.integers(0, 20)), OFFSETS)
def test_a_record_is_passed_over_where_the_file_has_it_under_other_keys_alone(
    offsets: list[int], chosen: set[int], records: list[int]
) -> None:
    candidates = sorted(chosen & {*offsets})
    found = IndexedRecords(
        np.array(sorted(offsets), np.int64), np.array(candidates, np.int64)
    ).may_match(np.array(records, np.int64))
    assert found.tolist() == [each not in offsets or each in candidates for each in records]
