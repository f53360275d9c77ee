"""Where a query's queues are: in the files of a store, or in a running broker.

Both answer the same questions, so that plans are the same. Used on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self

from penstock.shared.errors import ConfigError
from penstock.shared.next_steps import rebuild
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.durable import Durable, durable_end
from penstock.spark.reading.options import Options
from penstock.spark.reading.queues import (
    GroupOffsets,
    Queue,
    group_offsets,
    known_topics,
    store_queues,
)


class View(Protocol):
    """The questions of a plan. Close it, or use it as a context manager."""

    def refresh(self) -> None:
        """Look again: answers from now on are no older than this call."""
        ...

    def queues(self, wanted: Callable[[str], bool]) -> list[Queue]:
        """The queues of wanted topics that have had messages, by topic and queue id."""
        ...

    def known_topics(self) -> Callable[[str], int]:
        """A function: how many queues a topic has, even without any message; 0 if unknown."""
        ...

    def group_offsets(self, group: str) -> GroupOffsets: ...

    def ranges_by_keys(
        self, planned: Sequence[QueueRange], keys: Collection[str]
    ) -> list[QueueRange]:
        """What is left of the ranges if `keys` must be one of these texts, as far as there is an
        index of keys to ask."""
        ...

    def durable(self) -> Durable: ...
    def __enter__(self) -> Self: ...
    def close(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...


def open_view(options: Options) -> View:
    """Raises ConfigError if the path is not a store, ConnectError if there is no broker."""
    if not options.endpoint:
        return StoreView(options.path)
    # imported late: reading files needs no clients, and each plan is made by a new process
    from penstock.spark.reading.broker_view import BrokerView

    return BrokerView(options.endpoint)


class StoreView:
    """A store's own files, as they are now."""

    def __init__(self, path: str) -> None:
        self.store = StoreDirectory(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    def refresh(self) -> None:
        self.store.refresh()

    @property
    def lacks_queues(self) -> bool:
        """Whether there is a log but no queue of it."""
        return bool(self.store.segments) and not any(
            self.store.paths.consume_queue.glob("*/[0-9]*")
        )

    def check_queues(self, reader: str) -> None:
        """Raise ConfigError if there are records without queues and no broker is about to build
        them. To `reader`, which the error names, such a store would look empty."""
        if self.lacks_queues and self._stays_without():
            root = self.store.paths.root
            raise ConfigError(
                f"{reader} reads consume queues, and this store has none", root, rebuild(root)
            )

    def _stays_without(self) -> bool:
        durable = self.durable()
        if durable.end is not None and durable.settled:
            return False
        return any(any(self.store.read_log(segment.base, 8)) for segment in self.store.segments)

    def queues(self, wanted: Callable[[str], bool]) -> list[Queue]:
        return store_queues(self.store, wanted)

    def known_topics(self) -> Callable[[str], int]:
        return known_topics(self.store)

    def group_offsets(self, group: str) -> GroupOffsets:
        return group_offsets(self.store, group)

    def ranges_by_keys(
        self, planned: Sequence[QueueRange], keys: Collection[str]
    ) -> list[QueueRange]:
        # imported late: few queries need it, and each plan is made by a new process
        from penstock.spark.reading.key_index import ranges_by_keys

        return ranges_by_keys(self.store, planned, keys)

    def durable(self) -> Durable:
        return durable_end(self.store.paths)
