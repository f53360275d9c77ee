"""A query's queues, as a running broker describes them; see views."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Self

from penstock.client.connecting.asker import Asker
from penstock.client.connecting.where import Where
from penstock.client.groups.admin import GroupAdmin
from penstock.client.reading.one_message import pull_one
from penstock.client.sending.producer import Producer
from penstock.shared.errors import GroupNotFound
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, store_timestamp_ms
from penstock.shared.messaging.system_topics import NAMED_TOPICS
from penstock.shared.names import LIGHT_QUEUE_PREFIX
from penstock.shared.next_steps import did_you_mean
from penstock.shared.wire.messages import (
    Describe,
    Described,
    ListQueues,
    QueueList,
    QueueRange,
    decode_consume_answer,
)
from penstock.shared.wire.queue_messages import MAX_LISTED_TOPICS
from penstock.spark import ranges
from penstock.spark.reading.durable import Durable
from penstock.spark.reading.queues import GroupOffsets, Queue

# A broker does not say how large messages are, so splits and maxBytesPerTrigger assume this.
ASSUMED_BYTES = 1 << 10


class BrokerView:
    """A running broker. Any one of its endpoints is enough, because it names the others."""

    def __init__(self, endpoint: str) -> None:
        self._where = Where(None, endpoint, None)
        self._asker = Asker(
            "consumers", decode_consume_answer, **self._where.arguments("consumers")
        )
        self._producer: Producer | None = None
        self._topics: dict[str, int] | None = None
        self._any_topic = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._asker.close()
        if self._producer is not None:
            self._producer.close()

    def refresh(self) -> None:
        self._topics = None

    def queues(self, wanted: Callable[[str], bool]) -> list[Queue]:
        # the broker never lists its own topics; as in a store, they are read if they are named
        topics = sorted(
            topic
            for topic in {*self._listed(), *NAMED_TOPICS}
            if not topic.startswith(LIGHT_QUEUE_PREFIX) and wanted(topic)
        )
        return [
            BrokerQueue(self, topic, queue)
            for topic, ranges in self._listed_queues(topics)
            for queue in ranges
            if queue.max_offset  # as in a store, where such a queue has no files
        ]

    def _listed_queues(self, topics: list[str]) -> Iterator[tuple[str, tuple[QueueRange, ...]]]:
        """The queues of each topic, in few questions: on a busy broker an answer takes some ms,
        because it waits until what was acknowledged before is in its queues."""
        while topics:
            asked = tuple(topics[:MAX_LISTED_TOPICS])
            said = self._asker.ask(partial(_list_queues, asked), QueueList).topics
            yield from zip(asked, said, strict=False)
            topics = topics[len(said) :]

    def describe(self, topic: str, at_ms: int = -1) -> Described:
        """A topic's queues; with `at_ms` also the first offset stored then or later."""
        return self._asker.ask(lambda number, run: Describe(number, topic, at_ms, run), Described)

    def pull_one(self, topic: str, queue_id: int, offset: int) -> bytes:
        """The record at an offset; b"" if there is none."""
        found = pull_one(self._asker, topic, queue_id, offset)
        return b"" if found is None else found[1]

    def _listed(self) -> dict[str, int]:
        """The broker's topics, asked for over a connection that a stream keeps."""
        if self._topics is None:
            if self._producer is None:
                self._producer = Producer(**self._where.arguments("producers"))
            self._topics = self._producer.topics()
            self._any_topic = next(iter(self._topics), "")
        return self._topics

    def known_topics(self) -> Callable[[str], int]:
        listed = self._listed()
        return lambda topic: listed.get(topic, 0)

    def group_offsets(self, group: str) -> GroupOffsets:
        with GroupAdmin(**self._where.arguments("members")) as groups:
            info = groups.describe(group)
            names = [] if info.exists else sorted(groups.list())
        if not info.exists:
            raise GroupNotFound(
                "the broker has no group of this name", group, did_you_mean(group, names)
            )
        found: GroupOffsets = {}
        for queue in info.queues:
            if queue.offset >= 0:
                found.setdefault(queue.topic, {})[queue.queue_id] = queue.offset
        return found

    def ranges_by_keys(
        self, planned: Sequence[ranges.QueueRange], keys: Collection[str]
    ) -> list[ranges.QueueRange]:
        # a query to a broker would return the messages of a key, and only the newest
        return list(planned)

    def durable(self) -> Durable:
        # A stream asks ten times a second, so this is one question, however many topics there are,
        # and none to the writer. The broker bounds the queues itself: it shows consumers only what
        # is flushed, unless it acknowledges earlier.
        if not self._any_topic:
            self._listed()
        if not self._any_topic:
            return Durable(None)
        queued = self.describe(self._any_topic).queued
        return Durable(None if queued < 0 else queued)


def _list_queues(topics: tuple[str, ...], number: int, run: str) -> ListQueues:
    return ListQueues(number, topics, run)


class BrokerQueue:
    """A queue as the broker has described it."""

    def __init__(self, view: BrokerView, topic: str, found: QueueRange) -> None:
        self._view = view
        self.topic, self.queue_id = topic, found.queue_id
        self.min_offset, self.max_offset = found.min_offset, found.max_offset

    def offset_at(self, time_ms: int) -> int:
        found = {queue.queue_id: queue for queue in self._view.describe(self.topic, time_ms).queues}
        return min(found[self.queue_id].at_offset, self.max_offset)

    def estimate_bytes(self, start: int, stop: int) -> int:
        return ASSUMED_BYTES * (stop - start)

    def end_within(self, start: int, stop: int, max_bytes: int) -> int:
        return min(stop, start + max_bytes // ASSUMED_BYTES)

    def durable_offset(self, log_end: int | None) -> int:
        return self.max_offset  # a broker shows only what may be read

    def position(self, offset: int) -> int:
        raise NotImplementedError("a broker does not say where records are")

    def stored_ms(self, offset: int) -> int | None:
        found = self._view.pull_one(self.topic, self.queue_id, offset)
        # None also if it has expired meanwhile
        return store_timestamp_ms(found, 0) if len(found) >= SMALLEST_RECORD_BYTES else None
