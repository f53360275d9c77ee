"""Resolves options to one offset for each queue: where a query begins, and where it ends.

Owns the forms in which an offset may be written. The existing queues are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.core.start import LEAST_MS, parse_start
from penstock.shared.errors import ConfigError, InvalidArgument, OffsetOutOfRange
from penstock.spark.reading.options import Options
from penstock.spark.reading.queues import GroupOffsets, Queue

EARLIEST, LATEST = -2, -1  # as numbers in the offsets options
GROUP = "group:"
# the latest time that can be asked for
MOST_MS = (1 << 62) - 1

ByQueue = dict[str, dict[str, int]]
# the offsets of a group, by its name
OffsetsOf = Callable[[str], GroupOffsets]
# whether a queue would be read but has had no message yet
IsEmpty = Callable[[str, int], bool]


class _End(NamedTuple):
    """One end of the ranges, as the options give it."""

    option: str
    offsets: str
    timestamp: str
    by_timestamp: str
    otherwise: int  # for a queue that JSON does not name


def starting(options: Options) -> _End:
    return _End(
        "startingOffsets",
        options.starting_offsets,
        options.starting_timestamp,
        options.starting_offsets_by_timestamp,
        EARLIEST,
    )


def ending(options: Options) -> _End:
    return _End(
        "endingOffsets",
        options.ending_offsets,
        options.ending_timestamp,
        options.ending_offsets_by_timestamp,
        LATEST,
    )


def resolve(
    end: _End,
    queues: Sequence[Queue],
    offsets_of: OffsetsOf,
    is_empty: IsEmpty,
    now_ms: int,
    *,
    strict: bool,
) -> list[int]:
    """One offset for each queue, within its range. A time takes precedence over an offset, as in
    Spark's Kafka source.

    Raises ConfigError, GroupNotFound, and OffsetOutOfRange if `strict`; otherwise the nearest
    offset counts.
    """
    if end.timestamp:
        at_ms = parse_time(end.option.replace("Offsets", "Timestamp"), end.timestamp, now_ms)
        return [queue.offset_at(at_ms) for queue in queues]
    if end.by_timestamp:
        option = f"{end.option}ByTimestamp"
        named = parse_json(end.by_timestamp, option)
        _check_read(_others(named, queues), option, is_empty)
        times = [named.get(queue.topic, {}).get(str(queue.queue_id)) for queue in queues]
        return [
            _clamped(queue, end.otherwise)
            if each is None
            else queue.offset_at(_checked_time(each, option))
            for queue, each in zip(queues, times, strict=True)
        ]
    wanted, others = _offsets(end, queues, offsets_of)
    _check_read(others, end.option, is_empty)
    if strict:
        for queue, offset in zip(queues, wanted, strict=True):
            place = f"{queue.topic}/{queue.queue_id}"
            _check_within(place, offset, queue.min_offset, queue.max_offset, end.option)
        for (topic, number), offset in others.items():
            _check_within(f"{topic}/{number}", offset, 0, 0, end.option)
    return [_clamped(queue, offset) for queue, offset in zip(queues, wanted, strict=True)]


def _offsets(
    end: _End, queues: Sequence[Queue], offsets_of: OffsetsOf
) -> tuple[list[int], dict[tuple[str, str], int]]:
    """The offset given for each queue, and those given for other queues."""
    text = end.offsets.strip()
    if text.lower() in ("earliest", "latest"):
        return [EARLIEST if text.lower() == "earliest" else LATEST] * len(queues), {}
    if text.startswith(GROUP):
        found = offsets_of(text.removeprefix(GROUP))
        return [
            found.get(queue.topic, {}).get(queue.queue_id, end.otherwise) for queue in queues
        ], {}
    named = parse_json(text, end.option)
    return [
        named.get(queue.topic, {}).get(str(queue.queue_id), end.otherwise) for queue in queues
    ], _others(named, queues)


def _others(named: ByQueue, queues: Sequence[Queue]) -> dict[tuple[str, str], int]:
    """What the JSON gives for queues that are not among these."""
    known = {(queue.topic, str(queue.queue_id)) for queue in queues}
    return {
        (topic, queue_id): at
        for topic, by_queue in named.items()
        for queue_id, at in by_queue.items()
        if (topic, queue_id) not in known
    }


def _check_read(others: Iterable[tuple[str, str]], option: str, is_empty: IsEmpty) -> None:
    """Raise ConfigError for queues that are not read, but not for those without a message."""
    strange = [
        f"{topic}/{queue_id}"
        for topic, queue_id in others
        if not (queue_id.isdecimal() and is_empty(topic, int(queue_id)))
    ]
    if strange:
        raise ConfigError(
            f"{option} names queues that are not read",
            ", ".join(strange),
            "name those that are subscribed to and that the store has",
        )


def _check_within(place: str, offset: int, lowest: int, highest: int, option: str) -> None:
    """Raise OffsetOutOfRange for an offset that a queue does not have."""
    if offset not in (EARLIEST, LATEST) and not lowest <= offset <= highest:
        raise OffsetOutOfRange(
            f"{option} lies outside the queue",
            f"{place} at {offset}",
            f"it has {lowest} to {highest}; -2 is the earliest, -1 the latest, and with "
            'option("failOnDataLoss", "false") the nearest one counts',
        )


def _clamped(queue: Queue, offset: int) -> int:
    if offset == EARLIEST:
        return queue.min_offset
    if offset == LATEST:
        return queue.max_offset
    return min(max(offset, queue.min_offset), queue.max_offset)


def _checked_time(at_ms: int, option: str) -> int:
    """The time. Raises ConfigError for numbers that a broker would not take for a time."""
    if not 0 <= at_ms <= MOST_MS:
        raise ConfigError(f"{option} has a number that is no time", at_ms, "write ms since 1970")
    return at_ms


def parse_json(text: str, option: str) -> ByQueue:
    """{"topic": {"0": 17}}. Raises ConfigError."""
    try:
        parsed: Any = msgspec.json.decode(text, type=ByQueue)
    except msgspec.MsgspecError as error:
        by_time = "Timestamp" in option
        forms = "ms since 1970 as" if by_time else "earliest, latest, group:NAME, or"
        raise ConfigError(
            f"{option} cannot be read",
            f"{text}: {error}",
            f'write {forms} JSON like {{"topic": {{"0": {LEAST_MS if by_time else 17}}}}}',
        ) from error
    return dict(parsed)


def parse_assign(text: str) -> dict[str, list[int]]:
    """{"topic": [0, 1]}. Raises ConfigError."""
    try:
        parsed: Any = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            "assign cannot be read", f"{text}: {error}", 'write JSON like {"topic": [0, 1]}'
        ) from error
    return dict(parsed)


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Ms since 1970. Raises ConfigError."""
    try:
        at_ms = parse_start(text, now_ms).at_ms
    except InvalidArgument:
        at_ms = -1
    if at_ms < 0:
        raise ConfigError(
            f"{option} is no time",
            text,
            f"write ms since 1970 ({LEAST_MS} or later), a time (2026-01-02T03:04), or how long "
            "ago (-15m)",
        )
    return at_ms
