"""Frames that wait to leave, queue by queue; the last one of a queue is open. No sockets.

Queues take turns, and within a queue frames keep their order.
"""

from __future__ import annotations

from collections import deque

from penstock.client.frames import Frame, SendFuture
from penstock.shared.record import Shape

Key = tuple[str, int]


class Outbox:
    """The frames of one producer that have not left yet, by topic and queue id."""

    def __init__(self) -> None:
        self._queues: dict[Key, deque[Frame]] = {}
        self._ready: deque[Key] = deque()

    def __bool__(self) -> bool:
        return bool(self._ready)

    def put(self, key: Key, ack: str, shape: Shape, record: bytes, future: SendFuture) -> None:
        """A message goes into the queue's open frame, or opens one."""
        frames = self._queues.get(key) or self._frames(key)
        if not frames or not frames[-1].takes(len(record), ack, shape):
            frames.append(Frame(*key, ack, shape))
        frames[-1].add(record, future)

    def put_batch(
        self, key: Key, ack: str, shape: Shape, records: list[bytes], future: SendFuture
    ) -> None:
        """A batch is a frame by itself."""
        frame = Frame(*key, ack, shape, batch=True)
        frame.add_batch(records, future)
        self._frames(key).append(frame)

    def _frames(self, key: Key) -> deque[Frame]:
        """The frames of a queue, whose turn comes from now on."""
        frames = self._queues.get(key)
        if frames is None:
            frames = self._queues[key] = deque()
        if not frames:
            self._ready.append(key)
        return frames

    def take(self) -> Frame:
        """The oldest frame of the queue whose turn it is."""
        key = self._ready.popleft()
        frames = self._queues[key]
        frame = frames.popleft()
        if frames:
            self._ready.append(key)
        return frame

    def give_up(self, now_ms: int, before_ms: int) -> list[Frame]:
        """The frames that have waited since before this time; they wait no longer."""
        late = []
        for key in list(self._ready):
            frames = self._queues[key]
            for frame in frames:
                frame.since_ms = frame.since_ms or now_ms
            while frames and frames[0].since_ms < before_ms:
                late.append(frames.popleft())
            if not frames:
                self._ready.remove(key)
        return late
