"""Message ids: the golden vectors, round trips, and texts that are no ids."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument
from penstock.shared.formats.message_id import (
    key_number,
    key_origin,
    make_unique_key,
    offset_message_id,
    parse_message_id,
    sent_ms,
)
from penstock.shared.formats.record import pack_host

STORE = pack_host("192.168.7.9", 10911)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        (STORE, 0, "C0A8070900002A9F0000000000000000"),
        (STORE, 175, "C0A8070900002A9F00000000000000AF"),
        (
            pack_host("2001:db8::2", 10911),
            410,
            "20010DB800000000000000000000000200002A9F000000000000019A",
        ),
    ],
)
def test_a_golden_id_is_made_and_read(host: bytes, offset: int, text: str) -> None:
    assert offset_message_id(host, offset) == text
    assert parse_message_id(text) == (host, offset)
    assert parse_message_id(text.lower()) == (host, offset)


@given(hosts, st.integers(0, 2**63 - 1))
def test_every_id_comes_back(host: bytes, offset: int) -> None:
    assert parse_message_id(offset_message_id(host, offset)) == (host, offset)


@pytest.mark.parametrize("text", ["", "C0", "Z" * 32, "0" * 33, "00 " * 16, "é" * 32, "0" * 40])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_message_id(text)


def test_a_unique_key_names_its_client_and_its_moment_in_the_month() -> None:
    """The layout of the golden key: address, pid, four bytes, ms of the month, counter."""
    now_ms = 1700000001456
    month = time.localtime(now_ms / 1000)
    start_ms = int(time.mktime((month.tm_year, month.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
    origin = key_origin(bytes([172, 17, 2, 3]), now_ms)
    first, second = (make_unique_key(origin, key_number(origin, now_ms, count)) for count in (0, 1))
    assert first[:8] == "AC110203"
    assert int(first[8:12], 16) == os.getpid() & 0xFFFF
    assert int(first[20:28], 16) == now_ms - start_ms
    assert (first[28:], second[28:]) == ("0000", "0001")
    assert first[:28] == second[:28]


def test_65536_keys_of_one_millisecond_are_distinct() -> None:
    now_ms = 1700000001456
    origin = key_origin(bytes(16), now_ms)
    numbers = {key_number(origin, now_ms, count) for count in range(65536)}
    keys = {make_unique_key(origin, number) for number in numbers}
    assert len(keys) == 65536
    assert {len(key) for key in keys} == {56}
    assert {sent_ms(origin, number) for number in numbers} == {now_ms}


def test_a_key_of_a_clock_that_went_back_says_when_it_was_sent_all_the_same() -> None:
    origin = key_origin(bytes(4), 1700000001456)
    for now_ms in (0, origin.month_start_ms - 1, 1 << 42):
        number = key_number(origin, now_ms, 5)
        assert sent_ms(origin, number) == now_ms
        assert len(make_unique_key(origin, number)) == 32
