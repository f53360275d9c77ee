"""Answers that were handed to ZeroMQ and have not left: what consumers do not read takes memory.

A short one is copied and not counted here; the number of answers that may wait for one consumer
bounds those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from penstock.shared.wire.sockets import send_parts

# Together; beyond it an answer is short.
MAX_UNREAD_BYTES = 64 << 20
SHORT_ANSWER_BYTES = 64 << 10


class UnreadAnswers:
    """Long answers of one socket that nobody has read yet."""

    def __init__(self) -> None:
        self._under_way: list[tuple[zmq.MessageTracker, int]] = []
        self.size_bytes = 0

    def send(self, socket: Any, parts: Sequence[bytes | memoryview]) -> None:
        """Send an answer, of which the last part may be long: then it is not copied, and counted.

        A view of a mapped file is not: it takes no memory, and keeps that file mapped.
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
        """An answer of this size is under way until its tracker says that it is not."""
        if not tracker.done:
            self._under_way.append((tracker, size))
            self.size_bytes += size

    def room(self) -> int:
        """How many bytes the next answer may have. At least a short one always goes."""
        if self.size_bytes > MAX_UNREAD_BYTES // 2:
            self._under_way = [each for each in self._under_way if not each[0].done]
            self.size_bytes = sum(size for _, size in self._under_way)
        return max(SHORT_ANSWER_BYTES, MAX_UNREAD_BYTES - self.size_bytes)
