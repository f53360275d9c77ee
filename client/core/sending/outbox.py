"""Frames that wait to leave, in the order their messages came; the last one is open.

Messages of all queues and topics share a frame, as long as they want the same acknowledgement.
"""

from __future__ import annotations

from collections import deque

from penstock.client.core.sending.encoding import waiting_form
from penstock.client.core.sending.frames import Frame, SendFuture
from penstock.client.core.sending.round_robin import RoundRobin
from penstock.client.core.sending.routes import Parked
from penstock.shared.loops.active import FrameOfRuns, Intake
from penstock.shared.loops.forms import FRAME_BYTES, Draft

# At most 8 frames in flight, or 16 while full frames are queued. Sending more partly filled frames
# would only make them smaller: while one waits, the messages that follow pack into it.
MAX_IN_FLIGHT, MAX_FULL_IN_FLIGHT = 8, 16


class Outbox:
    """The frames of one producer that have not left yet.

    The open one is `intake.frame`, where the fast path finds it; only this class puts it there.
    """

    def __init__(self, intake: Intake, turns: RoundRobin) -> None:
        self._intake = intake
        self._turns = turns
        self._frames: deque[Frame] = deque()

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(
        self,
        topic: str,
        queue_id: int,
        ack: str,
        draft: Draft,
        size: int,
        future: SendFuture,
        fixed: bool = False,
    ) -> None:
        """Put a message of at most `size` bytes into the open frame, or open one for it."""
        self._frame_for(ack, size).put(topic, queue_id, draft, size, future, fixed)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        ack: str,
        drafts: list[Draft],
        size: int,
        future: SendFuture,
        fixed: bool = False,
    ) -> None:
        """Put a batch, which stays together, into one frame."""
        self._frame_for(ack, size).put_batch(topic, queue_id, drafts, size, future, fixed)

    def enter(self, queue_id: int, made: Parked) -> None:
        """Put a message or batch whose queue is known now."""
        topic, drafts, size, future, _, _, ack, batch, tried, delay = made
        fixed = made.is_fixed
        if delay is not None:
            drafts = [waiting_form(drafts[0], topic, queue_id, delay)]
            topic, queue_id, fixed = delay.topic, delay.queue_id, True
        if batch:
            self.put_batch(topic, queue_id, ack, drafts, size, future, fixed)
        else:
            self.put(topic, queue_id, ack, drafts[0], size, future, fixed)
        if tried:
            frame = self._frames[-1]
            frame.tried = max(frame.tried, tried, key=len)

    def _frame_for(self, ack: str, size: int) -> FrameOfRuns:
        """The open frame, if it is of this kind and has room; else a new one."""
        frame = self._intake.frame
        if frame is None or frame.ack != ack or frame.size + size > FRAME_BYTES:
            return self.open_frame(ack)
        return frame

    def open_frame(self, ack: str) -> Frame:
        """Open a new frame for what comes next."""
        self._end()
        self._frames.append(frame := Frame(ack))
        self._intake.frame = frame
        return frame

    def put_frame(self, frame: Frame) -> None:
        """Append a frame that no other message may join."""
        self._end()
        self._frames.append(frame)

    def _end(self) -> None:
        """The open frame takes no more messages."""
        if (frame := self._intake.frame) is not None:
            self._turns.go_on({run.topic for run in frame.runs})
            self._intake.frame = None

    def may_leave(self, in_flight: int) -> bool:
        """Whether the oldest frame may leave while `in_flight` are unanswered."""
        if in_flight < MAX_IN_FLIGHT:
            return True
        is_full = len(self._frames) > 1 or self._intake.frame is None and bool(self._frames)
        return is_full and in_flight < MAX_FULL_IN_FLIGHT

    def take(self) -> Frame:
        """The oldest frame."""
        frame = self._frames.popleft()
        if frame is self._intake.frame:
            self._end()
        return frame

    def give_up(self, now_ms: int, before_ms: int) -> list[Frame]:
        """Remove and return the frames that have waited since before this time."""
        late = []
        frames = self._frames
        # no message may join a frame whose time is already running
        self._end()
        while frames and 0 < frames[0].since_ms < before_ms:
            late.append(frames.popleft())
        for frame in reversed(frames):
            if frame.since_ms:
                break  # all frames before it have their time too
            frame.since_ms = now_ms
        return late
