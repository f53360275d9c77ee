"""Delay levels: what each waits, and when a message is due."""

from __future__ import annotations

import pytest

from penstock.shared.formats.delay_levels import (
    DELAY_LEVELS_MS,
    delay_due_ms,
    due_ms,
    is_no_level,
)

ST = 1700000001456
CODE = 77


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


@pytest.mark.parametrize("level", [b"3", b"03", b"000000003"])
def test_a_message_of_the_delay_topic_is_due_when_its_level_says(level: bytes) -> None:
    assert due_ms(ST, b"DELAY\x01" + level + b"\x02", CODE, DELAY_LEVELS_MS) == ST + 10_000


@pytest.mark.parametrize("level", [b"", b"0", b"-1", b"x", b"3 ", b"0000000003"])
def test_without_a_level_that_is_a_positive_java_int_the_code_stays(level: bytes) -> None:
    assert due_ms(ST, b"DELAY\x01" + level + b"\x02", CODE, DELAY_LEVELS_MS) == CODE
    assert due_ms(ST, b"", CODE, DELAY_LEVELS_MS) == CODE


@pytest.mark.parametrize(
    ("text", "is_none"),
    [(b"0", True), (b"00", True), (b"-0", True), (b"-1", True), (b"-999999999", True)]
    + [(b"1", False), (b"01", False), (b"", False), (b"-", False), (b"--1", False)]
    + [(b"x", False), (b"-x", False), (b"-1 ", False), (b"-1000000000", False)],
)
def test_a_level_is_none_where_it_is_a_java_int_that_is_not_above_0(
    text: bytes, is_none: bool
) -> None:
    assert is_no_level(text) is is_none
