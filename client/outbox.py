"""Frames that wait to leave, in the order their messages came; the last one is open. No sockets.

Messages of all queues and topics share a frame, as long as they want the same acknowledgement.
"""

from __future__ import annotations

from collections import deque

from penstock.client.frames import FRAME_BYTES, Frame, SendFuture
from penstock.shared.hot_loops import Draft


class Outbox:
    """The frames of one producer that have not left yet."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        # the last one, while it takes messages
        self._open: Frame | None = None

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(
        self, topic: str, queue_id: int, ack: str, draft: Draft, size: int, future: SendFuture
    ) -> None:
        """A message of at most `size` bytes goes into the open frame, or opens one."""
        frame = self._open
        if frame is None or frame.ack != ack or frame.size + size > FRAME_BYTES:
            frame = self._begin(ack)
        run = frame.open_runs.get((topic, queue_id)) or frame.run(topic, queue_id)
        drafts = run.drafts
        future.run, future.index = run, len(drafts)
        drafts.append(draft)
        run.futures.append(future)
        frame.size += size

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        ack: str,
        drafts: list[Draft],
        size: int,
        future: SendFuture,
    ) -> None:
        """A batch stays together."""
        frame = self._open
        if frame is None or frame.ack != ack or frame.size + size > FRAME_BYTES:
            frame = self._begin(ack)
        frame.add_batch(topic, queue_id, drafts, size, future)

    def _begin(self, ack: str) -> Frame:
        frame = self._open = Frame(ack)
        self._frames.append(frame)
        return frame

    def take(self) -> Frame:
        """The oldest frame."""
        frame = self._frames.popleft()
        if frame is self._open:
            self._open = None
        return frame

    def give_up(self, now_ms: int, before_ms: int) -> list[Frame]:
        """The frames that have waited since before this time; they wait no longer."""
        late = []
        frames = self._frames
        # it takes no more: the time of its messages has begun
        self._open = None
        while frames and 0 < frames[0].since_ms < before_ms:
            late.append(frames.popleft())
        for frame in reversed(frames):
            if frame.since_ms:
                break  # and so are all before it
            frame.since_ms = now_ms
        return late
