"""Filters on store times: which parts of queues, or of the log, must be read for them.

    the log        .. 9:58  10:02  10:01  10:05 | .. 11:59  12:00  11:58  12:13 ..
    10:10 to 12:00                       start -^                        ^- stop

Store times grow along the log: Penstock ensures that, but RocketMQ's follow its clock, which may be
set back. So a bisection looks for a place that is earlier, or later, by SLACK_MS. As long as a
clock is not set back by more than that, what is left out has no message of these times. Tasks
compare each message that they read, so it does no harm to read more.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from penstock.spark.ranges import QueueRange
from penstock.spark.reading.predicates import Predicate, limits
from penstock.spark.reading.queues import Queue

SLACK_MS = 600_000
_EPOCH, _MS = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(milliseconds=1)
# The first and the last store time that may have to be read; None: no limit.
Span = tuple[int | None, int | None]
ANY_TIME: Span = None, None


def span_of(predicates: Sequence[Predicate], start_ms: int = -1, stop_ms: int = -1) -> Span:
    """The store times that can fulfil all filters and, unless they are negative, lie in [start,
    stop); with the slack on both sides."""
    least, most = limits(predicates, "store_timestamp")
    firsts = [] if least is None else [(least - _EPOCH) // _MS]
    lasts = [] if most is None else [(most - _EPOCH) // _MS + 1]
    firsts += [start_ms] if start_ms >= 0 else []
    lasts += [stop_ms] if stop_ms >= 0 else []
    return (
        max(firsts) - SLACK_MS if firsts else None,
        min(lasts) + SLACK_MS if lasts else None,
    )


def is_within(span: Span, first_ms: int | None, next_ms: int | None) -> bool:
    """Whether a piece of the log may have a message of these times. `first_ms` is the time of its
    first record, `next_ms` that of the first record after it; None if unknown."""
    low, high = span
    is_before = low is not None and next_ms is not None and next_ms < low
    is_after = high is not None and first_ms is not None and first_ms >= high
    return not (is_before or is_after)


def within(ranges: Sequence[QueueRange], queues: Sequence[Queue], span: Span) -> list[QueueRange]:
    """The parts of the ranges that may have messages of these times."""
    if span == ANY_TIME:
        return list(ranges)
    first_ms, last_ms = span
    by_name = {(queue.topic, queue.queue_id): queue for queue in queues}
    found = []
    for piece in ranges:
        queue = by_name[piece.topic, piece.queue_id]
        start, stop = piece.start, piece.stop
        if start < stop and first_ms is not None:
            start = min(max(start, queue.offset_at(first_ms)), stop)
        if start < stop and last_ms is not None:
            stop = max(min(stop, queue.offset_at(last_ms)), start)
        found.append(piece._replace(start=start, stop=stop))
    return found
