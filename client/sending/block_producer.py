"""A producer of exactly-once blocks, for clients that also read.

Users do not see it: exactly_once.py decides what it sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from penstock.client.core.blocks import Block
from penstock.client.core.sending.encoding import Encoder
from penstock.client.core.sending.frames import SendFuture
from penstock.client.sending.producer import Producer
from penstock.shared.wire.messages import Route, Routed


class BlockProducer(Producer):
    """The producer that stores one consumer's blocks."""

    def block(self) -> Block:
        """A new block, without outputs."""
        return Block(self._core)

    def close_at_once(self) -> None:
        """Close without waiting: messages in flight fail, although they may be stored."""
        self._disconnect()

    @property
    def encoder(self) -> Encoder:
        """What makes drafts for blocks."""
        return self._core.encoder

    def queue_for(self, topic: str, shard: str | None, queue: int | None) -> int:
        """The queue of the next message for a topic whose route is known. Raises QueueNotFound."""
        return self._core.routes.queue_for(topic, shard, queue)

    def queues_of(self, topic: str) -> int:
        """How many queues a topic has; its route must be known."""
        return self._core.routes.queues[topic]

    def turns(self, topic: str, count: int) -> list[int]:
        """The queues of the next messages that may go to any queue of a topic. Its route must be
        known."""
        return list(islice(self._core.routes.turns[topic], count))

    def route(self, topic: str, timeout: float = 10) -> None:
        """Learn how many queues a topic has. It is created if the broker does that on first use.

        Raises TopicNotFound, BrokerTimeout.
        """
        if topic not in self._core.routes.queues:
            self._ask(Route(0, topic, True), Routed, timeout)

    def send_block(
        self, block: Block, group: str, moves: Mapping[str, Mapping[int, tuple[int, int]]]
    ) -> SendFuture:
        """Send a block's outputs and offsets as one frame. All topics' queues must be known.

        Raises InvalidMessage, QueueNotFound; then nothing is sent.
        """
        self._loop.check_usable()
        with self._lock:
            self._wait_for_room()
            self._loop.check_usable()
            future = block.send(group, moves, self._now_ms())
            if self._loop.asleep:
                self._loop.wake()
        return future
