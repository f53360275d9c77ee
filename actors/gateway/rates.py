"""How many messages came in and went out, lately and by day: what operators' tools show as TPS.

Every few seconds, while this process runs, a total that only grows is sampled. Times are monotonic;
days are the machine's, by wall time.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable

SAMPLE_MS = 5000
_SHOWN_S = (10, 60, 600)
# Every sample is kept for some minutes, and one a minute for a day.
_FINE, _COARSE_MS = 150, 60_000


class Rate:
    """One total, at several times."""

    def __init__(
        self,
        total: Callable[[], int],
        now_ms: int,
        fine: int = _FINE,
        coarse_ms: int = _COARSE_MS,
    ) -> None:
        """The last `fine` samples are all kept, and for a day one each `coarse_ms`."""
        self._count, self._most_fine, self._coarse_ms = total, fine, coarse_ms
        self.total = self._began = total()
        self._fine = [(now_ms, self.total)]
        self._coarse = [(now_ms, self.total)]
        self._day = 0
        # what was counted in this run up to the last midnight, and the one before
        self.today = self.yesterday = 0

    def sample(self, now_ms: int, day: int = 0) -> None:
        """`day` is the day of the year; 0 where days are not told apart."""
        self.total = self._count()
        self._fine.append((now_ms, self.total))
        del self._fine[: -self._most_fine]
        if now_ms - self._coarse[-1][0] >= self._coarse_ms:
            self._coarse.append((now_ms, self.total))
            del self._coarse[: -1 - 86_400_000 // self._coarse_ms]
        if self._day and day != self._day:
            self.yesterday, self.today = self.today, self.in_run
        self._day = day

    @property
    def in_run(self) -> int:
        """How many since this process began."""
        return self.total - self._began

    def within(self, seconds: int) -> int:
        """How many in these last seconds, as far as it is known."""
        return self.total - self._at(seconds)[1]

    def rates(self) -> str:
        """A second's worth over 10 s, 1 min and 10 min, as RocketMQ writes it."""
        found = []
        for seconds in _SHOWN_S:
            at_ms, total = self._at(seconds)
            passed_s = max(1.0, (self._fine[-1][0] - at_ms) / 1000)
            found.append(str(round((self.total - total) / passed_s, 2)))
        return " ".join(found)

    def _at(self, seconds: int) -> tuple[int, int]:
        """The last sample that is at least this old, or the first there is."""
        wanted_ms = self._fine[-1][0] - seconds * 1000
        rows = self._fine if self._fine[0][0] <= wanted_ms else self._coarse
        return rows[max(0, bisect_left(rows, (wanted_ms + 1, 0)) - 1)]


class Rates:
    """What came in and what went out: messages that were put and got, and pulls by whether they
    have found any."""

    def __init__(
        self,
        now_ms: int,
        *,
        put: Callable[[], int],
        got: Callable[[], int],
        found: Callable[[], int],
        missed: Callable[[], int],
    ) -> None:
        self.put, self.got = Rate(put, now_ms), Rate(got, now_ms)
        self.found, self.missed = Rate(found, now_ms), Rate(missed, now_ms)
        self.pulls = Rate(lambda: found() + missed(), now_ms)
        self._due_ms = now_ms + SAMPLE_MS

    def work(self, now_ms: int, wall_ms: int) -> None:
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + SAMPLE_MS
            day = time.localtime(wall_ms / 1000).tm_yday
            for each in (self.put, self.got, self.found, self.missed, self.pulls):
                each.sample(now_ms, day)
