"""Consume queue entries: the golden vectors, and which of them lead nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.delay_levels import delay_due_ms
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY, all_lead_somewhere, tags_code

ST = 1700000001456


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


# around each byte of a size and the sign of both numbers
SIZES = st.sampled_from((-(1 << 31), -1, 0, 1, 255, 256, 65536, 1 << 24, 0x7FFFFFFF))
OFFSETS = st.sampled_from((-(1 << 63), -1, 0, 1, (1 << 63) - 1))


@given(st.lists(st.tuples(OFFSETS, SIZES, st.integers(-(1 << 63), (1 << 63) - 1))))
def test_entries_lead_somewhere_if_none_has_a_size_below_1_or_an_offset_below_0(
    rows: list[tuple[int, int, int]],
) -> None:
    raw = b"".join(ENTRY.pack(*row) for row in rows)
    assert all_lead_somewhere(raw) == all(at >= 0 and size > 0 for at, size, _ in rows)
