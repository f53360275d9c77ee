"""What a chaos run has done and found: counts, times and violations, whatever the kind of fault."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.chaos.history import count_lost, count_twice


class Violation(msgspec.Struct, frozen=True):
    """A broken promise: what was seen, and the command that reproduces it."""

    what: str
    replay: str


class Spread(NamedTuple):
    """How long something took: the median, the 99th percentile, the maximum."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Handover(NamedTuple):
    """The time from when a member was killed, or told to leave, until others had its queues: the
    number of queues, and a Spread."""

    queues: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Recovery(msgspec.Struct, frozen=True):
    """From a strike until a message sent then was acknowledged, and until a consumer had it."""

    count: int
    acknowledged: Spread
    consumed: Spread


class Report(msgspec.Struct):
    """Filled by rounds while they run."""

    seed: int
    faults: dict[str, int] = msgspec.field(default_factory=Counter)
    # crash point -> how often a process has died or stopped there
    points: dict[str, int] = msgspec.field(default_factory=dict)
    # things that were still held after a round
    leaked: int = 0
    acknowledged: int = 0
    consumed: int = 0
    # what was struck -> seconds until acknowledged, and until consumed
    recovered: dict[str, list[tuple[float, float]]] = msgspec.field(
        default_factory=lambda: defaultdict(list)
    )
    # what was disturbed, and still is -> seconds until acknowledged
    waited: dict[str, list[float]] = msgspec.field(default_factory=lambda: defaultdict(list))
    # how a member has gone -> seconds until another one had one of its queues
    handed_over: dict[str, list[float]] = msgspec.field(default_factory=lambda: defaultdict(list))
    # actor -> MiB that it took at most, MiB that it kept, seconds until it had given the rest back
    memory: dict[str, list[tuple[float, float, float]]] = msgspec.field(
        default_factory=lambda: defaultdict(list)
    )
    violations: list[Violation] = msgspec.field(default_factory=list)
    # rounds that an error has ended: what clients were told in these was not compared
    not_compared: int = 0

    def add_fault(self, kind: str, count: int = 1) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + count

    def add_recovery(self, what: str, acknowledged_s: float, consumed_s: float) -> None:
        self.recovered[what].append((acknowledged_s, consumed_s))

    def add_wait(self, what: str, acknowledged_s: float) -> None:
        self.waited[what].append(acknowledged_s)

    def add_handover(self, what: str, seconds: float) -> None:
        self.handed_over[what].append(seconds)

    def add_memory(self, actor: str, most_bytes: int, kept_bytes: int, seconds: float) -> None:
        mib = 1 << 20
        self.memory[actor].append((most_bytes / mib, kept_bytes / mib, seconds))

    def add_points(self, fired: Mapping[str, int]) -> None:
        for name, count in fired.items():
            self.points[name] = self.points.get(name, 0) + count
        self.add_fault("crash point", sum(fired.values()))

    def add_violations(self, found: list[str], replay: str) -> None:
        self.violations += [Violation(what, replay) for what in found]

    @property
    def lost(self) -> int:
        """How many messages are lost according to the violations. Rounds `not_compared` do not
        count."""
        return count_lost(each.what for each in self.violations)

    @property
    def twice(self) -> int:
        return count_twice(each.what for each in self.violations)

    def add_failed_round(self, error: str, replay: str) -> None:
        """Note a round that could not go on."""
        self.not_compared += 1
        self.add_violations([error], replay)

    def of_messages(self) -> str:
        """What became of the messages, in one line."""
        line = (
            f"{self.acknowledged} messages acknowledged, {self.lost} lost, {self.twice} twice; "
            f"{self.consumed} followed"
        )
        return f"{line}; rounds not compared: {self.not_compared}" if self.not_compared else line

    def add_leaks(self, found: list[str], replay: str) -> None:
        self.leaked += len(found)
        self.add_violations(found, replay)

    def recovery(self) -> dict[str, Recovery]:
        """The recovery of each that was struck."""
        return {
            what: Recovery(len(times), *(_spread(each) for each in zip(*times, strict=True)))
            for what, times in sorted(self.recovered.items())
        }

    def waits(self) -> dict[str, Spread]:
        """The waits for each that was disturbed."""
        return {what: _spread(seconds) for what, seconds in sorted(self.waited.items())}

    def handovers(self) -> dict[str, Handover]:
        """The handovers for each way in which members have gone."""
        return {
            what: Handover(len(times), *_spread(times))
            for what, times in sorted(self.handed_over.items())
        }

    def most_memory(self) -> dict[str, tuple[float, ...]]:
        """The highest of each number over all rounds."""
        return {
            actor: tuple(round(max(each), 1) for each in zip(*found, strict=True))
            for actor, found in sorted(self.memory.items())
        }


def _spread(seconds: Sequence[float]) -> Spread:
    ordered = [round(each * 1000, 1) for each in sorted(seconds)]
    nearest = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1))
    return Spread(*nearest)
