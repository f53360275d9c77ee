"""Where a query's queues are: in the files of a store, or with a running broker.

Both answer the same questions, so that a plan is one and the same. Used on the driver.
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
    """What a plan asks. Close it, or use it as a context manager."""

    def refresh(self) -> None:
        """Look again: what is answered from now on is no older than this."""
        ...

    def queues(self, wanted: Callable[[str], bool]) -> list[Queue]:
        """Those of topics that are wanted and have had messages, by topic and queue id."""
        ...

    def known_topics(self) -> Callable[[str], int]:
        """How many queues a topic has, which may not have had a message yet; 0 of none."""
        ...

    def group_offsets(self, group: str) -> GroupOffsets: ...

    def ranges_by_keys(
        self, planned: Sequence[QueueRange], keys: Collection[str]
    ) -> list[QueueRange]:
        """What is left of the ranges where `keys` has to be one of these texts, as far as the
        index of keys can be asked."""
        ...

    def durable(self) -> Durable: ...
    def __enter__(self) -> Self: ...
    def close(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...


def open_view(options: Options) -> View:
    """Raises ConfigError where the path is no store, ConnectError where no broker is."""
    if not options.endpoint:
        return StoreView(options.path)
    # the clients are not imported where files are read: each plan is made by a new process
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
        """Whether there is a log, and no queue of it."""
        return bool(self.store.segments) and not any(
            self.store.paths.consume_queue.glob("*/[0-9]*")
        )

    def check_queues(self, reader: str) -> None:
        """Raise ConfigError where records have no queue, and no broker is about to make queues.
        To `reader`, which the error names, such a store would look empty."""
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
        # not imported for queries that do not need it: each plan is made by a new process
        from penstock.spark.reading.key_index import ranges_by_keys

        return ranges_by_keys(self.store, planned, keys)

    def durable(self) -> Durable:
        return durable_end(self.store.paths)
