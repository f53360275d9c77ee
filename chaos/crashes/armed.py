"""Crash points that are armed for a broker: in which way of running each fires, and what has fired.

Every point except those of doorbells belongs to one way; points.py, starts.py and repairs.py run
the ways.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.actors.flusher.actor import MOST_REST_MS
from penstock.chaos.broker import Broker
from penstock.shared.errors import StoreUnavailable
from penstock.shared.faults import FIRED_VARIABLE, POINTS, VARIABLE

# The flusher rests after a long round over the queues, and then comes to no point.
STALL_S = 30 + MOST_REST_MS // 1000


def _named(*beginnings: str) -> frozenset[str]:
    return frozenset(name for name in POINTS if name.startswith(beginnings))


BELLS = _named("bell.")
TOPICS = _named("topic.", "reput.queues_", "clean.topic_")
EXPIRY = _named("clean.", "recycle.") - TOPICS
OFFLINE = _named("repair.", "rebuild.")
GROUPS = _named("group.")
DELAYS = _named("schedule.", "write.recall_")
TRANSACTIONS = _named("txn.")
SUPERVISOR = _named(
    "file.", "geometry.", "recover.", "run.", "start.", "sup.", "shutdown.", "index.mid_repair"
)
# producers, and their rings in shared memory
SENDERS = frozenset({"ring.taken", "ring.filled"})
# Spark's processes and the jobs on it, which their own tests kill
SPARK = _named("spark.", "archive.")
# what a start passes after a crash
RECOVERY = _named("recover.", "run.", "start.")
ACTORS = frozenset(POINTS) - BELLS - EXPIRY - OFFLINE - SUPERVISOR - SENDERS - SPARK
ACTORS -= GROUPS | DELAYS | TRANSACTIONS | TOPICS
POOL_ONLY = frozenset({"write.mid_record", "commit.before_copy", "commit.mid_copy"})
# just before a store to a position: a frozen actor has checked its generation by then
FROZEN = frozenset(
    {
        "write.before_publish",
        "commit.before_cursor",
        "flush.after_msync_before_cursor",
        "reput.after_record_before_cursor",
    }
)
# passed in every cycle, so they need not fire the first time; the others are passed seldom
_OFTEN = {
    name
    for name in _named("write.", "commit.", "flush.", "reput.", "ckpt.", "group.")
    if not name.endswith((".mid_record", ".end_of_file_blank", ".roll", ".new_cq_file"))
} - {"reput.new_queue", "flush.mid_index", *TOPICS}
_LATEST = {"file.tmp_written": 3, "file.renamed": 3, "rebuild.before_swap": 2, "sup.after_spawn": 7}
# these make the states that a rare point needs: an index file without an item that counts
_MAKERS = {"make.named": 2, "reput.after_index_before_cursor": 6}
# one in three of these deaths shows that the journal lacks the last change
_LEAST = {"group.before_journal": 8}


class Armed:
    """Points that are to fire `times` times each, at random moments, in all processes together."""

    def __init__(
        self,
        place: Path,
        points: frozenset[str],
        times: int,
        dice: random.Random,
        action: str = "crash",
    ) -> None:
        self.times = times
        self.points = points
        self._action = action
        self._dice = dice
        self._file = place / "fired"
        self._file.touch()
        self._count, self._moved_at = 0, time.monotonic()

    def environment(self, *, alone: bool = False) -> dict[str, str]:
        """The environment that arms them in a process, each time at other moments; with `alone`,
        only one that has not fired yet."""
        words = []
        names = sorted(self.points)
        for name in [self._dice.choice(sorted(self.missing()) or names)] if alone else names:
            first = self._dice.randint(1, 8 if name in _OFTEN else _LATEST.get(name, 1))
            times = self.times * (_MAKERS.get(name, 1) if self._action == "crash" else 1)
            times = max(times, _LEAST.get(name, 1))
            words.append(f"{name}={self._action}@{first}x{times}")
        return {VARIABLE: " ".join(words), FIRED_VARIABLE: str(self._file)}

    def fired(self) -> list[tuple[str, int]]:
        """(point, process) in order."""
        rows = [line.split() for line in self._file.read_text().splitlines()]
        return [(name, int(pid)) for name, pid in rows]

    def counts(self) -> Counter[str]:
        """How often each has fired."""
        return Counter(name for name, _ in self.fired())

    def missing(self) -> set[str]:
        """Points that have not fired often enough yet."""
        counts = self.counts()
        return {name for name in self.points if counts[name] < self.times}

    def has_stalled(self) -> bool:
        """Whether none has fired for longer than it may take."""
        count, now = len(self.fired()), time.monotonic()
        if count != self._count:
            self._count, self._moved_at = count, now
        return now - self._moved_at > STALL_S

    def await_all(self, broker: Broker, moved: Callable[[], None]) -> list[str]:
        """Wait until each has fired often enough in a running broker. Returns a complaint if that
        does not happen."""
        while missing := self.missing():
            if broker.process.poll() is not None:
                raise not_reached(missing, broker)
            if self.has_stalled():
                return [f"crash points are not reached: {sorted(missing)}"]
            time.sleep(0.02)
            moved()
        return []


def not_reached(missing: set[str], broker: Broker) -> StoreUnavailable:
    return StoreUnavailable("not every crash point was reached", sorted(missing), broker.output())
