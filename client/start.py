"""Where a consumer is told to begin. Pure: the time is passed."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.arguments import check_whole, shown, wrong_type
from penstock.shared.errors import InvalidArgument

_OFFSET = re.compile(r"[0-9]{1,20}")
_AGO = re.compile(r"-([0-9]{1,15})(ms|s|m|h|d)")
_AGO_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class StartAt(NamedTuple):
    """Where to begin: `offset` of each queue, or the first message stored at `at_ms`."""

    offset: int = -1
    at_ms: int = -1
    latest: bool = False


Start = str | int | dt.datetime | StartAt | Mapping[int, int]


def parse_start(start: str | int | dt.datetime | StartAt, now_ms: int) -> StartAt:
    """earliest, latest, an offset, a datetime, ISO text, or how long ago ("-15m")."""
    if isinstance(start, StartAt):
        return start
    if isinstance(start, dt.datetime):
        return StartAt(at_ms=int(start.timestamp() * 1000))
    if not isinstance(start, str):
        return StartAt(offset=check_offset(start))
    if _OFFSET.fullmatch(start):
        return StartAt(offset=check_offset(int(start)))
    if start == "earliest":
        return StartAt()
    if start == "latest":
        return StartAt(latest=True)
    if ago := _AGO.fullmatch(start):
        return StartAt(at_ms=now_ms - int(ago[1]) * _AGO_MS[ago[2]])
    try:
        return StartAt(at_ms=int(dt.datetime.fromisoformat(start).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            "this is no place to start from",
            shown(start),
            "write earliest, latest, an offset (42), a time (2026-01-02T03:04), or how long ago "
            "(-15m)",
        ) from None


def check_offset(offset: int, name: str = "start") -> int:
    """The offset, if a queue can have it. Raises InvalidArgument."""
    if isinstance(offset, bool) or not hasattr(type(offset), "__index__"):
        expected = "earliest, latest, an offset, a datetime, or how long ago"
        raise wrong_type(InvalidArgument, name, offset, expected)
    number = check_whole(name, offset)
    if not 0 <= number < 1 << 62:
        raise InvalidArgument(
            "no queue can have this offset",
            number,
            "offsets go from 0 to 2**62 - 1; to begin with the oldest message write earliest",
        )
    return number
