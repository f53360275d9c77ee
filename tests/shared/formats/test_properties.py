"""The properties string: what RocketMQ writes and reads, against a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import decode_properties, encode_properties, find_property

GOLDEN_A = bytes.fromhex(
    "54414753 01 54616741 02 4b455953 01 6b31206b3220206b33 02 554e49515f4b4559 01"
    "4143313130323033314132423138423441414332303030303030303030303031 02"
)
FIELDS_A = {"TAGS": "TagA", "KEYS": "k1 k2  k3", "UNIQ_KEY": "AC1102031A2B18B4AAC2000000000001"}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\1\2"), min_size=1, max_size=20)
tables = st.dictionaries(texts, texts, max_size=6)
# strings that are mostly separators, which a plain text strategy seldom makes
broken = st.lists(st.sampled_from(["\1", "\2", "a", "TAGS", "KEYS", "é"]), max_size=14).map("".join)


def test_the_golden_properties_encode_and_decode() -> None:
    assert encode_properties(FIELDS_A) == GOLDEN_A
    assert decode_properties(GOLDEN_A) == FIELDS_A


@given(tables)
def test_every_table_comes_back_with_or_without_the_last_separator(table: dict[str, str]) -> None:
    raw = encode_properties(table)
    assert decode_properties(raw) == table
    assert decode_properties(raw[:-1] if raw else raw) == table


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a\1b\2a\1c\2", {"a": "c"}),
        (b"a\1b\1c\2", {"a": "b\1c"}),
        (b"\1b\2a\1\2c\2d\1e\2", {"d": "e"}),
        (b"\2\2a\1b", {"a": "b"}),
        (b"a\1\xff\2", {"a": "�"}),
        (b"", {}),
    ],
)
def test_odd_strings_are_read_as_rocketmq_reads_them(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected


@given(broken)
def test_one_property_is_found_as_the_whole_decoding_has_it(text: str) -> None:
    raw = text.encode()
    decoded = decode_properties(raw)
    for key in ("TAGS", "KEYS", "a"):
        assert find_property(raw, key.encode()).decode() == decoded.get(key, "")


@pytest.mark.parametrize(
    "table",
    [{"": "v"}, {"k": ""}, {"k\1": "v"}, {"k": "v\1"}, {"k\2": "v"}, {"k": "\2"}, {"k": "\ud800"}],
)
def test_what_the_format_cannot_carry_is_refused(table: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage):
        encode_properties(table)
