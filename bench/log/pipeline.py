"""How late are consume queues compared with the disk at full load, and how much memory is used?

A thread here reads the positions page every few milliseconds, and each process's memory every half
second, the first time before there is any load. The lag is the time since `flushed` was where
`dispatched` is now. A broker that acknowledges earlier also dispatches earlier; there the lag is
that to `committed`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from penstock.bench.loads.accounts import Memory
from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.percentile import percentile
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.log.produce import produce
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape
from penstock.shared.errors import InvalidArgument
from penstock.shared.memory.positions import Positions

LOOK_S = 0.002
MEMORY_S = 0.5
# Growth is looked for in tenths of a run: the first of them is warm-up.
PARTS = 10
# This many samples of memory are shown; the others count only in the summary.
MOST_TOLD = 60


def bench_pipeline(shape: Shape, where: Where, machine: Machine, moved: Moved) -> Result:
    """Watch producers at full rate. Raises StoreUnavailable for a broker on another machine."""
    with opened(where, shape.ack) as target:
        if target.positions is None:
            raise InvalidArgument(
                "the positions of a broker on another machine cannot be read",
                None,
                "run it there, with --store STORE instead of --endpoint",
            )
        idle_mib = _total_mib(target.accounts.memory(), "pss_mib")
        watch = Watch(target, target.positions)
        result = produce(target, shape, machine, moved, "pipeline", during=watch)
        result.details = {"idle_pss_mib": idle_mib} | watch.summary()
    return result


class Lag:
    """How long ago one position passed the place where another one is now."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._times: list[float] = []

    def lag_ms(self, ahead: int, follows: int, now: float) -> float:
        """Note where the first is at `now`; returns how many ms ago it passed the other."""
        if not self._values or ahead > self._values[-1]:
            self._values.append(ahead)
            self._times.append(now)
        if follows >= ahead:
            return 0.0
        return (now - self._times[bisect_right(self._values, follows)]) * 1000


class Watch:
    """The thread that samples, and its samples."""

    def __init__(self, target: Target, positions: Positions) -> None:
        self._target = target
        self._positions = positions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._on_disk, self._in_files, self._disk = Lag(), Lag(), Lag()
        self.behind_flushed_ms: list[float] = []
        self.behind_committed_ms: list[float] = []
        self.flush_ms: list[float] = []
        self.memory: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        began = memory_at = time.monotonic()
        while not self._ended.wait(LOOK_S):
            # the follower is read first, because the position ahead only grows
            dispatched, flushed = self._positions["dispatched"], self._positions["flushed"]
            committed, wrote = self._positions["committed"], self._positions["wrote"]
            now = time.monotonic()
            self.behind_flushed_ms.append(self._on_disk.lag_ms(flushed, dispatched, now))
            committed_ms = self._in_files.lag_ms(committed, dispatched, now)
            self.behind_committed_ms.append(committed_ms)
            self.flush_ms.append(self._disk.lag_ms(wrote, flushed, now))
            if now >= memory_at:
                memory_at += MEMORY_S
                of_each = self._target.accounts.memory()
                self.memory.append({"at_s": round(now - began, 2), "processes": of_each})

    def summary(self) -> dict[str, Any]:
        """The lags, and the memory of each process over time and at its peak."""
        names = self.memory[-1]["processes"] if self.memory else ()
        peaks = {
            name: max(each["processes"][name].pss_mib for each in self.memory) for name in names
        }
        return {
            "reput_behind_flushed": _lag(self.behind_flushed_ms),
            "reput_behind_committed": _lag(self.behind_committed_ms),
            "flushed_behind_wrote": _lag(self.flush_ms),
            "peak_pss_mib": peaks | {"total": round(sum(peaks.values()), 1)},
            "growth_own_mib": self._growth_mib("own_mib"),
            "growth_pss_mib": self._growth_mib("pss_mib"),
            "memory_mib": [
                {
                    "at_s": each["at_s"],
                    "rss": {name: used.rss_mib for name, used in each["processes"].items()},
                    "pss": {name: used.pss_mib for name, used in each["processes"].items()},
                    "own": {name: used.own_mib for name, used in each["processes"].items()},
                }
                for each in self.memory[:: len(self.memory) // MOST_TOLD + 1]
            ],
        }

    def _growth_mib(self, kind: str) -> int | None:
        return growth_mib([_total_mib(each["processes"], kind) for each in self.memory])


def growth_mib(totals: Sequence[float]) -> int | None:
    """How much more memory a run ends with than it had once it was warm, in whole MiB.

    `totals` are samples at regular times; None if they are too few for two medians.
    """
    size = len(totals) // PARTS
    if not size:
        return None
    return round(median(totals[-size:]) - median(totals[size : 2 * size]))


def _total_mib(processes: Mapping[str, Memory], kind: str) -> float:
    total: float = sum(getattr(used, kind) for used in processes.values())
    return round(total, 1)


def _lag(values: list[float]) -> dict[str, float | int | None]:
    return {
        "looks": len(values),
        "p50_ms": percentile(values, 50),
        "p99_ms": percentile(values, 99),
        "max_ms": percentile(values, 100),
    }
