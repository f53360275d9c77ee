"""Answers that were handed to ZeroMQ and have not left: what consumers do not read takes memory.

A short one is copied and not counted here; the number of answers that may wait for one consumer
bounds those.
"""

from __future__ import annotations

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

    def send(self, socket: Any, peer: bytes, answer: bytes) -> None:
        """Send an answer of one part, and count it if it is long."""
        if len(answer) <= SHORT_ANSWER_BYTES:
            send_parts(socket, (peer, answer))
            return
        self.add(socket.send_multipart((peer, answer), copy=False, track=True), len(answer))

    def add(self, tracker: zmq.MessageTracker | None, size: int) -> None:
        """An answer of this size is under way until its tracker says that it is not."""
        if tracker is not None and not tracker.done:
            self._under_way.append((tracker, size))
            self.size_bytes += size

    def room(self) -> int:
        """How many bytes the next answer may have. At least a short one always goes."""
        if self.size_bytes > MAX_UNREAD_BYTES // 2:
            self._under_way = [each for each in self._under_way if not each[0].done]
            self.size_bytes = sum(size for _, size in self._under_way)
        return max(SHORT_ANSWER_BYTES, MAX_UNREAD_BYTES - self.size_bytes)
