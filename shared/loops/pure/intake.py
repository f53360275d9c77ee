"""The way of messages into a producer: in one step from a body to the future of its outcome.

In pure Python: the twin of what `compiled` has under the same names (see `active`). Only plain
messages go this way: a body of bytes, with tags and keys or without, for a topic whose queues are
known. The client's subclass takes all others, and makes every refusal.

That the client extends these classes, and is called back through `_begin` and `_send_other`, is not
pretty. It is what a compiled fast path costs: with a core that held this class instead of being
one, each message would pass one more Python call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.shared.loops.forms import (
    FRAME_BYTES,
    PLAIN_PROPERTIES_BYTES,
    Draft,
    Plain,
    Routes,
)
from penstock.shared.loops.pure.encode import properties_of
from penstock.shared.loops.pure.sends import FrameOfRuns, Outcome


def wall_ms() -> int:
    """The wall clock's milliseconds since 1970: each message has the time it was sent at."""
    return time.time_ns() // 1_000_000


class OpenFrame:
    """Holds the frame that takes messages; None while there is none. Extended with `_begin`."""

    def __init__(self) -> None:
        self.frame: FrameOfRuns | None = None

    def frame_for(self, ack: str, size: int) -> FrameOfRuns:
        """The open frame, if it is of this kind and has room; else a new one."""
        frame = self.frame
        if frame is None or frame.ack != ack or frame.size + size > FRAME_BYTES:
            return self._begin(ack)
        return frame

    def _begin(self, ack: str) -> FrameOfRuns:
        """Open a new frame."""
        raise NotImplementedError


class Intake:
    """Takes messages, and counts what has no outcome yet."""

    def __init__(self, plain: Plain, routes: Routes, open_frame: OpenFrame) -> None:
        self._plain = plain
        self._routes = routes
        # topic -> the queues of its next messages
        self._turns = routes.turns
        self._open_frame = open_frame
        self.unsettled = 0
        self.waiting_bytes = 0

    def send(
        self,
        topic: str,
        body: Any,
        tags: str | None,
        keys: Any,
        shard: str | None,
        queue: int | None,
        properties: Mapping[str, str] | None,
        flag: int,
        ack: str,
        wait: bool,
        now_ms: int,
    ) -> Any:
        """Take a message, sent at the clock's `now_ms`; its outcome comes through the future.

        Raises InvalidMessage, PropertiesTooLarge or QueueNotFound; then nothing has changed. The
        arguments are positional because naming eleven of them takes longer than taking a message.
        """
        # Exact types: a subclass may have an __eq__ or a __len__ of its own that says anything.
        usual = type(topic) is str and type(body) is bytes and type(ack) is str
        usual = usual and properties is None and type(flag) is int and not flag and wait is True
        usual = usual and (tags is None or type(tags) is str)
        usual = usual and (keys is None or type(keys) is str)
        usual = usual and (shard is None or type(shard) is str)
        usual = usual and (queue is None or type(queue) is int)
        if usual and self._may_take(topic, len(body)) and len(body) < self._plain.compressed_bytes:
            raw = properties_of(tags, keys, shard, b"") if tags or keys or shard else b""
            if len(raw) <= PLAIN_PROPERTIES_BYTES:
                plain, queue_id = self._plain, self._queue_for(topic, shard, queue)
                size = plain.fixed_bytes + len(topic) + len(body) + len(raw)
                future = plain.outcome(plain.sender, plain.numbers.next(now_ms))
                frame = self._open_frame.frame_for(ack or plain.ack, size)
                draft: Draft = (body, raw, 0, 0) if raw else body
                frame.put(topic, queue_id, draft, size, future)
                return self._taken(future, size)
        return self._send_other(
            topic, body, tags, keys, shard, queue, properties, flag, ack, wait, now_ms
        )

    def send_batch(
        self,
        topic: str,
        messages: Iterable[Any],
        shard: str | None,
        queue: int | None,
        ack: str,
        wait: bool,
        now_ms: int,
    ) -> Any:
        """Take messages that are stored together or not at all. Raises what `send` raises."""
        usual = type(topic) is str and type(messages) is list and wait is True
        usual = usual and type(ack) is str and (queue is None or type(queue) is int)
        usual = usual and shard is None and not topic.startswith("%")
        if usual and messages and all([type(each) is bytes for each in messages]):
            length = sum([len(each) for each in messages])
            if self._may_take(topic, length):
                plain, queue_id = self._plain, self._queue_for(topic, None, queue)
                drafts = list(messages)
                size = len(drafts) * (plain.fixed_bytes + len(topic)) + length
                numbers = plain.numbers.several(now_ms, len(drafts))
                future = plain.outcome(plain.sender, numbers[0], numbers)
                frame = self._open_frame.frame_for(ack or plain.ack, size)
                frame.put_batch(topic, queue_id, drafts, size, future)
                return self._taken(future, size)
        return self._send_other_batch(topic, messages, shard, queue, ack, wait, now_ms)

    def _may_take(self, topic: str, length: int) -> bool:
        """Whether the topic's queues are known, and the broker takes as much in one message."""
        limit = self._plain.limit.max_message_bytes
        return topic in self._turns and (not limit or length <= limit)

    def _queue_for(self, topic: str, shard: str | None, queue: int | None) -> int:
        if shard is None and queue is None:
            return next(self._turns[topic])
        return self._routes.queue_for(topic, shard, queue)

    def _taken(self, future: Outcome, size: int) -> Outcome:
        self.unsettled += 1
        self.waiting_bytes += size
        return future

    def _send_other(self, *arguments: Any) -> Any:
        """What `send` does with a message that is not plain."""
        raise NotImplementedError

    def _send_other_batch(self, *arguments: Any) -> Any:
        """What `send_batch` does with messages that are not all plain."""
        raise NotImplementedError
