"""Where a query's queues are: in the files of a store, or with a running broker.

Both answer the same questions, so that a plan is one and the same. Used on the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, Self

from penstock.client.asker import Asker
from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import Producer
from penstock.client.where import Where
from penstock.shared.errors import GroupNotFound
from penstock.shared.next_steps import did_you_mean
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.wire.messages import (
    Describe,
    Described,
    QueueRange,
    decode_consume_answer,
)
from penstock.spark.reading.durable import Durable, durable_end
from penstock.spark.reading.options import Options
from penstock.spark.reading.queues import (
    LIGHT_QUEUE_PREFIX,
    GroupOffsets,
    Queue,
    group_offsets,
    known_topics,
    store_queues,
)

# A broker does not say how large messages are. Splits and maxBytesPerTrigger count with this.
ASSUMED_BYTES = 1 << 10


class View(Protocol):
    """What a plan asks. Close it, or use it as a context manager."""

    def queues(self) -> list[Queue]: ...
    def known_topics(self) -> Callable[[str], bool]: ...
    def group_offsets(self, group: str) -> GroupOffsets: ...
    def durable(self) -> Durable: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...


def open_view(options: Options) -> View:
    """Raises ConfigError where the path is no store, ConnectError where no broker is."""
    return BrokerView(options.endpoint) if options.endpoint else StoreView(options.path)


class StoreView:
    """A store's own files, as they are now."""

    def __init__(self, path: str) -> None:
        self.store = StoreDirectory(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.store.close()

    def queues(self) -> list[Queue]:
        return store_queues(self.store)

    def known_topics(self) -> Callable[[str], bool]:
        return known_topics(self.store)

    def group_offsets(self, group: str) -> GroupOffsets:
        return group_offsets(self.store, group)

    def durable(self) -> Durable:
        return durable_end(self.store.paths)


class BrokerView:
    """A running broker, asked through its endpoints. Any of them is enough: it names the others."""

    def __init__(self, endpoint: str) -> None:
        self._where = Where(None, endpoint, None)
        self._asker = Asker(
            "consumers", decode_consume_answer, **self._where.arguments("consumers")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._asker.close()

    def queues(self) -> list[Queue]:
        found: list[Queue] = []
        for topic in sorted(self._topics):
            if not topic.startswith(LIGHT_QUEUE_PREFIX):
                for queue in self.describe(topic, -1):
                    if queue.max_offset:  # as in a store, where such a queue has no files
                        found.append(BrokerQueue(self, topic, queue))
        return found

    def describe(self, topic: str, at_ms: int) -> tuple[QueueRange, ...]:
        """Its queues; with `at_ms` also the first offset stored then or later."""
        return self._asker.ask(
            lambda number, run: Describe(number, topic, at_ms, run), Described
        ).queues

    @cached_property
    def _topics(self) -> dict[str, int]:
        with Producer(**self._where.arguments("producers")) as producer:
            return producer.topics()

    def known_topics(self) -> Callable[[str], bool]:
        return self._topics.__contains__

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

    def durable(self) -> Durable:
        # it shows consumers what is flushed, unless it acknowledges before
        return Durable(None)


class BrokerQueue:
    """A queue by what the broker has said of it."""

    def __init__(self, view: BrokerView, topic: str, found: QueueRange) -> None:
        self._view = view
        self.topic, self.queue_id = topic, found.queue_id
        self.min_offset, self.max_offset = found.min_offset, found.max_offset

    def offset_at(self, time_ms: int) -> int:
        found = {queue.queue_id: queue for queue in self._view.describe(self.topic, time_ms)}
        return min(found[self.queue_id].at_offset, self.max_offset)

    def estimate_bytes(self, start: int, stop: int) -> int:
        return ASSUMED_BYTES * (stop - start)

    def end_within(self, start: int, stop: int, max_bytes: int) -> int:
        return min(stop, start + max_bytes // ASSUMED_BYTES)

    def end_before(self, position: int) -> int:
        raise NotImplementedError("a broker shows only what may be read")

    def stored_ms(self, offset: int) -> int | None:
        return None  # a message would have to be fetched for it
