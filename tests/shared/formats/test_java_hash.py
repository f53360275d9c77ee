"""Java's String.hashCode: the golden vectors, and a plain reading of its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.java_hash import shard_queue, string_hash, string_hashes


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中文标签", 622041809),
        ("\U0001f600", 1772899),
        ("SCHEDULE_TOPIC_XXXX", -1995822632),
        ("polygenelubricants", -2147483648),
        ("orders#k1", -390723708),
        ("orders#k2", -390723707),
        ("orders#kk", -390723650),
        ("orders#AC1102031A2B18B4AAC2000000000001", 317364782),
        ("orders#Engnocb", -2147483648),
    ],
)
def test_a_golden_text_has_its_code(text: str, code: int) -> None:
    assert string_hash(text) == code


@given(st.text())
def test_the_code_is_the_sum_of_its_utf_16_units(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units))
    assert string_hash(text) % 2**32 == total % 2**32
    assert -(2**31) <= string_hash(text) < 2**31


@given(st.text(), st.integers(1, 1024))
def test_a_shard_always_goes_to_one_queue_that_exists(shard: str, queue_count: int) -> None:
    queue = shard_queue(shard, queue_count)
    assert 0 <= queue < queue_count
    assert queue == abs(string_hash(shard)) % queue_count


@given(st.lists(st.text() | st.text("abc#", max_size=40)))
def test_many_at_once_have_the_codes_they_have_one_by_one(texts: list[str]) -> None:
    raw = [text.encode("utf-8", "replace") for text in texts]
    assert string_hashes(raw).tolist() == [string_hash(each.decode()) for each in raw]


def test_many_at_once_are_hashed_over_the_borders_of_chunks() -> None:
    texts = ["k" * (number % 97) for number in range(3000)]
    texts[100:100] = ["x" * 65_535, "y" * 65_536, "z" * 65_537, "ü" * 40_000, ""]
    found = string_hashes([text.encode() for text in texts])
    assert found.tolist() == [string_hash(text) for text in texts]


def test_bytes_that_are_not_utf_8_count_as_replacement_characters() -> None:
    assert string_hashes([b"a\xffb"]).tolist() == [string_hash("a\ufffdb")]
