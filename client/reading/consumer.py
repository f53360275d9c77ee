"""The consumer: iterates the messages of a topic, from ordinary, synchronous code.

It needs no thread: while the caller works on one batch, the next comes through the socket. Not
thread-safe, and not to be used across a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.client.connecting.broker_address import BrokerAddress, Store, check_one
from penstock.client.core.arguments import check_timeout
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Message
from penstock.client.core.selection import choose
from penstock.client.core.start import Start
from penstock.client.reading.consumer_state import ConsumerState
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.compression import MAX_BODY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.reading.consume_link import ConsumeLink

# For a caller who wrote Consumer("orders", store=...): the first argument is the endpoint.
BOTH_NAMED_HINT = (
    "name one of them. A consumer's topic has its own name: Consumer(store=..., topic=...)"
)
_T = TypeVar("_T")


class Consumer(ConsumerState):
    """Reads a topic, or some of its queues, each queue in order.

        with Consumer(store="./store", topic="orders", start="earliest") as consumer:
            for message in consumer:
                print(message.queue_id, message.queue_offset, message.body)

    The broker is that of `store` or the one at `endpoint`, and `wait_for_broker_ms` is for programs
    that start before it, as for a Producer.

    An iteration gives each queue's messages in order, and mixes the queues. `start` is "earliest",
    "latest", an offset, a datetime, ISO text, how long ago ("-15m"), or a mapping from queue to
    offset; an offset past a queue's end means that end. With `follow` the iteration waits for new
    messages for ever. Without, it ends after the last message that was there when it began, and
    raises QueueNotFound if `start` names a queue that the topic does not have. `tags` chooses
    messages by "TagA || TagB", `sql` by an SQL92 condition on their properties; either may raise
    FilterError. With a `group` the broker saves the condition in config/consumerFilter.json, as
    RocketMQ does.

    `timeout_ms` is how long the broker may be silent before BrokerTimeout is raised; iterating
    again then goes on. The same holds for QueueUnreadable, which is raised when all other queues
    have been read: the queue that it names stays where it is. A compressed body may expand to
    `max_body_bytes`; an answer longer than that and than 8 MiB raises ProtocolError. With `direct`
    a consumer on the broker's machine that runs as the broker's user reads the log's files, instead
    of having the records sent through the socket.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        topic: str = "",
        *,
        store: Store | None = None,
        start: Start = "earliest",
        queues: Collection[int] | None = None,
        follow: bool = True,
        tags: str = "",
        sql: str = "",
        group: str = "",
        timeout_ms: int = 30_000,
        max_body_bytes: int = MAX_BODY_BYTES,
        direct: bool = True,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        check_one(endpoint, store, BOTH_NAMED_HINT)
        self._address = BrokerAddress("consumers", endpoint, store, timeout_ms, wait_for_broker_ms)
        now_ms = self._clock.now_ms()
        self._core = ConsumerCore(
            self._address.name,
            topic,
            now_ms,
            start=start,
            queues=queues,
            follow=follow,
            selection=choose(tags, sql, group, now_ms),
            timeout_ms=timeout_ms,
            max_body_bytes=max_body_bytes,
            direct=direct,
            hears_losses=True,
        )
        self._address.meet()
        self._address.give(self._core.aim)
        # what has come and `bodies` has not returned yet
        self._bodies: Iterator[bytes | Message] = iter(())
        self._pid = os.getpid()
        from penstock.client.reading.consume_link import ConsumeLink

        name = f"consumer of {topic} at {self._address.name}"
        self._link: ConsumeLink = ConsumeLink(
            self, name, self._core, self._address, max_body_bytes, self._clock
        )

    def __iter__(self) -> Iterator[Message]:
        while batch := self.poll(None):
            self._rest = iter(batch)
            yield from self._rest

    def bodies(self) -> Iterator[bytes]:
        """The bodies alone, in the same order. No object is made for a message whose body is in its
        record as it was sent.

        A body that cannot be read raises UnreadableBody. After that, or after a `break`, the next
        call goes on with the message after it.
        """
        while True:
            for each in self._bodies:
                yield each.body if isinstance(each, Message) else each
            batch = self._poll(None, self._take_bodies)
            if not batch:
                return
            self._bodies = iter(batch)

    def poll(self, timeout: float | None) -> list[Message]:
        """The messages that are there. Waits up to `timeout` seconds for one (None: for ever).

        Empty after the timeout, or at the end if `follow` is off. Raises BrokerTimeout if the
        broker is silent, TopicNotFound, QueueNotFound, and QueueUnreadable once the other queues
        have nothing.
        """
        return self._poll(timeout, self._take)

    def poll_arrow(
        self, timeout: float | None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The messages of one `poll` as rows, without an object for each: topic, queue_id,
        queue_offset, physical_offset, keys, tags, body, born_timestamp, store_timestamp and
        properties, as in data frames, or only `columns`. There are no rows if `poll` is empty.

        All bodies are read. If one cannot be, UnreadableBody is raised, and the next call begins
        with the same messages. Also raises MissingDependency without pyarrow, which the extra
        `penstock[arrow]` brings, ConfigError for an unknown column, and what `poll` raises.
        """
        from penstock.client.arrow.columns import Columns

        made = Columns(columns, self._core.max_body_bytes, self._core.topic)
        return made.together(self._poll(timeout, self._taking(made)))

    def _poll(self, timeout: float | None, take: Callable[[], list[_T]]) -> list[_T]:
        if self._link.is_closed:
            raise StoreUnavailable(
                "the consumer is closed", None, "make another one: Consumer(endpoint, topic)"
            )
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                "the consumer belongs to another process",
                f"made in process {self._pid}, used in its fork",
                "make one after the fork",
            )
        timeout = check_timeout(timeout)
        deadline_ms = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000
        while True:
            now_ms = self._clock.monotonic_ms()
            # the next request leaves first, so the broker works while the caller handles a batch
            self._link.exchange(now_ms)
            batch = take()
            if batch or self._core.finished:
                return batch
            left_ms = 1 << 30 if deadline_ms is None else deadline_ms - now_ms
            if left_ms <= 0:
                return []
            if not self._core.ready:
                self._link.wait(int(min(left_ms, max(1, self._core.wait_ms(now_ms)))))

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
