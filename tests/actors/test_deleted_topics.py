"""Topics that were deleted: the reput takes their queues away, and no others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.reput import Reput
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.queue.deleted_topics import DeletedTopic, DeletedTopics, save_deleted_topics

MAPPED = {"transient_store_pool_enable": False}


def _reach(broker: Any, stop: int | None = None) -> None:
    stop = broker.positions["wrote"] if stop is None else stop
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, stop)


def test_queues_that_could_not_be_moved_away_are_no_error_any_more_once_they_are(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is deleted, and no message comes after that."""
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    stop = broker.append()
    _reach(broker)
    work(reput)
    row = DeletedTopic(number=1, topic="orders", log_end=stop, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    broker.positions.initialise("deleted_topics", 1)

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as disk:
        disk.setattr(os, "rename", full)
        work(reput)
    assert broker.positions["dispatch_error"] == errno.ENOSPC
    broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.positions["forgotten_topics"] == 1
    assert not broker.positions["dispatch_error"]
    assert broker.positions["dispatched"] == stop, "there was nothing to dispatch"


def test_what_a_deleted_topic_has_in_the_log_gets_no_entry_when_it_is_met_late(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    stop = broker.append(3)
    row = DeletedTopic(number=1, topic="orders", log_end=stop, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    broker.positions.initialise("deleted_topics", 1)
    broker.append(2, topic="others")
    _reach(broker)
    work(reput)
    assert broker.positions["dispatched"] == broker.positions["wrote"]
    assert broker.queues() == {QueueKey("others", 0): (0, 2)}


def test_what_begins_where_a_topic_was_deleted_is_of_one_that_was_made_again(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Also where the reput meets both in one piece of the log; and the log's first record is of no
    topic that was deleted."""
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    broker.append(topic="others")
    stop = broker.append(3)
    row = DeletedTopic(number=1, topic="orders", log_end=stop, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    broker.positions.initialise("deleted_topics", 1)
    broker.append()
    _reach(broker)
    work(reput)
    assert [each.physical_offset for each in broker.stored("orders", 0)] == [stop]
    assert [each.physical_offset for each in broker.stored("others", 0)] == [0]


def test_of_topics_that_were_deleted_together_one_that_is_made_again_keeps_its_new_queue(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    broker.append(topic="gone")
    stop = broker.append(topic="again")
    _reach(broker)
    work(reput)
    deleted = DeletedTopics().with_rows(["gone", "again"], stop, 1).settled(set())
    save_deleted_topics(broker.paths.deleted_topics, deleted)
    broker.positions.initialise("deleted_topics", deleted.last)
    broker.append(topic="again")
    _reach(broker)
    work(reput)
    assert broker.positions["forgotten_topics"] == deleted.last
    assert broker.positions["deleted_queues"] == 2
    assert [each.physical_offset for each in broker.stored("again", 0)] == [stop]
    assert broker.stored("gone", 0) == []
