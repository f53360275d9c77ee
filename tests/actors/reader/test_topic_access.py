"""What may be read of which topic, by config/topics.json as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.reader.topic_access import TopicAccess
from penstock.actors.reput import Reput
from penstock.shared.layout import StorePaths
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import TopicConfig, Topics, save_topics
from penstock.shared.wire.messages import Pull

READ, WRITE = 4, 2


class Place:
    """A store with three queues of the topic orders, and who looks at its topics."""

    def __init__(self, broker: Any) -> None:
        self.broker, self.paths = broker, StorePaths(broker.config.store)
        self.queues = QueueReader(broker.config, broker.run, broker.positions)
        self.access = TopicAccess(self.paths, broker.positions, self.queues)
        self._changes = 0

    def put(self, config: TopicConfig) -> None:
        topics = Topics()
        topics.set("orders", config, 1)
        save_topics(self.paths.topics, topics)

    def change(self) -> None:
        """What the writer says after a change."""
        self._changes += 1
        self.broker.positions.initialise("topic_changes", self._changes)
        assert self.access.has_changed() and not self.access.has_changed()

    def status(self, *queue_ids: int) -> str | None:
        """Why these queues cannot be read."""
        pull = Pull(1, "orders", dict.fromkeys(queue_ids, 0), 3, 1 << 20, 0)
        error = self.access.error(pull)
        return None if error is None else error.status


@pytest.fixture
def place(pipeline: Callable[..., Any], work: Callable[..., None]) -> Iterator[Place]:
    broker = pipeline(transient_store_pool_enable=False)
    for queue_id in range(3):
        broker.append(queue_id=queue_id)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    made = Place(broker)
    assert made.access.has_changed()
    yield made
    made.queues.close()


def test_queues_are_read_that_the_topic_has_to_be_read_whatever_is_written(place: Place) -> None:
    for read, write in ((3, 1), (1, 3)):
        place.put(TopicConfig(read, write))
        place.change()
        assert sorted(place.queues.queues("orders")) == [*range(read)]
        assert place.status(0, read - 1) is None
        assert place.status(0, read) == "QUEUE_NOT_EXIST"


@pytest.mark.parametrize(("perm", "status"), [(READ, None), (WRITE, "NO_PERMISSION")])
def test_who_may_not_write_may_read_and_the_other_way_round(
    place: Place, perm: int, status: str | None
) -> None:
    place.put(replace(TopicConfig(3, 3), perm=perm))
    place.change()
    assert place.status(0) == status


@pytest.mark.parametrize("is_there", [True, False], ids=["damaged", "unreadable"])
def test_where_the_file_says_nothing_topics_stay_as_they_were(place: Place, is_there: bool) -> None:
    place.put(TopicConfig(2, 2))
    place.change()
    file = place.paths.topics
    file.unlink()
    if is_there:
        file.write_bytes(b"{")
    else:
        file.mkdir()
    place.change()
    assert (place.status(1), place.status(2)) == (None, "QUEUE_NOT_EXIST")
