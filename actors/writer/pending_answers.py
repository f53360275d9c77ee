"""Answers to producers that wait for the disk, in the order of the log.

The order of the log is the order of arrival, so what is due is always at the front.
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
    """An answer that leaves when the disk has the log up to `end`."""

    end: int
    deadline_ms: int
    peer: bytes
    answer: Appended
    # when its frame got its place in the log, on the monotonic clock
    stored_ns: int


class PendingAnswers:
    """The answers of one writer that promise the disk."""

    def __init__(self) -> None:
        self._waiting: deque[_Pending] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first_end(self) -> int:
        """The log offset that the oldest one waits for."""
        return self._waiting[0].end

    def add(
        self, end: int, deadline_ms: int, peer: bytes, answer: Appended, stored_ns: int
    ) -> None:
        self._waiting.append(_Pending(end, deadline_ms, peer, answer, stored_ns))

    def due(self, positions: Positions, now_ms: int) -> Iterator[tuple[bytes, ProduceAnswer]]:
        """Those whose messages are on disk by now, or can no longer get there in time; to whom."""
        # What is flushed is answered first, whatever the error word says: it is on disk.
        waiting, flushed = self._waiting, positions["flushed"]
        while waiting and waiting[0].end <= flushed:
            _, _, peer, answer, stored_ns = waiting.popleft()
            crash_point("write.before_answer")
            yield peer, answer
            # after it has left: nobody waits for a count
            positions.count_duration("acknowledge", max(0, time.monotonic_ns() - stored_ns))
        if waiting and positions["flush_error"]:
            # nothing will be flushed any more until the broker restarts
            error = flush_failed(positions)
            while waiting:
                _, _, peer, answer, _ = waiting.popleft()
                yield peer, refusal(error, answer.seq, answer.session)
        # Stored, and perhaps durable soon: the client has its offsets, and RocketMQ's word for it.
        while waiting and waiting[0].deadline_ms < now_ms:
            _, _, peer, answer, _ = waiting.popleft()
            yield peer, msgspec.structs.replace(answer, status=FLUSH_DISK_TIMEOUT)
