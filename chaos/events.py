"""Power failures at every event: of one trace of a broker that is stepped in one process.

No other process is started, and no C compiler is needed. The other way, of real processes that are
recorded, is power.py's: it has more load, and sees a disk only where something is synced.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from penstock.chaos.arena import Arena
from penstock.chaos.event_judge import Depth, judge_trace
from penstock.chaos.event_trace import record_trace
from penstock.chaos.replay import in_memory

ROUND = Depth(few=8, chosen=1)
MOST_ACTS = 3


def events_round(arena: Arena, dice: random.Random, replay: str) -> None:
    """One trace, with a power failure at each of its events."""
    with tempfile.TemporaryDirectory(prefix="events-of-penstock-", dir=in_memory()) as place:
        trace = record_trace(Path(place), dice, dice.randint(1, MOST_ACTS))
        scratch = Path(place) / "image"
        scratch.mkdir()
        judged = judge_trace(trace, scratch, dice, ROUND, arena.moved)
    arena.report.add_violations(judged.wrong, replay)
    arena.report.add_fault("event with a power failure", judged.events)
    arena.report.add_fault("state of a disk", judged.states)
    arena.report.add_fault("different state started", judged.started)
    arena.report.acknowledged += len(trace.acked)
