"""Power failures at every event of one trace, of a broker that is stepped in one process.

No broker processes are started, and no C compiler is needed. power.py does it the other way, with
real processes that are recorded: that has more load, and sees a disk only where something is
synced.

A trace is a function of its seed, so each process that shares the work plays the trace itself.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.arena import Arena
from penstock.chaos.stepped.event_judge import Depth, Judged, judge_trace
from penstock.chaos.stepped.event_trace import record_trace
from penstock.chaos.stepped.replay import in_memory

ROUND = Depth(few=8, chosen=1)
MOST_ACTS = 3
_PARTS = 16


class Part(NamedTuple):
    """One part of the work on a trace."""

    seed: int
    number: int


class PartJudged(NamedTuple):
    judged: Judged
    acknowledged: int


def judge_part(part: Part) -> PartJudged:
    """Play a trace and judge a part of it."""
    dice = random.Random(part.seed)
    with tempfile.TemporaryDirectory(prefix="events-of-penstock-", dir=in_memory()) as place:
        trace = record_trace(Path(place), dice, dice.randint(1, MOST_ACTS))
        scratch = Path(place) / "image"
        scratch.mkdir()
        first, stop = (
            1 + len(trace.events) * number // _PARTS for number in (part.number, part.number + 1)
        )
        judged = judge_trace(trace, scratch, dice, ROUND, range(first, stop))
    return PartJudged(judged, len(trace.acked))


def events_round(arena: Arena, dice: random.Random, replay: str) -> None:
    """One trace, with a power failure at each of its events."""
    seed = dice.getrandbits(32)
    tasks = [Part(seed, number) for number in range(_PARTS)]
    before = arena.report.acknowledged
    for judged, acknowledged in arena.check(judge_part, tasks):
        arena.report.add_violations(judged.wrong, replay)
        arena.report.add_fault("power failure at an event", judged.events)
        arena.report.add_fault("state of a disk", judged.states)
        arena.report.add_fault("state that was not met before", judged.started)
        arena.report.acknowledged = before + acknowledged  # each part reports the whole trace's
