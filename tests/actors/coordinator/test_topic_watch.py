"""How often the file of topics is looked at, and what is told of it."""

from __future__ import annotations

from pathlib import Path

from penstock.actors.coordinator.topic_watch import LOOK_MS, PAUSE, TopicWatch
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
    times = iter([0, 0, 0, 10, 0, 0])  # the first file takes no time, the second one 10 ms
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
