"""The rule by which messages go, against RocketMQ's words for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.cleaner.retention import Decision, choose, decide
from penstock.shared.config import Config
from penstock.shared.store.deletions import Reason

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
CONFIG = Config(file_reserved_time_h=2, delete_when="04;16")


FORCED = Config(file_reserved_time_h=2, delete_when="04;16", clean_file_forcibly_enable=True)
HOURS, DISK, ASKED = Reason.DELETE_WHEN, Reason.DISK_USED, Reason.ASKED


@pytest.mark.parametrize(
    ("used", "hour", "was_full", "asked", "expected"),
    [
        (50, 4, False, False, Decision(HOURS, False, False)),
        (50, 16, False, False, Decision(HOURS, False, False)),
        (50, 5, False, False, Decision(None, False, False)),
        (50, 5, False, True, Decision(ASKED, False, False)),
        (0, 5, False, False, Decision(None, False, False)),
        (75, 5, False, False, Decision(None, False, False)),
        (76, 5, False, False, Decision(DISK, False, False)),
        (85, 5, False, False, Decision(DISK, False, False)),
        (86, 5, False, False, Decision(DISK, True, False)),
        (90, 5, False, False, Decision(DISK, True, False)),
        (91, 4, False, False, Decision(HOURS, True, True)),
        # once full it is so until it is below the forcible ratio
        (86, 5, True, False, Decision(DISK, True, True)),
        (85, 5, True, False, Decision(DISK, False, False)),
        # where nobody knows, what has had its time goes, and no more
        (-1, 5, False, False, Decision(DISK, False, False)),
    ],
)
def test_hours_requests_and_a_filling_disk_let_segments_go(
    used: int, hour: int, was_full: bool, asked: bool, expected: Decision
) -> None:
    assert decide(FORCED, hour, [10, used], was_full=was_full, asked=asked) == expected
    assert decide(FORCED, hour, [used, 10], was_full=was_full, asked=asked) == expected


@given(
    used=st.integers(-1, 100),
    hour=st.integers(0, 23),
    was_full=st.booleans(),
    asked=st.booleans(),
    ages_h=st.lists(st.integers(0, 5), max_size=8),
)
def test_by_default_nothing_goes_before_its_time_however_full_the_disk_is(
    used: int, hour: int, was_full: bool, asked: bool, ages_h: list[int]
) -> None:
    written = [NOW_MS - age * HOUR_MS for age in ages_h]
    decision = decide(CONFIG, hour, [used], was_full=was_full, asked=asked)
    count, why = choose(CONFIG, NOW_MS, written, decision)
    assert all(age >= 2 for age in ages_h[:count])
    assert why != Reason.FORCED and bool(count) == (why is not None)


@pytest.mark.parametrize("was_full", [False, True])
def test_by_default_messages_are_refused_above_the_warning_level_and_taken_from_there_on(
    was_full: bool,
) -> None:
    for used, full in ((91, True), (90, False), (86, False)):
        decision = decide(CONFIG, 5, [10, used], was_full=was_full, asked=False)
        assert decision == Decision(DISK, False, full)


@given(
    ages_h=st.lists(st.integers(-1, 5), max_size=8),
    expired=st.sampled_from([None, *Reason]),
    oldest_goes=st.booleans(),
)
def test_the_oldest_go_up_to_the_first_that_has_its_time_before_it(
    ages_h: list[int], expired: Reason | None, oldest_goes: bool
) -> None:
    written = [NOW_MS - age * HOUR_MS for age in ages_h]
    decision = Decision(expired, oldest_goes, disk_full=False)
    count, why = choose(CONFIG, NOW_MS, written, decision)
    assert 0 <= count <= len(ages_h) and bool(count) == (why is not None)
    old = next((i for i, age in enumerate(ages_h) if age < 2), len(ages_h))
    if expired and old:
        assert (count, why) == (old, expired)
    elif oldest_goes and ages_h:  # only a disk that is too full, and one at a time
        assert (count, why) == (1, Reason.FORCED)
    else:
        assert count == 0


def test_the_time_is_over_with_the_millisecond() -> None:
    decision = Decision(HOURS, False, False)
    for late_ms, expected in ((-1, 0), (0, 1)):
        written = [NOW_MS - 2 * HOUR_MS - late_ms]
        assert choose(CONFIG, NOW_MS, written, decision)[0] == expected
