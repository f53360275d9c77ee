"""What a consumer is told of a cursor that is at no message: for each place where it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.reader.filtered_pulls import FilteredPull, FilteredPulls
from penstock.actors.reader.held_pulls import HeldPull, moved
from penstock.actors.reput import Reput
from penstock.shared.filters.message_filter import parse_tags
from penstock.shared.log.damage import QUARANTINE, damage_between, save_quarantine
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.queue.reader import QueueReader
from penstock.shared.wire.messages import Pull, QueueSlice

COUNT, LOST = 7, (3, 4)


@pytest.fixture
def damaged(pipeline: Callable[..., Any], work: Callable[..., None]) -> Any:
    """A broker with a queue of seven messages, of which the first has expired, and two are lost
    with a damaged part of the log."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(count=COUNT, properties={"TAGS": "a"})
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(0, 1)
    table.close()
    lost = [broker.stored("orders", 0)[number - 1] for number in LOST]
    start, end = lost[0].physical_offset, lost[1].physical_offset + lost[1].total_size
    save_quarantine(broker.paths, damage_between(broker.paths, 1 << 30, start, end, "a test"), 1)
    broker.positions.initialise("read_only", QUARANTINE)
    return broker


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_cursor_goes_to_the_next_message_that_there_is_or_back_to_the_end(
    damaged: Any, is_complete: bool
) -> None:
    queues = QueueReader(damaged.config, damaged.run, damaged.positions)
    slot, span = queues.queues("orders")[0], (1, COUNT)

    def told(cursor: int) -> QueueSlice | None:
        return moved(queues, slot, 0, cursor, span, is_complete)

    assert told(0) == QueueSlice(0, 0, 0, 1, COUNT, 0)
    for cursor in LOST:
        assert told(cursor) == QueueSlice(0, cursor, cursor, LOST[-1] + 1, COUNT, 0)
    for cursor in {*range(1, COUNT + 1)} - {*LOST}:
        assert told(cursor) is None
    past = QueueSlice(0, COUNT + 1, COUNT, 1, COUNT, 0)
    assert told(COUNT + 1) == (past if is_complete else None)
    queues.close()


def test_a_filtered_pull_of_a_lost_message_is_told_at_once_where_to_go_on(damaged: Any) -> None:
    queues = QueueReader(damaged.config, damaged.run, damaged.positions)
    filtered = FilteredPulls(queues, 200, lambda: 1 << 20, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    pull = Pull(1, "orders", {0: LOST[0]}, 9, 1 << 20, 1000)
    cursors = dict(pull.cursors)
    filtered.put(FilteredPull(HeldPull(b"one", pull, 1000, 0), chosen, {}, cursors, {}))
    (outcome,) = filtered.turn(damaged.positions["queued"])
    assert outcome.slices == [QueueSlice(0, LOST[0], LOST[0], LOST[-1] + 1, COUNT, 0)]
    queues.close()
