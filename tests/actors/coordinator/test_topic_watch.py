"""How often the file of topics is looked at, what is told of it, and what groups then forget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.actors.coordinator.claims import Claims
from penstock.actors.coordinator.topic_watch import (
    LOOK_MS,
    NEW_TOPIC_MS,
    PAUSE,
    Deletions,
    TopicWatch,
)
from penstock.shared.messaging.system_topics import DELETIONS_GROUP, DELETIONS_TOPIC
from penstock.shared.queue.deleted_topics import NONE as NO_TOPICS
from penstock.shared.queue.deleted_topics import DeletedTopics, save_deleted_topics
from penstock.shared.store.topics import Topics, save_topics


def test_a_change_is_told_once_at_the_next_look_or_when_somebody_speaks_of_a_topic(
    tmp_path: Path,
) -> None:
    file, topics, now_ms = tmp_path / "topics.json", Topics(), 1000
    watch = TopicWatch(file, lambda: now_ms)
    assert watch.changed(now_ms) == set()
    topics.put("orders", 4, 1)
    save_topics(file, topics)
    assert watch.changed(now_ms + LOOK_MS - 1) == set()
    assert watch.changed(now_ms + LOOK_MS) == {"orders"} and watch.queues("orders") == 4
    topics.put("orders", 8, 2)
    save_topics(file, topics)
    assert watch.changed(now_ms + LOOK_MS + 1) == set()
    watch.expire()
    assert watch.changed(now_ms + LOOK_MS + 1) == {"orders"} and watch.queues("orders") == 8
    assert watch.changed(now_ms + 9 * LOOK_MS) == set()


def test_members_bring_the_next_look_forward_but_not_into_the_pause_after_a_long_file(
    tmp_path: Path,
) -> None:
    file, topics = tmp_path / "topics.json", Topics()
    # the first file takes no time, the second one 10 ms
    times = iter([0, 0, 0, 0, 10, 0, 0, 0, 0])
    watch = TopicWatch(file, lambda: next(times))

    def put(queues: int) -> None:
        topics.put("orders", queues, queues)
        save_topics(file, topics)

    put(1)
    assert watch.changed(1000) == {"orders"}
    put(2)
    assert watch.changed(1001) == set()
    watch.look_soon()
    assert watch.changed(1001) == {"orders"}
    put(3)
    watch.look_soon()
    assert watch.changed(1000 + 10 * PAUSE) == set()
    watch.look_soon()
    assert watch.changed(1001 + 10 * PAUSE) == {"orders"} and watch.queues("orders") == 3


def test_a_look_that_was_asked_for_has_come_or_is_not_waited_for_any_longer(
    tmp_path: Path,
) -> None:
    file, topics = tmp_path / "topics.json", Topics()
    topics.put("orders", 4, 1)
    save_topics(file, topics)
    now_ms, read_ms = 1000, 0

    def clock() -> int:
        nonlocal now_ms
        now_ms += read_ms
        return now_ms

    watch = TopicWatch(file, clock)
    has_looked = watch.look_soon()
    assert not has_looked()
    assert watch.changed(now_ms) == {"orders"} and has_looked()
    has_looked = watch.look_soon()
    assert watch.changed(now_ms) == set() and has_looked(), "nothing has changed"
    topics.put("orders", 8, 2)
    save_topics(file, topics)
    read_ms = 1000
    watch.expire()
    assert watch.changed(now_ms) == {"orders"}
    read_ms = 0
    has_looked = watch.look_soon()
    assert watch.changed(now_ms) == set() and not has_looked()
    now_ms += NEW_TOPIC_MS - 1
    assert not has_looked()
    now_ms += 1
    assert has_looked(), "the pause after a long file takes longer than a client waits"


def test_a_file_that_takes_long_to_read_is_left_alone_for_many_times_as_long(
    tmp_path: Path,
) -> None:
    file, topics = tmp_path / "topics.json", Topics()
    topics.put("orders", 4, 1)
    save_topics(file, topics)
    clock_ms = iter([1000, 1010, 1000 + PAUSE * 10, 1000 + PAUSE * 10])
    watch = TopicWatch(file, lambda: next(clock_ms))
    assert watch.changed(1000) == {"orders"}
    topics.put("paid", 2, 2)
    save_topics(file, topics)
    assert watch.changed(1000 + PAUSE * 10 - 1) == set()
    assert watch.changed(1000 + PAUSE * 10) == {"paid"}
    later_ms = 1000 + PAUSE * 10 + LOOK_MS
    assert watch.changed(later_ms) == set(), "it is not read again, which would take time"
    topics.remove("orders", 3)
    save_topics(file, topics)
    assert watch.changed(later_ms + LOOK_MS - 1) == set()
    clock_ms = iter([later_ms + LOOK_MS] * 2)
    assert watch.changed(later_ms + LOOK_MS) == {"orders"}, "that took no time"


def test_a_topic_that_is_gone_is_told_and_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    file, topics, now_ms = tmp_path / "topics.json", Topics(), 1000
    for name in ("orders", "paid"):
        topics.put(name, 4, 1)
    save_topics(file, topics)
    watch = TopicWatch(file, lambda: now_ms)
    assert watch.changed(now_ms) == {"orders", "paid"}
    file.write_bytes(b"{")
    assert watch.changed(now_ms + LOOK_MS) == set() and watch.has("orders")
    topics.remove("orders", 2)
    save_topics(file, topics)
    assert watch.changed(now_ms + 2 * LOOK_MS) == {"orders"}
    assert not watch.has("orders") and watch.queues("orders") == 0
    assert watch.has("paid") and watch.queues("paid") == 4


def deleted(file: Path, *topics: str) -> None:
    """These were deleted, one after the other, and the last one is not done."""
    noted = NO_TOPICS.with_rows(topics, 100, 1)
    done = noted.settled({topics[-1]}).rows
    save_deleted_topics(file, DeletedTopics(noted.last, (*done, noted.rows[-1])))


def groups_of(*topics: str) -> Claims:
    claims = Claims()
    for topic in topics:
        claims.reset("g", (topic, 0), 7)
    claims.changes()
    return claims


def test_groups_forget_a_deletion_once_and_only_one_that_is_done(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline()
    deleted(broker.paths.deleted_topics, "a", "b", "c")
    claims = groups_of("a", "b", "c")
    deletions = Deletions(broker.paths.deleted_topics, broker.positions, claims)
    deletions.look()
    assert claims.topics("g").keys() == {"a", "b", "c"}, "nothing is known to be deleted"
    broker.positions.initialise("deleted_topics", 1)
    deletions.look()
    assert claims.topics("g").keys() == {"c"}, "the file was ahead"
    claims.reset("g", ("a", 0), 9)  # of a topic of that name which was created since
    broker.positions.initialise("deleted_topics", 2)
    deletions.look()
    assert claims.topics("g").keys() == {"a", "c"}
    deleted(broker.paths.deleted_topics, "a", "b", "c", "d")
    broker.positions.initialise("deleted_topics", 3)
    claims.reset("g", ("b", 0), 9)
    deletions.look()
    assert claims.topics("g").keys() == {"a", "b"}
    for each in (deletions, Deletions(broker.paths.deleted_topics, broker.positions, claims)):
        each.look()
        assert claims.topics("g").keys() == {"a", "b"}
    seat = claims.seat(DELETIONS_GROUP, (DELETIONS_TOPIC, 0))
    assert seat is not None and seat.offset == 3


def test_a_list_of_deletions_that_begins_again_counts_from_its_beginning(
    pipeline: Callable[..., Any],
) -> None:
    """Somebody has removed the file: what groups have forgotten by the old one says nothing."""
    broker = pipeline()
    claims = groups_of("a", "b")
    claims.reset(DELETIONS_GROUP, (DELETIONS_TOPIC, 0), 5)
    deleted(broker.paths.deleted_topics, "a", "b")
    broker.positions.initialise("deleted_topics", 1)
    Deletions(broker.paths.deleted_topics, broker.positions, claims).look()
    assert claims.topics("g").keys() == {"b"}
