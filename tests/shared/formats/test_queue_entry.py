"""Consume queue entries: the golden vectors, and the codec against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.queue_entry import (
    BLANK_ENTRY,
    DELAY_LEVELS_MS,
    ENTRY,
    delay_due_ms,
    tags_code,
)
from penstock.shared.formats.queue_entry_arrays import ENTRY_DTYPE, entries

ST = 1700000001456

i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
rows = st.lists(st.tuples(i64, i32, i64), max_size=50)


@pytest.mark.parametrize(
    ("offset", "size", "code", "golden"),
    [
        (0, 175, tags_code("TagA"), "0000000000000000 000000af 000000000027a807"),
        (175, 116, tags_code("中文标签"), "00000000000000af 00000074 0000000025139ad1"),
        (410, 162, delay_due_ms(3, ST + 2700), "000000000000019a 000000a2 0000018bcfe59f4c"),
    ],
)
def test_a_golden_entry_encodes_to_its_bytes(
    offset: int, size: int, code: int, golden: str
) -> None:
    assert ENTRY.pack(offset, size, code) == bytes.fromhex(golden)


def test_a_blank_entry_has_the_largest_size() -> None:
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == BLANK_ENTRY


def test_no_tags_have_the_code_0() -> None:
    assert tags_code("") == 0


def test_a_tags_code_is_sign_extended() -> None:
    assert ENTRY.pack(0, 1, tags_code("polygenelubricants"))[12:] == bytes.fromhex(
        "ffffffff80000000"
    )


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [(1, 1000), (2, 5000), (4, 30_000), (5, 60_000), (14, 600_000), (16, 1_800_000)]
    + [(17, 3_600_000), (18, 7_200_000), (19, 7_200_000), (99, 7_200_000)],
)
def test_a_level_is_due_after_its_delay_and_the_highest_level_is_the_limit(
    level: int, delay_ms: int
) -> None:
    assert delay_due_ms(level, ST) == ST + delay_ms


def test_there_are_18_levels_each_longer_than_the_one_before() -> None:
    assert list(DELAY_LEVELS_MS) == sorted(set(DELAY_LEVELS_MS))


@given(rows)
def test_the_array_shows_what_was_packed(table: list[tuple[int, int, int]]) -> None:
    raw = b"".join(ENTRY.pack(*row) for row in table)
    assert entries(raw).dtype == ENTRY_DTYPE
    assert [row.tolist() for row in entries(raw)] == table
