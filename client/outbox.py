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

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(
        self, topic: str, queue_id: int, ack: str, draft: Draft, size: int, future: SendFuture
    ) -> None:
        """A message of at most `size` bytes goes into the open frame, or opens one."""
        frame = self._frame(ack, size)
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
        self._frame(ack, size).add_batch(topic, queue_id, drafts, size, future)

    def _frame(self, ack: str, size: int) -> Frame:
        """The open frame, where there is one of the kind with room for so many bytes."""
        if self._frames:
            frame = self._frames[-1]
            # one that a tick has seen takes no more: its messages' time began there
            if frame.ack == ack and frame.size + size <= FRAME_BYTES and not frame.since_ms:
                return frame
        frame = Frame(ack)
        self._frames.append(frame)
        return frame

    def take(self) -> Frame:
        """The oldest frame."""
        return self._frames.popleft()

    def give_up(self, now_ms: int, before_ms: int) -> list[Frame]:
        """The frames that have waited since before this time; they wait no longer."""
        late = []
        frames = self._frames
        while frames and 0 < frames[0].since_ms < before_ms:
            late.append(frames.popleft())
        for frame in reversed(frames):
            if frame.since_ms:
                break  # and so are all before it
            frame.since_ms = now_ms
        return late
