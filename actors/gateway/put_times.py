"""How long clients' messages took until they were stored, in RocketMQ's words.

All messages of a frame count with the time of the one that has waited longest: to time each would
slow down all of them, for what an operator asks now and then. A batch is one message here, as in
RocketMQ.
"""

from __future__ import annotations

from collections import Counter

SPAN_MS = 60_000
# upper bounds, and RocketMQ's names for what lies within them
_STEPS_MS = {
    0: "<=0ms", 10: "0~10ms", 50: "10~50ms", 100: "50~100ms", 200: "100~200ms", 500: "200~500ms",
    1000: "500ms~1s", 2000: "1~2s", 3000: "2~3s", 4000: "3~4s", 5000: "4~5s", 10_000: "5~10s",
}  # fmt: skip
_LATER, _LATER_MS = "10s~", 10_001


class PutTimes:
    """The times of this minute, and of the last whole one."""

    def __init__(self) -> None:
        # of this run
        self.longest_ms = self.failed = 0
        # ms -> how many
        self._now = Counter[int]()
        self._last: Counter[int] | None = None
        self._until_ms = 0

    def took(self, ms: int, count: int) -> None:
        self.longest_ms = max(self.longest_ms, ms)
        self._now[min(ms, _LATER_MS)] += count

    def work(self, now_ms: int) -> None:
        if now_ms >= self._until_ms:
            if self._until_ms:
                self._last, self._now = self._now, Counter()
            self._until_ms = now_ms + SPAN_MS

    def described(self) -> str:
        """How many took how long in the last whole minute; "null" before the first."""
        if self._last is None:
            return "null"
        counts = dict.fromkeys((*_STEPS_MS.values(), _LATER), 0)
        for ms, count in self._last.items():
            counts[next((_STEPS_MS[step] for step in _STEPS_MS if ms <= step), _LATER)] += count
        return " ".join(f"[{name}]:{count}" for name, count in counts.items())

    def within(self, share: float) -> int:
        """In how many ms this share of the last whole minute's messages was stored; 0 of none."""
        times = self._last or Counter()
        left = share * times.total()
        for ms in sorted(times):
            left -= times[ms]
            if left <= 0:
                return ms
        return 0
