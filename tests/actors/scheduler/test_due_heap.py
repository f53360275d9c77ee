"""The heap of timers against a sorted list, and their files against what was put there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.scheduler.calendar import Calendar
from penstock.actors.scheduler.due_heap import DueHeap, held
from penstock.actors.scheduler.timer_files import (
    ENTRY,
    HOUR_MS,
    MESSAGE,
    MINUTE_MS,
    RECALL,
    TimerFiles,
)

steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6),
        st.tuples(st.integers(0, 30), st.integers(1, 5)),
    ),
    max_size=25,
)


@given(steps)
def test_a_heap_gives_what_is_due_in_order_and_once(found: list[object]) -> None:
    heap, model, number = DueHeap(), list[tuple[int, bool, int]](), 0
    for step in found:
        if isinstance(step, list):
            rows = []
            for due_ms, recalls in step:
                number += 1
                rows.append((due_ms, number, 1, RECALL if recalls else 0))
                model.append((due_ms, not recalls, number))
            heap.add(held(np.array(rows, ENTRY)))
            continue
        assert isinstance(step, tuple)
        until_ms, most = step
        model.sort()
        wanted = [each for each in model if each[0] <= until_ms][:most]
        model = [each for each in model if each not in wanted]
        taken = heap.take(until_ms, most)
        assert taken["at"].tolist() == [each[2] for each in wanted]
        assert len(heap) == len(model)
        assert heap.next_ms == min((each[0] for each in model), default=-1)


@pytest.mark.parametrize("last_ms", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 17])
def test_entries_that_are_due_more_than_a_minute_apart_come_in_order(last_ms: int) -> None:
    heap = DueHeap()
    heap.add(held(np.array([(due, 1, 1, 0) for due in (last_ms, 2, 0)], ENTRY)))
    assert heap.take(last_ms, 3)["due"].tolist() == [0, 2, last_ms]


@given(st.lists(st.lists(st.tuples(st.integers(0, 5 * MINUTE_MS), st.integers(0, 20)))))
def test_files_hold_each_timer_once_in_its_minute(
    tmp_path_factory: object, puts: list[list[tuple[int, int]]]
) -> None:
    place = Path(tmp_path_factory.mktemp("timers"))  # type: ignore[attr-defined]  # a fixture
    files = TimerFiles(place / "timers")
    due_of: dict[int, int] = {}
    for put in puts:
        rows = [(due_of.setdefault(at, due_ms), at, 1, 0) for due_ms, at in put]
        if rows:
            files.append(np.array(rows, ENTRY))
    minutes = {due_ms // MINUTE_MS for due_ms in due_of.values()}
    assert files.minutes() == sorted(minutes)
    for minute in minutes:
        entries = files.load(minute)
        wanted = {(due, at) for at, due in due_of.items() if due // MINUTE_MS == minute}
        assert len(entries) == len(wanted)
        assert {(int(e["due"]), int(e["at"])) for e in entries} == wanted
    assert not len(files.load(99))


def test_a_timer_is_not_hidden_by_one_that_named_its_place_before(tmp_path: Path) -> None:
    """A power failure may take a record whose timer is on disk; the next one gets its place."""
    files = TimerFiles(tmp_path / "timers")
    rows = [(5, 400, 200, MESSAGE), (9, 0, 200, MESSAGE), (6, 400, 200, MESSAGE), (6, 400, 9, 0)]
    for _ in range(2):
        files.append(np.array(rows, ENTRY))
    assert files.load(0).tolist() == rows


def test_of_files_that_are_cleared_none_is_left_of_minutes_or_hours(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    rows = [(due, due, 1, 0) for due in (MINUTE_MS, 90 * MINUTE_MS)]
    files.append(np.array(rows, ENTRY), hours_from=1)
    assert files.minutes() == [1] and files.hours() == [1]
    files.clear()
    assert not files.minutes() and not files.hours()


def test_an_entry_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    files.append(np.array([(5, 1, 1, 0)], ENTRY))
    with (tmp_path / "timers" / "0").open("ab") as file:
        file.write(b"cut off")
    assert files.load(0)["at"].tolist() == [1]
    files.append(np.array([(6, 2, 1, 0)], ENTRY))
    assert files.load(0)["at"].tolist() == [1, 2] and files.count(0) == 2


@pytest.mark.parametrize("seed", range(60))
def test_a_calendar_gives_each_timer_in_its_minute_whenever_hours_are_split(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries come, time goes by, and lives end in the middle of a split."""
    monkeypatch.setattr("penstock.actors.scheduler.calendar.SPLIT_AT_ONCE", 3)
    dice, files = random.Random(seed), TimerFiles(tmp_path / "timers")
    calendar, saved, now_ms, minute = Calendar(files), -1, 0, -1
    dues = [dice.randrange(dice.choice((HOUR_MS, 4 * HOUR_MS))) for _ in range(60)]
    left = [(due_ms, at, 1, MESSAGE) for at, due_ms in enumerate(dues)]
    found: list[int] = []
    while left or calendar.next_minute(minute) >= 0:
        entries = np.array(left[:5], ENTRY)
        # what is late is in memory, and its minute is not taken any more
        here = entries["due"] // MINUTE_MS <= minute
        found += entries["at"][here].tolist()
        if len(entries):
            calendar.put(entries, here)
        left = left[5:]
        for _ in range(dice.randrange(5)):
            calendar.split(now_ms)
        if dice.random() < 0.5:
            saved = calendar.whole_hour
        if dice.random() < 0.2:
            calendar = Calendar(files)
            calendar.start(dice.choice((saved, max(-1, minute // 60 - 1))), now_ms)
        reach = min(now_ms // MINUTE_MS, calendar.whole_hour * 60 + 59)
        while 0 <= (following := calendar.next_minute(minute)) <= reach:
            minute = following
            taken = calendar.take(minute)
            assert (taken["due"] // MINUTE_MS == minute).all()
            found += taken["at"].tolist()
        minute = max(minute, reach)
        calendar.tidy(now_ms - HOUR_MS, minute)
        now_ms += dice.randrange(HOUR_MS)
    assert sorted(found) == [*range(len(dues))]
    while calendar.split(now_ms):  # the last life may have to do one again
        pass
    calendar.tidy(now_ms + 9 * HOUR_MS, now_ms)
    assert files.minutes() == [] == files.hours()


def test_what_waits_is_counted_once_and_what_takes_messages_back_is_found(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    calendar = Calendar(files)
    rows = [(at * HOUR_MS // 2, at, 1, RECALL if at % 2 else MESSAGE) for at in range(10)]
    calendar.put(np.array(rows, ENTRY), np.zeros(10, np.bool_))
    assert len(calendar) == 10 and files.hours() == [0, 1, 2, 3, 4] and files.minutes() == []
    while calendar.split(2 * HOUR_MS):
        pass
    assert len(calendar) == 10 and calendar.whole_hour == 2
    assert files.minutes() == [0, 30, 60, 90, 120, 150]
    assert len(calendar.take(0)) == 1 and len(calendar) == 9
    assert calendar.recalls(HOUR_MS, 3 * HOUR_MS + HOUR_MS // 2)["at"].tolist() == [3, 5, 7]
    third_ms = 3 * HOUR_MS // 2
    assert calendar.recalls(third_ms, third_ms)["at"].tolist() == [3], "its own minute counts"
    again = Calendar(files)
    again.start(calendar.whole_hour, HOUR_MS)
    assert len(again) == 8, "those of minutes and hours that are not over"
    for delivered_ms, count in ((31 * MINUTE_MS - 1, 9), (31 * MINUTE_MS, 8)):
        again = Calendar(files)
        again.start(calendar.whole_hour, delivered_ms)
        assert len(again) == count, "to the very end of a minute"


def test_files_that_a_predecessor_has_removed_are_no_error(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    files.drop([5, 6])
    files.drop([5], hour=True)
    assert files.minutes() == files.hours() == []


def test_files_go_when_their_time_is_over_and_not_before(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    calendar = Calendar(files)
    calendar.put(np.array([(HOUR_MS, 0, 1, MESSAGE)], ENTRY), np.zeros(1, np.bool_))
    while calendar.split(HOUR_MS):
        pass
    assert files.hours() == [1] and files.minutes() == [60]
    calendar.tidy(HOUR_MS + MINUTE_MS - 1, 61)
    assert files.minutes() == [60]
    calendar.tidy(HOUR_MS + MINUTE_MS, 60)
    assert files.minutes() == [60], "it is being put"
    calendar.tidy(HOUR_MS + MINUTE_MS, 61)
    assert files.minutes() == [] and files.hours() == [1]
    calendar.tidy(2 * HOUR_MS - 1, 61)
    assert files.hours() == [1]
    calendar.tidy(2 * HOUR_MS, 61)
    assert files.hours() == []


def test_what_somebody_else_has_put_there_is_left_alone(tmp_path: Path) -> None:
    files, place = TimerFiles(tmp_path / "timers"), tmp_path / "timers"
    files.append(np.array([(5 * MINUTE_MS, 1, 1, MESSAGE)], ENTRY))
    (place / "7").mkdir()
    for name in ("notes", "8x", "²", "h"):
        (place / name).write_bytes(bytes(24))
    assert files.minutes() == [5] and files.hours() == [] and files.sums().keys() == {"5"}
    files.clear()
    assert {path.name for path in place.iterdir()} == {"7", "notes", "8x", "²", "h"}


def test_of_a_file_that_is_made_again_after_its_end_the_sum_is_its_own(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    for place in (1, 2):
        files.append(np.array([(0, place, 1, MESSAGE)], ENTRY))
        kept = files.sums()
        assert kept == TimerFiles(tmp_path / "timers").sums()
        files.drop([0])
        assert kept.keys() == {"0"}, "what was noted stays as it was"
    assert files.sums() == {}


def test_the_first_place_is_of_what_is_due_later_and_waits(tmp_path: Path) -> None:
    calendar = Calendar(TimerFiles(tmp_path / "timers"))
    rows = [(MINUTE_MS + 5, 10, 1, MESSAGE), (MINUTE_MS + 9, 20, 1, MESSAGE)]
    rows.append((9 * HOUR_MS, 30, 1, MESSAGE))
    while calendar.split(0):
        pass
    calendar.put(np.array(rows, ENTRY), np.zeros(3, np.bool_))
    for after_ms, place in (
        (-1, 10),
        (MINUTE_MS + 4, 10),
        (MINUTE_MS + 5, 20),
        (MINUTE_MS + 9, 30),
    ):
        assert calendar.first_place(after_ms, lambda entries: entries) == place
    assert calendar.first_place(0, lambda entries: entries[entries["at"] > 20]) == 30
    assert calendar.first_place(0, lambda entries: entries[:0]) == -1
