"""Entries as arrays, against the same entries as plain tuples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.queue.entry_arrays import ENTRY_DTYPE, entries

i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
rows = st.lists(st.tuples(i64, i32, i64), max_size=50)


@given(rows)
def test_the_array_shows_what_was_packed(table: list[tuple[int, int, int]]) -> None:
    raw = b"".join(ENTRY.pack(*row) for row in table)
    assert entries(raw).dtype == ENTRY_DTYPE
    assert [row.tolist() for row in entries(raw)] == table
