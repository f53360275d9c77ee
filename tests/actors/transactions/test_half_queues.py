"""What is found in the queues of half messages, and beside them a plain list of what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.reput import Reput
from penstock.actors.transactions import half_queues
from penstock.actors.transactions.half_queues import HalfQueues, Op, OpMarks
from penstock.shared.formats.record import Record
from penstock.shared.queue.reader import QueueReader

COUNT = 9


@pytest.fixture
def nine(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> Iterator[tuple[HalfQueues, list[Record]]]:
    """Nine messages of orders/1, between those of another queue."""
    broker = pipeline(transient_store_pool_enable=False)
    for number in range(COUNT):
        broker.append(queue_id=1, size=100 + number)
        broker.append(queue_id=0)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    reader = QueueReader(broker.config, broker.run, broker.positions)
    yield HalfQueues(reader), broker.stored("orders", 1)
    reader.close()


def _seen(queues: HalfQueues, after: int, before: int) -> list[int]:
    """The offsets of all that are looked at between two log offsets."""
    seen: list[int] = []

    def note(record: Record) -> bool:
        seen.append(record.queue_offset)
        return False

    assert queues.find("orders", 1, after, before, note) is None
    return seen


def test_what_begins_at_one_log_offset_and_before_another_is_looked_at(
    nine: tuple[HalfQueues, list[Record]],
) -> None:
    queues, stored = nine
    places = [record.physical_offset for record in stored]
    edges = sorted({at + by for at in places for by in (-1, 0, 1)} - {-1})
    for after in edges:
        for before in edges:
            wanted = [n for n, at in enumerate(places) if after <= at < before]
            assert _seen(queues, after, before) == wanted, (after, before)
    assert queues.range("orders", 1) == (0, COUNT) and queues.range("orders", 7) == (0, 0)
    assert queues.find("none", 0, 0, 1 << 40, lambda record: True) is None


def test_of_many_only_the_last_are_looked_at_and_the_first_that_fits_is_found(
    nine: tuple[HalfQueues, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, stored = nine
    found = queues.find("orders", 1, 0, 1 << 40, lambda record: record.queue_offset in (4, 6))
    assert found is not None and found.queue_offset == 4 and found.body == stored[4].body
    monkeypatch.setattr(half_queues, "MOST_LOOKED_AT", 4)
    assert _seen(queues, 0, 1 << 40) == [5, 6, 7, 8]
    assert _seen(queues, stored[7].physical_offset, 1 << 40) == [7, 8]
    assert _seen(queues, 0, stored[3].physical_offset) == [0, 1, 2]


@given(st.lists(st.lists(st.integers(0, 400), max_size=3), max_size=600), st.data())
def test_no_op_record_that_somebody_still_needs_is_left_out(
    named: list[list[int]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, 5))
    marks = OpMarks(start)
    forgotten = data.draw(st.integers(0, 200))
    for number, halves in enumerate(named, start):
        marks.note(Op(number, tuple(halves), ""))
        if number == start + 300:
            marks.forget(forgotten)
    for half in (0, 100, 399, 400, 401):
        if half < forgotten:
            continue
        needed = [n for n, halves in enumerate(named, start) if max(halves, default=-1) >= half]
        first = marks.first_for(half)
        assert start <= first <= (needed[0] if needed else start + len(named))
        # whole blocks without anything needed are left out
        assert (needed[0] if needed else start + len(named)) - first < half_queues._BLOCK
