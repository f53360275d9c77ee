"""What cannot be read at the log's end, or is damaged there, does not come from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.shared.layout import segment_name
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.log.reader import LogReader
from penstock.shared.process.doorbells import AHEAD_BYTES
from penstock.shared.queue.fresh_records import FreshRecords

Fresh = tuple[Any, LogReader, FreshRecords]


@pytest.fixture
def fresh(pipeline: Callable[..., Any]) -> Iterator[Fresh]:
    """A broker with two messages that no queue has, and a reader that has not seen them."""
    broker = pipeline(flush_disk_type="async", transient_store_pool_enable=False)
    log = LogReader(broker.config, broker.run, broker.positions)
    records = FreshRecords(broker.config, broker.positions, log, AHEAD_BYTES)
    records.look(0)
    for _ in range(2):
        broker.append(queue_id=0, size=10)
    yield broker, log, records
    log.close()


def test_the_newest_records_are_found_by_their_queue(fresh: Fresh) -> None:
    _, _, records = fresh
    assert records.look(0) == {("orders", 0)}
    assert records.end("orders", 0) == 2
    for most in (1, 2, 3):
        found = records.read("orders", 0, 0, 1 << 20, most)
        assert found is not None and found[1:] == (min(most, 2), 2)
        assert found[0].is_copy, "it may be in no file yet"
    last = records.read("orders", 0, 1, 1)
    assert last is not None and last[1:] == (2, 2)


def test_what_is_not_on_disk_is_nothing_to_look_at_where_flushing_is_sync(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(flush_disk_type="sync", transient_store_pool_enable=False)
    log = LogReader(broker.config, broker.run, broker.positions)
    records = FreshRecords(broker.config, broker.positions, log, AHEAD_BYTES)
    records.look(0)
    broker.append(queue_id=0, size=10)
    assert not records.is_behind and records.look(0) == set()
    broker.positions.initialise("flushed", broker.positions["wrote"])
    assert records.is_behind and records.look(0) == {("orders", 0)}
    log.close()


def test_what_was_taken_is_given_no_more_when_a_topic_is_deleted(fresh: Fresh) -> None:
    """Not even before the next look at the log."""
    broker, _, records = fresh
    records.look(0)
    assert records.read("orders", 0, 0, 1) is not None
    broker.positions.initialise("deleted_topics", 1)
    assert records.end("orders", 0) == 0 and records.read("orders", 0, 0, 1) is None


def test_in_a_damaged_log_nothing_is_taken_from_its_end(fresh: Fresh) -> None:
    broker, log, records = fresh
    log.damaged = DamagedRanges(damage_between(broker.paths, 64 << 10, 1 << 20, 1 << 21, "lost"))
    assert records.look(0) == set()
    assert records.end("orders", 0) == 0 and records.read("orders", 0, 0, 1) is None


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_segment_that_cannot_be_read_ends_no_reader(fresh: Fresh, is_gone: bool) -> None:
    """The reput meets the same error, and reports it."""
    broker, _, records = fresh
    segment = broker.paths.commit_log / segment_name(0)
    if is_gone:
        segment.unlink()
    else:
        os.truncate(segment, 1000)
    assert records.look(0) == set()
    assert records.end("orders", 0) == 0
