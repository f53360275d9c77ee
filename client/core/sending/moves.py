"""Moves messages whose queue was refused to another queue of their topic, where order allows.

A message without queue, sharding key or selector may go to any queue, so it need not fail when a
queue is refused because its topic has fewer by now. The topic's route is asked for again, and the
message tries another queue, as often as RocketMQ's retryTimesWhenSendFailed says. A message that
chooses its queue never moves: another queue would break its order.

Nothing else moves a message. If no answer comes, the message may be stored, so it is sent again to
the same queue, where the writer finds its copy. If the broker is busy, away, or cannot write, that
is so for all its queues. Pure: every call passes the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.core.sending.frames import Frame
from penstock.client.core.sending.queue_faults import EXCEPTION_MS, QueueFaults
from penstock.client.core.sending.routes import Parked, Routes
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
)
from penstock.shared.loops.forms import Draft

# Tries of a message after the first. [retryTimesWhenSendFailed]
MAX_MOVES = 2
# Refusals of a frame that are about only one of its runs.
OF_ONE_RUN = (InvalidMessage, InvalidArgument, TopicNotFound, QueueNotFound)


class Moves:
    """The moves of one producer's messages."""

    def __init__(self, routes: Routes, room: Callable[[str, Draft], int]) -> None:
        """`room` says how many bytes a message takes at most."""
        self._routes = routes
        self._room = room
        # set by a driver that wants queues to rest after they were refused or slow
        self.faults: QueueFaults | None = None

    def answered(self, frame: Frame, now_ms: int) -> None:
        """Note that the broker has stored a frame."""
        if self.faults is not None and (latency_ms := now_ms - frame.since_ms) > 0:
            for run in frame.runs:
                self.faults.note(run.topic, (run.queue_id,), latency_ms, now_ms)
            self.look(now_ms)

    def refused(self, frame: Frame, error: PenstockError, now_ms: int) -> bool:
        """A frame of one run was refused. Returns whether its messages go to another queue."""
        if not isinstance(error, QueueNotFound):
            return False
        run = frame.runs[0]
        # for later messages, whatever becomes of these
        self._routes.ask(run.topic)
        if self.faults is not None:
            self.faults.note(run.topic, (run.queue_id,), EXCEPTION_MS, now_ms)
            self.look(now_ms)
        # an earlier try of a retry may be stored
        if run.fixed or frame.retry or len(frame.tried) >= MAX_MOVES:
            return False
        tried = (*frame.tried, run.queue_id)
        sends = [run.drafts] if run.batch else [[draft] for draft in run.drafts]
        futures: list[Any] = run.futures
        for drafts, future in zip(sends, futures, strict=True):
            size = sum([self._room(run.topic, draft) for draft in drafts])
            self._routes.park(
                Parked(run.topic, drafts, size, future, None, None, frame.ack, run.batch, tried)
            )
        frame.runs = []
        return True

    def look(self, now_ms: int) -> None:
        """Give turns again to queues that have rested enough, and none to those that rest now."""
        if self.faults is not None:
            for topic, resting in self.faults.changes(now_ms):
                self._routes.rotation.rest(topic, resting)
