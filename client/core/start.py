"""Where a consumer is told to begin. Pure: the time is passed.

A number is an offset below 10^12, and ms since 1970 from there on: 10^12 ms is the year 2001, and
no queue has had an offset that high. In a mapping from queue to offset, and in a StartAt, numbers
are not interpreted.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.core.arguments import check_at_least, check_whole, shown, wrong_type
from penstock.shared.errors import InvalidArgument, OffsetOutOfRange
from penstock.shared.wire.messages import QueueRange

# The first number that is ms since 1970 and not an offset.
LEAST_MS = 10**12
# The highest offset that a queue can have.
MOST_OFFSET = (1 << 62) - 1
_OFFSET = r"[0-9]{1,20}"
_AGO = r"-([0-9]{1,15})(ms|s|m|h|d)"
_AGO_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class StartAt(NamedTuple):
    """Where to begin: `offset` of each queue, or the first message stored at `at_ms`."""

    offset: int = -1
    at_ms: int = -1
    latest: bool = False


Start = str | int | dt.datetime | StartAt | Mapping[int, int]


def parse_start(start: str | int | dt.datetime | StartAt, now_ms: int) -> StartAt:
    """earliest, latest, an offset, ms since 1970, a datetime, ISO text, or "-15m": how long ago."""
    if isinstance(start, StartAt):
        return start
    if isinstance(start, dt.datetime):
        return _at(start)
    if not isinstance(start, str) or re.fullmatch(_OFFSET, start):
        number = check_offset(int(start) if isinstance(start, str) else start)
        return StartAt(at_ms=number) if number >= LEAST_MS else StartAt(offset=number)
    if start == "earliest":
        return StartAt()
    if start == "latest":
        return StartAt(latest=True)
    if ago := re.fullmatch(_AGO, start):
        return StartAt(at_ms=now_ms - int(ago[1]) * _AGO_MS[ago[2]])
    return _at(start)


def _at(time: dt.datetime | str) -> StartAt:
    try:
        moment = dt.datetime.fromisoformat(time) if isinstance(time, str) else time
        return StartAt(at_ms=int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):  # also a local time at either end of the calendar
        raise InvalidArgument(
            "this is neither an offset nor a time",
            shown(time),
            "write earliest, latest, an offset (42), a time (2026-01-02T03:04), ms since 1970, or "
            "how long ago (-15m)",
        ) from None


def check_offset(offset: int, name: str = "start") -> int:
    """The offset, if a queue can have it. Raises InvalidArgument."""
    if isinstance(offset, bool) or not hasattr(type(offset), "__index__"):
        expected = "earliest, latest, an offset, a datetime, or how long ago"
        raise wrong_type(InvalidArgument, name, offset, expected)
    number = check_whole(name, offset)
    if not 0 <= number <= MOST_OFFSET:
        raise InvalidArgument(
            "no queue can have this offset",
            number,
            "offsets go from 0 to 2**62 - 1; to begin with the oldest message write earliest",
        )
    return number


def check_given(start: Start) -> dict[int, int]:
    """The offsets of a start that names them by queue, else {}. Raises InvalidArgument."""
    given = start if isinstance(start, Mapping) else {}
    return {
        check_at_least("a queue of start", queue_id, 0): check_offset(offset, f"start[{queue_id}]")
        for queue_id, offset in given.items()
    }


def first_offset(start: StartAt, queue: QueueRange) -> int:
    """Where reading begins in a queue whose range the broker has described."""
    if start.latest:
        return queue.max_offset
    if start.at_ms >= 0:
        return queue.at_offset
    # an expired offset is still asked for: the answer says where to go on
    return start.offset if start.offset >= 0 else queue.min_offset


def last_offset(end_at: Mapping[int, int] | int, queue: QueueRange) -> int:
    """Where a consumer that stops ends in a queue: at the queue's end, or earlier if told so."""
    at = end_at if isinstance(end_at, int) else end_at.get(queue.queue_id, queue.max_offset)
    return min(at, queue.max_offset)


def check_within(start: StartAt, queues: Iterable[QueueRange], topic: str) -> None:
    """Raise OffsetOutOfRange if every queue of a topic ends before the offset to begin at."""
    longest = max((queue.max_offset for queue in queues), default=0)
    if start.offset > longest:
        raise OffsetOutOfRange(
            f"every queue of topic {topic} ends before this offset",
            start.offset,
            f"the longest ends at {longest}: start there or before, at earliest or at latest",
        )
