"""The heap of timers against a sorted list, and their files against what was put there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.scheduler.due_heap import DueHeap, held
from penstock.actors.scheduler.timer_files import ENTRY, MINUTE_MS, RECALL, TimerFiles

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


def test_an_entry_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path / "timers")
    files.append(np.array([(5, 1, 1, 0)], ENTRY))
    with (tmp_path / "timers" / "0").open("ab") as file:
        file.write(b"cut off")
    assert files.load(0)["at"].tolist() == [1]
    files.append(np.array([(6, 2, 1, 0)], ENTRY))
    assert files.load(0)["at"].tolist() == [1, 2] and files.count(0) == 2
