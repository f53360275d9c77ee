"""The columns agree with the parser that reads one string at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.arrow.property_columns import property_columns
from penstock.shared.formats.properties import KEYS, TAGS, decode_properties


def agree(texts: list[bytes]) -> None:
    sizes = np.array([len(text) for text in texts], np.int64)
    made = property_columns(b"".join(texts), np.cumsum(sizes) - sizes, sizes)
    expected = [decode_properties(text) for text in texts]
    assert [dict(entries) for entries in made.maps.to_pylist()] == expected
    assert [len(entries) for entries in made.maps.to_pylist()] == [len(found) for found in expected]
    assert made.keys.to_pylist() == [found.get(KEYS) for found in expected]
    assert made.tags.to_pylist() == [found.get(TAGS) for found in expected]
    made.maps.validate(full=True)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b""],
        [b"", b"k\x01v\x02", b""],
        [b"k\x01v\x02TAGS\x01\xc3\xa9\x02", b"other\x01v\x02"],
        [b"k\x01v\x02k\x01later\x02"],
        [b"k\x01v"],
        [b"k\x01v", b"\x02k\x01v\x02"],
        [b"k\x01\x02", b"\x01v\x02", b"\x02\x02"],
        [b"k\x01v\x01w\x02"],
        [b"k\x01\xff\xfe\x02", b"k\x01v\x02"],
        [b"a\x01\xc3\x02", b"\xa9\x01b\x02"],
        [b"KEYS\x01a b\x02TAGS\x01t\x02", b"TAGS\x01t", b"KEYS\x01\x02"],
        [b"".join(b"k%d\x01v\x02" % number for number in range(90))],
    ],
)
def test_maps_equal_the_parsers_result(texts: list[bytes]) -> None:
    agree(texts)


pieces = st.lists(
    st.sampled_from([b"k", b"TAGS", b"KEYS", b"\x01", b"\x02", b"\xc3\xa9", b"\xff", b"\x00"])
)


@given(st.lists(pieces.map(b"".join), max_size=6))
def test_maps_equal_the_parsers_result_for_any_bytes(texts: list[bytes]) -> None:
    agree(texts)


words = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=4)


@given(st.lists(st.dictionaries(words, words, max_size=4), max_size=6))
def test_maps_equal_the_parsers_result_for_regular_strings(
    maps: list[dict[str, str]],
) -> None:
    agree(["".join(f"{k}\x01{v}\x02" for k, v in one.items()).encode() for one in maps])
