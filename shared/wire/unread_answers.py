"""Answers that ZeroMQ has and has not sent yet: memory taken by what consumers do not read.

A short answer is copied and not counted here: it is bounded by the number of answers that may wait
for one consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from penstock.shared.wire.sockets import send_parts

# For all answers together; beyond it an answer is short.
MAX_UNREAD_BYTES = 64 << 20
SHORT_ANSWER_BYTES = 64 << 10


class UnreadAnswers:
    """Long answers of one socket that nobody has read yet."""

    def __init__(self) -> None:
        self._under_way: list[tuple[zmq.MessageTracker, int]] = []
        self.size_bytes = 0

    def send(self, socket: Any, parts: Sequence[bytes | memoryview]) -> None:
        """Send an answer. If its last part is long, that is not copied, but counted.

        A view of a mapped file is not counted: it takes no memory, and keeps that file mapped.
        """
        last = parts[-1]
        if len(last) <= SHORT_ANSWER_BYTES:
            send_parts(socket, parts)
            return
        is_counted = isinstance(last, bytes)
        tracker = socket.send_multipart(parts, copy=False, track=is_counted)
        if is_counted:
            self.add(tracker, len(last))

    def add(self, tracker: zmq.MessageTracker, size: int) -> None:
        """Count an answer of this size until its tracker says that it was sent."""
        if not tracker.done:
            self._under_way.append((tracker, size))
            self.size_bytes += size

    def room(self) -> int:
        """How many bytes the next answer may have. A short one always has room."""
        if self.size_bytes > MAX_UNREAD_BYTES // 2:
            self._under_way = [each for each in self._under_way if not each[0].done]
            self.size_bytes = sum(size for _, size in self._under_way)
        return max(SHORT_ANSWER_BYTES, MAX_UNREAD_BYTES - self.size_bytes)
