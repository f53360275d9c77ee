"""Where to begin, in all the ways to say it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.start import StartAt, parse_start
from penstock.shared.errors import InvalidArgument

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", StartAt()),
        ("latest", StartAt(latest=True)),
        ("42", StartAt(offset=42)),
        (42, StartAt(offset=42)),
        ("-15m", StartAt(at_ms=NOW_MS - 900_000)),
        ("-500ms", StartAt(at_ms=NOW_MS - 500)),
        ("-2d", StartAt(at_ms=NOW_MS - 172_800_000)),
        ("2026-01-02T03:04:05.006Z", StartAt(at_ms=1767323045006)),
        ("2026-01-02T03:04+01:00", StartAt(at_ms=1767319440000)),
        (StartAt(offset=3), StartAt(offset=3)),
    ],
)
def test_a_start_can_be_said_in_many_ways(text: Any, expected: StartAt) -> None:
    assert parse_start(text, NOW_MS) == expected


@given(st.text(max_size=12))
def test_any_text_is_a_start_or_a_typed_error(text: str) -> None:
    try:
        assert isinstance(parse_start(text, NOW_MS), StartAt)
    except InvalidArgument as error:
        assert error.what


def test_a_time_at_the_end_of_the_calendar_that_no_clock_comes_to_is_a_typed_error() -> None:
    """It was a ValueError that named no argument."""
    with pytest.raises(InvalidArgument, match="neither an offset nor a time: datetime"):
        parse_start(dt.datetime.min, NOW_MS)
