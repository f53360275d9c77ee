"""Subscriptions: RocketMQ's tag expressions, and which queue entries may be what one is for."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import FilterError
from penstock.shared.filters.message_filter import (
    MAX_EXTENSION_ADDRESS,
    SQL92,
    TAG,
    KnownFilters,
    TagFilter,
    parse_filter,
    parse_tags,
)
from penstock.shared.formats.java_hash import string_hash
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_outline import outline, raw_properties

# single bars are part of a tag, and blanks around one are not
plain_tags = st.text(st.sampled_from("aB1-é|中"), min_size=1, max_size=4).filter(
    lambda tag: "||" not in tag and not tag.startswith("|") and not tag.endswith("|")
)


def record(tags: str | None, **fields: object) -> memoryview:
    properties = {"UNIQ_KEY": "1"} | ({} if tags is None else {"TAGS": tags})
    return memoryview(encode_record(Record("t", b"body", encode_properties(properties), **fields)))


@given(
    st.lists(plain_tags, min_size=1, max_size=5),
    st.sampled_from(["||", " || ", "||\t", "|| ||"]),
    st.none() | plain_tags,
)
def test_a_message_matches_when_its_tags_are_one_of_the_expression(
    tags: list[str], between: str, sent: str | None
) -> None:
    found = parse_tags(f" {between.join(tags)} ")
    assert isinstance(found, TagFilter)
    assert found.matches(record(sent)) == (sent in tags)
    code = np.array([string_hash(sent) if sent else 0], dtype=np.int64)
    may = bool(found.may_match(code)[0])
    assert may == (int(code[0]) in {string_hash(tag) for tag in tags})
    assert may or sent not in tags, "nothing that matches is passed over"


@pytest.mark.parametrize("expression", ["*", ""])
def test_a_star_and_nothing_are_all_messages(expression: str) -> None:
    assert parse_tags(expression) is None and parse_filter(TAG, expression) is None


@pytest.mark.parametrize("expression", ["||", " ", " || ", "||||\n"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(FilterError, match="names no tag"):
        parse_tags(expression)


def test_tags_that_share_a_hash_are_told_apart_by_themselves() -> None:
    """The example of Java's documentation."""
    assert string_hash("Aa") == string_hash("BB")
    found = parse_tags("Aa")
    assert found is not None
    assert found.may_match(np.array([string_hash("BB")])).tolist() == [True]
    assert found.matches(record("Aa")) and not found.matches(record("BB"))


def test_the_low_32_bits_of_a_code_are_compared_and_an_extension_address_may_be_anything() -> None:
    found = parse_tags("TagA")
    assert found is not None
    code = string_hash("TagA")
    codes = [code, code + 1, code + (1 << 32), -(2**31), MAX_EXTENSION_ADDRESS, -(2**63) + 5]
    assert found.may_match(np.array(codes)).tolist() == [True, False, True, False, True, True]


@pytest.mark.parametrize("kind", ["CLASS", "sql92", "x" * 1000])
def test_an_unknown_type_of_expression_is_refused(kind: str) -> None:
    with pytest.raises(FilterError, match="TAG or SQL92"):
        parse_filter(kind, "a = 1")


def test_a_property_filter_looks_at_the_records_own_properties() -> None:
    found = parse_filter(SQL92, "TAGS = 'paid' AND amount > 5")
    assert found is not None and found.decided_by_broker
    assert found.may_match(np.array([1, 2])).all()
    for tags, amount, matches in (("paid", "7", True), ("paid", "5", False), ("sent", "7", False)):
        properties = encode_properties({"amount": amount, "TAGS": tags})
        raw = memoryview(encode_record(Record("t", b"amount\x018", properties)))
        assert found.matches(raw) == matches


@given(
    st.sampled_from(["t", "%RETRY%" + "g" * 200]), st.binary(max_size=50), st.sampled_from([8, 20])
)
def test_the_properties_are_found_in_every_kind_of_record(
    topic: str, body: bytes, host_bytes: int
) -> None:
    hosts = {"born_host": bytes(host_bytes), "store_host": bytes(host_bytes)}
    raw = memoryview(encode_record(Record(topic, body, b"a\x01b\x02", **hosts)))
    assert raw_properties(raw) == outline(raw).properties == b"a\x01b\x02"


def test_a_bad_filter_that_is_sent_again_and_again_takes_no_more_memory() -> None:
    known = KnownFilters()

    def frames() -> int:
        with pytest.raises(FilterError) as caught:
            known.get("SQL92", "a >")
        return len(caught.traceback)

    assert len({frames() for _ in range(5)}) == 1


def test_of_a_type_that_there_is_not_nothing_is_kept() -> None:
    known = KnownFilters()
    tracemalloc.start()
    try:
        for number in range(5):
            with pytest.raises(FilterError, match="no such type"):
                known.get(f"{number}" * (1 << 20), "a")
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
