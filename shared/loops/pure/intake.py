"""The fast path of messages into a producer: one step from a body to the future of its outcome.

In pure Python: the twin of what `compiled` has under the same names (see `active`). Only plain
messages go this way: a body of bytes, with or without tags, keys, a shard or a queue, to a topic
whose queues are known. For anything else the result is None, and nothing has changed: the caller
handles it in its own code, which supports everything and has the words for every refusal. Nothing
here calls the caller back: where no open frame has room the result is NO_ROOM, and the caller opens
one and asks again.

A message may be right without being plain, but not the reverse. So the two ways cannot disagree:
a message that goes this way would have had the same record on the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.loops.forms import (
    FRAME_BYTES,
    NO_ROOM,
    PLAIN_PROPERTIES_BYTES,
    Draft,
    Plain,
)
from penstock.shared.loops.pure.encode import properties_of
from penstock.shared.loops.pure.sends import FrameOfRuns


def wall_ms() -> int:
    """The wall clock's milliseconds since 1970: each message has the time at which it was sent."""
    return time.time_ns() // 1_000_000


class Intake:
    """Takes plain messages into the open frame, and counts those without an outcome.

    The producer sets and removes the open frame, and also has counted here what it takes itself and
    what is settled. All under the producer's lock.
    """

    def __init__(
        self, plain: Plain, turns: Mapping[str, Iterator[int]], queues: Mapping[str, int]
    ) -> None:
        """`turns`: the queues of a topic's next messages; `queues`: how many the topic has.

        The producer owns both, and fills them when a broker has answered; a topic is in both or in
        neither.
        """
        self._plain = plain
        self._turns = turns
        self._queues = queues
        # the frame that takes messages; None while there is none
        self.frame: FrameOfRuns | None = None
        # whether the producer has stopped taking messages; only the senders check it
        self.closed = False
        self.unsettled = 0
        self.waiting_bytes = 0

    def take(
        self,
        topic: str,
        body: Any,
        tags: str | None,
        keys: Any,
        shard: str | None,
        queue: int | None,
        ack: str,
        now_ms: int,
    ) -> Any:
        """The future of a message that was sent at the clock's `now_ms`; None if it is not plain.

        NO_ROOM if the caller must first open a new frame of this kind. Raises InvalidMessage for
        tags, keys or a shard that no message can have; then nothing has changed.
        """
        # Exact types: the __eq__ or __len__ of a subclass may return anything.
        usual = type(topic) is str and type(body) is bytes and type(ack) is str
        usual = usual and (tags is None or type(tags) is str)
        usual = usual and (keys is None or type(keys) is str)
        usual = usual and (shard is None or type(shard) is str)
        usual = usual and (queue is None or type(queue) is int)
        # the caller's own code refuses a message that names both
        usual = usual and (queue is None or shard is None)
        if not usual or not self._may_take(topic, len(body), queue):
            return None
        plain = self._plain
        if len(body) >= plain.compressed_bytes:
            return None
        raw = properties_of(tags, keys, shard, b"") if tags or keys or shard else b""
        size = plain.fixed_bytes + len(topic) + len(body) + len(raw)
        # If larger than a frame, it travels alone; longer properties may not fit every broker.
        if size > FRAME_BYTES or len(raw) > PLAIN_PROPERTIES_BYTES:
            return None
        # After NO_ROOM the caller comes back with this message, so nothing is used up before it.
        frame = self._frame_for(ack, size)
        if frame is None:
            return NO_ROOM
        queue_id = self._queue_for(topic, shard, queue)
        future = plain.outcome(plain.sender, plain.numbers.next(now_ms))
        draft: Draft = (body, raw, 0, 0) if raw else body
        frame.put(topic, queue_id, draft, size, future, queue is not None or shard is not None)
        self.count(1, size)
        return future

    def take_batch(
        self, topic: str, messages: Iterable[Any], queue: int | None, ack: str, now_ms: int
    ) -> Any:
        """The future of messages that are stored together or not at all; None: not all are plain.

        In a batch only messages that are just a body are plain. NO_ROOM as in `take`.
        """
        usual = type(topic) is str and type(messages) is list and type(ack) is str
        usual = usual and (queue is None or type(queue) is int)
        # RocketMQ accepts no batch for a retry topic, whose name begins with %: refused elsewhere
        if not usual or not messages or topic.startswith("%"):
            return None
        if not all([type(each) is bytes for each in messages]):
            return None
        length = sum([len(each) for each in messages])
        if not self._may_take(topic, length, queue):
            return None
        plain = self._plain
        # copied: the caller may change its list while the frame waits
        drafts = list(messages)
        size = len(drafts) * (plain.fixed_bytes + len(topic)) + length
        if size > FRAME_BYTES:
            return None
        frame = self._frame_for(ack, size)
        if frame is None:
            return NO_ROOM
        queue_id = self._queue_for(topic, None, queue)
        numbers = plain.numbers.several(now_ms, len(drafts))
        future = plain.outcome(plain.sender, numbers[0], numbers)
        frame.put_batch(topic, queue_id, drafts, size, future, queue is not None)
        self.count(1, size)
        return future

    def count(self, sends: int, size: int) -> None:
        """Count what the caller has taken itself, or, if negative, what has its outcome."""
        self.unsettled += sends
        self.waiting_bytes += size

    def _may_take(self, topic: str, length: int, queue: int | None) -> bool:
        """Whether the topic is known and has the queue, and the broker accepts this size."""
        # the limit is 0 until the broker has told it
        limit, count = self._plain.limit.max_message_bytes, self._queues.get(topic, 0)
        if limit and length > limit or not count:
            return False
        return queue is None or 0 <= queue < count

    def _frame_for(self, ack: str, size: int) -> FrameOfRuns | None:
        """The open frame, if it is of this kind and has room."""
        frame = self.frame
        if frame is None or frame.ack != (ack or self._plain.ack):
            return None
        return frame if frame.size + size <= FRAME_BYTES else None

    def _queue_for(self, topic: str, shard: str | None, queue: int | None) -> int:
        """Call it last: it uses up the topic's turn, so the message must go this way."""
        if queue is not None:
            return queue
        if shard is not None:
            return shard_queue(shard, self._queues[topic])
        return next(self._turns[topic])
