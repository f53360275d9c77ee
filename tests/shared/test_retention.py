"""The rule by which messages go, against RocketMQ's words for it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.config import Config
from penstock.shared.retention import Decision, count_to_delete, decide

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
CONFIG = Config(file_reserved_time_h=2, delete_when="04;16")


@pytest.mark.parametrize(
    ("used", "hour", "was_full", "asked", "expected"),
    [
        (50, 4, False, False, Decision(True, False, False)),
        (50, 16, False, False, Decision(True, False, False)),
        (50, 5, False, False, Decision(False, False, False)),
        (50, 5, False, True, Decision(True, False, False)),
        (75, 5, False, False, Decision(False, False, False)),
        (76, 5, False, False, Decision(True, False, False)),
        (85, 5, False, False, Decision(True, False, False)),
        (86, 5, False, False, Decision(True, True, False)),
        (90, 5, False, False, Decision(True, True, False)),
        (91, 5, False, False, Decision(True, True, True)),
        # once full it is so until it is below the forcible ratio
        (86, 5, True, False, Decision(True, True, True)),
        (85, 5, True, False, Decision(True, False, False)),
        # where nobody knows, what has had its time goes, and no more
        (-1, 5, False, False, Decision(True, False, False)),
    ],
)
def test_hours_requests_and_a_filling_disk_let_segments_go(
    used: int, hour: int, was_full: bool, asked: bool, expected: Decision
) -> None:
    assert decide(CONFIG, hour, [10, used], was_full=was_full, asked=asked) == expected
    assert decide(CONFIG, hour, [used, 10], was_full=was_full, asked=asked) == expected


def test_a_full_disk_takes_no_segment_before_its_time_where_that_is_forbidden() -> None:
    gentle = msgspec.structs.replace(CONFIG, clean_file_forcibly_enable=False)
    decision = decide(gentle, 5, [95], was_full=False, asked=False)
    assert decision == Decision(expired_go=True, oldest_goes=False, disk_full=True)
    assert count_to_delete(gentle, NOW_MS, [NOW_MS], decision) == 0


@given(
    ages_h=st.lists(st.integers(-1, 5), max_size=8),
    expired_go=st.booleans(),
    oldest_goes=st.booleans(),
)
def test_the_oldest_go_up_to_the_first_that_has_its_time_before_it(
    ages_h: list[int], expired_go: bool, oldest_goes: bool
) -> None:
    written = [NOW_MS - age * HOUR_MS for age in ages_h]
    decision = Decision(expired_go, oldest_goes, disk_full=False)
    count = count_to_delete(CONFIG, NOW_MS, written, decision)
    assert 0 <= count <= len(ages_h)
    if not expired_go:
        assert count == 0
        return
    young = [age for age in ages_h[:count] if age < 2]
    if young:  # only a disk that is too full takes one of them, and one at a time
        assert oldest_goes and count == 1
    else:
        assert count == len(ages_h) or ages_h[count] < 2
        assert count or not ages_h or not oldest_goes


def test_the_time_is_over_with_the_millisecond() -> None:
    decision = Decision(True, False, False)
    for late_ms, expected in ((-1, 0), (0, 1)):
        written = [NOW_MS - 2 * HOUR_MS - late_ms]
        assert count_to_delete(CONFIG, NOW_MS, written, decision) == expected
