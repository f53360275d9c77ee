"""The last 15 minutes, a row a second: rates, and how long acknowledgements and flushes took.

One writer, the process that samples. The history is in that process's memory: a new monitor begins
with an empty one, which it shows as unknown and not as nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import islice
from typing import NamedTuple

from penstock.shared.memory.durations import quantile_ns
from penstock.shared.memory.positions import HISTOGRAMS, Positions

ROWS = 900
SAMPLE_MS = 1000
# Observations of `wrote`, which show when the log ended at a stage's position: one for each look of
# about the last minute, and before that one for each row.
_TRAIL = 600


class Row(NamedTuple):
    """One second; durations in ms, None where there were none."""

    at_ms: int
    messages_s: float
    bytes_s: float
    pulls_s: float
    acknowledge_p50_ms: float | None
    acknowledge_p99_ms: float | None
    flush_p50_ms: float | None
    flush_p99_ms: float | None


class _Counted(NamedTuple):
    monotonic_ms: int
    messages: int
    wrote: int
    pulls: int
    buckets: dict[str, list[int]]


class History:
    """The rows, and how late each stage is."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=ROWS)
        self._last: _Counted | None = None
        self._trail: deque[tuple[int, int]] = deque(maxlen=_TRAIL)
        self._long_trail: deque[tuple[int, int]] = deque(maxlen=ROWS)

    def due_ms(self, monotonic_ms: int) -> int:
        """Time until the next row is due, in ms. It is due at the whole second nearest to a second
        after the last one, because that is when idle actors wake."""
        if self._last is None:
            return 0
        due_ms = self._last.monotonic_ms + SAMPLE_MS + SAMPLE_MS // 2
        return due_ms - due_ms % SAMPLE_MS - monotonic_ms

    def look(self, positions: Positions, monotonic_ms: int) -> bool:
        """Note where the log ends now, as often as lateness is to be known exactly; whether it has
        grown."""
        return _note(self._trail, positions["wrote"], monotonic_ms)

    def late_ms(self, position: int, monotonic_ms: int) -> int | None:
        """How long, at least, the log has had more than `position`: a look may have missed the
        start. None if it had more at every remembered look."""
        later = bisect_right(self._trail, position, key=_end)
        if later:
            return monotonic_ms - self._trail[later][0] if later < len(self._trail) else 0
        later = bisect_right(self._long_trail, position, key=_end)
        if not later:
            return None
        # the first look that saw more is in one of the two trails
        found = [*islice(self._trail, 1), *islice(self._long_trail, later, later + 1)]
        return monotonic_ms - min(at_ms for at_ms, _ in found)

    def sample(self, positions: Positions, messages: int, monotonic_ms: int, now_ms: int) -> None:
        """Add a row for the time since the last one."""
        _note(self._long_trail, positions["wrote"], monotonic_ms)
        buckets = {each.name: positions.durations(each.name)[1] for each in HISTOGRAMS}
        pulls = positions["answered_pulls"]
        now = _Counted(monotonic_ms, messages, positions["wrote"], pulls, buckets)
        last, self._last = self._last, now
        if last is None or now.monotonic_ms <= last.monotonic_ms:
            return
        over_s = (now.monotonic_ms - last.monotonic_ms) / 1000
        took = []
        for name in ("acknowledge", "flush"):
            both = buckets[name], last.buckets[name]
            new = [after - before for after, before in zip(*both, strict=True)]
            took += [_ms(quantile_ns(new, share)) for share in (0.5, 0.99)]
        self._rows.append(
            Row(
                now_ms,
                # a deleted topic takes its messages along
                max(0, now.messages - last.messages) / over_s,
                (now.wrote - last.wrote) / over_s,
                (now.pulls - last.pulls) / over_s,
                *took,
            )
        )

    @property
    def last(self) -> Row | None:
        return self._rows[-1] if self._rows else None

    def rows(self) -> list[Row]:
        return list(self._rows)

    def bytes_per_s(self) -> float | None:
        """The log's growth over the recorded part of the 15 minutes; None below a minute."""
        if len(self._rows) < 60:
            return None
        return sum(row.bytes_s for row in self._rows) / len(self._rows)


def _end(seen: tuple[int, int]) -> int:
    return seen[1]


def _note(trail: deque[tuple[int, int]], wrote: int, monotonic_ms: int) -> bool:
    has_grown = not trail or trail[-1][1] != wrote
    if has_grown:
        trail.append((monotonic_ms, wrote))
    return has_grown


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1_000_000
