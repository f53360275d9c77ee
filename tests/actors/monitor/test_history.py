"""How late a stage is, and what is known of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.actors.monitor.history import ROWS, SAMPLE_MS, History, Row
from penstock.shared.memory.durations import bucket_of, upper_ns
from penstock.shared.memory.positions import Positions, create_positions

LOOK_MS = 100


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Positions]:
    create_positions(tmp_path / "positions")
    found = Positions(tmp_path / "positions", owner="writer")
    yield found
    found.close()


def looks(history: History, writer: Positions, from_ms: int, to_ms: int) -> None:
    """The log grows by a byte each ms."""
    for at_ms in range(from_ms, to_ms, LOOK_MS):
        writer.publish("wrote", at_ms)
        history.look(writer, at_ms)
        if at_ms % SAMPLE_MS == 0:
            history.sample(writer, 0, at_ms, at_ms)


def test_lateness_is_known_for_as_long_as_there_are_rows(writer: Positions) -> None:
    history, now_ms = History(), 2 * ROWS * SAMPLE_MS
    looks(history, writer, 0, now_ms)
    for late_ms in (0, 50, 500, 59_000, 61_000, 300_000, (ROWS - 10) * SAMPLE_MS):
        found = history.late_ms(now_ms - LOOK_MS - late_ms, now_ms)
        assert found is not None
        exact_ms = LOOK_MS if late_ms < 59_500 else SAMPLE_MS
        # what was reached between two looks was reached by the second at the latest
        wanted_ms = late_ms + LOOK_MS if late_ms else 0
        assert wanted_ms - exact_ms <= found <= wanted_ms
    assert history.late_ms(1000, now_ms) is None, "it has been late for longer than is remembered"


def test_how_late_a_stage_was_before_the_first_look_is_not_known(writer: Positions) -> None:
    history = History()
    assert history.late_ms(0, 0) is None
    writer.publish("wrote", 1000)
    history.look(writer, 5000)
    history.sample(writer, 0, 5000, 5000)
    assert history.late_ms(999, 5001) is None
    assert history.late_ms(1000, 5001) == 0
    writer.publish("wrote", 2000)
    history.look(writer, 6000)
    assert history.late_ms(1500, 6500) == 500
    assert history.late_ms(999, 6500) is None


def test_a_row_is_due_at_the_second_at_which_actors_look(writer: Positions) -> None:
    history = History()
    assert history.due_ms(1234) == 0
    for sampled_ms, due_ms in (
        (1234, 2000),
        (2000, 3000),
        (3003, 4000),
        (4700, 6000),
        (6500, 8000),
        (8499, 9000),
    ):
        history.sample(writer, 0, sampled_ms, sampled_ms)
        assert sampled_ms + history.due_ms(sampled_ms) == due_ms


def test_a_row_is_what_has_come_in_each_second_since_the_last(
    tmp_path: Path, writer: Positions
) -> None:
    history, nothing = History(), (None,) * 4
    reader = Positions(tmp_path / "positions", owner="reader")
    # messages, bytes and pulls so far, at this time; and what the row then says
    for at_ms, (messages, wrote, pulls), row in (
        (1000, (100, 5000, 7), None),
        (2000, (110, 9000, 8), Row(1002, 10, 4000, 1, *nothing)),
        (2000, (111, 9001, 9), None),  # in no time nothing can be said
        (4000, (130, 9001, 19), Row(1004, 9.5, 0, 5, *nothing)),
        (5000, (30, 9002, 19), Row(1005, 0, 1, 0, *nothing)),  # a topic was deleted
    ):
        before = history.rows()
        writer.publish("wrote", wrote)
        reader.publish("answered_pulls", pulls)
        history.sample(writer, messages, at_ms, 1000 + at_ms // 1000)
        assert history.rows() == before + [row] * (row is not None)
        assert history.last == (history.rows() or [None])[-1]
    reader.close()


def test_a_row_has_the_durations_of_its_own_second_alone(writer: Positions) -> None:
    history = History()
    for at_ms, took_ns in ((1000, 0), (2000, 8_000_000), (3000, 1000), (4000, 0)):
        for _ in range(3 if took_ns else 0):
            writer.count_duration("acknowledge", took_ns)
        history.sample(writer, 0, at_ms, at_ms)
    slow, fast, none = history.rows()
    slow_ms, fast_ms = (upper_ns(bucket_of(each)) / 1e6 for each in (8_000_000, 1000))
    assert slow.acknowledge_p50_ms == slow.acknowledge_p99_ms == slow_ms
    assert fast.acknowledge_p50_ms == fast.acknowledge_p99_ms == fast_ms
    assert none.acknowledge_p50_ms is None and slow.flush_p50_ms is None
