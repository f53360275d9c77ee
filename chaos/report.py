"""What a chaos run has done and found. Counts, times and violations; knows no faults."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """A broken promise: what was seen, and the command that shows it again."""

    what: str
    replay: str


class Report(msgspec.Struct):
    """Filled by campaigns while they run."""

    seed: int
    faults: dict[str, int] = msgspec.field(default_factory=Counter)
    acknowledged: int = 0
    consumed: int = 0
    # what was hit, and what came back -> seconds
    seconds: dict[str, list[float]] = msgspec.field(default_factory=lambda: defaultdict(list))
    violations: list[Violation] = msgspec.field(default_factory=list)

    def add_fault(self, kind: str, count: int = 1) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + count

    def add_time(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def add_violations(self, found: list[str], replay: str) -> None:
        self.violations += [Violation(what, replay) for what in found]

    def percentiles_ms(self) -> dict[str, dict[str, float]]:
        """For each kind of time: p50, p99, max, and of how many."""
        found = {}
        for what, seconds in sorted(self.seconds.items()):
            ordered = sorted(seconds)
            last = len(ordered) - 1
            found[what] = {
                "p50_ms": round(ordered[last // 2] * 1000, 1),
                "p99_ms": round(ordered[int(last * 0.99)] * 1000, 1),
                "max_ms": round(ordered[last] * 1000, 1),
                "count": len(ordered),
            }
        return found
