"""Answers to producers that wait for the disk, in the order of the log.

The log has frames in the order of arrival, so the answers that are due are always at the front.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.actors.writer.refusals import flush_failed
from penstock.shared.errors import FLUSH_DISK_TIMEOUT
from penstock.shared.faults import crash_point
from penstock.shared.memory.positions import Positions
from penstock.shared.wire.messages import Appended, ProduceAnswer, refusal


class _Pending(NamedTuple):
    """An answer to send when the disk has the log up to `end`."""

    end: int
    deadline_ms: int
    peer: bytes
    answer: Appended
    # when its frame got its place in the log, on the monotonic clock
    stored_ns: int


class PendingAnswers:
    """The answers of one writer that promise durability."""

    def __init__(self) -> None:
        self._waiting: deque[_Pending] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first_end(self) -> int:
        """The log offset that the oldest answer waits for."""
        return self._waiting[0].end

    def add(
        self, end: int, deadline_ms: int, peer: bytes, answer: Appended, stored_ns: int
    ) -> None:
        self._waiting.append(_Pending(end, deadline_ms, peer, answer, stored_ns))

    def due(self, positions: Positions, now_ms: int) -> Iterator[tuple[bytes, ProduceAnswer]]:
        """(peer, answer) for messages that are on disk, or can no longer get there in time."""
        # Flushed messages are on disk, so they are answered first, even after a flush error.
        waiting, flushed = self._waiting, positions["flushed"]
        while waiting and waiting[0].end <= flushed:
            _, _, peer, answer, stored_ns = waiting.popleft()
            crash_point("write.before_answer")
            yield peer, answer
            # counted after the answer has left, so that nobody waits for the count
            positions.count_duration("acknowledge", max(0, time.monotonic_ns() - stored_ns))
        if waiting and positions["flush_error"]:
            # nothing will be flushed any more until the broker restarts
            error = flush_failed(positions)
            while waiting:
                _, _, peer, answer, _ = waiting.popleft()
                yield peer, refusal(error, answer.seq, answer.session)
        # Stored, and perhaps durable soon: the client gets its offsets with RocketMQ's status.
        while waiting and waiting[0].deadline_ms < now_ms:
            _, _, peer, answer, _ = waiting.popleft()
            yield peer, msgspec.structs.replace(answer, status=FLUSH_DISK_TIMEOUT)
