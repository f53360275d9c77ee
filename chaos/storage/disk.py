"""A disk that fails with EIO at the Nth flush of a broker's life, or at the Nth call that writes,
makes or opens a file, once or from then on. Some of these calls fail at random, or each in turn.

The first failed flush ends all acknowledgements of durable messages. It is never retried: the
kernel may have dropped what it could not write.
"""

from __future__ import annotations

import errno
import random

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.interposed.faulty_disk import FLUSH, GROW, OPEN, SOURCE
from penstock.chaos.storage.failing_calls import Failing, check_failing
from penstock.chaos.storage.short_life import count_calls

# in a round, per kind of call; any actor may flush, and the flusher's flushes matter most
FAILING = {FLUSH: 3, GROW: 1, OPEN: 1}


def disk_round(arena: Arena, dice: random.Random, replay: str) -> None:
    fail_calls(arena, dice, replay, errno.EIO, FAILING)


def fail_calls(
    arena: Arena, dice: random.Random, replay: str, number: int, counts: dict[str, int]
) -> None:
    """Run lives in which one call fails: some random ones of each kind, or one for each call."""
    library, settings = arena.library(SOURCE), any_settings(dice)
    with arena.room() as room:
        calls = count_calls(room, library, settings)
    for kind, count in counts.items():
        every = range(1, calls[kind] + 1)
        tried = [(nth, once) for nth in every for once in (True, False)]
        if not arena.every:
            tried = [(nth, dice.random() < 0.5) for nth in sorted(dice.sample(every, count))]
        for nth, once in tried:
            failing = Failing(kind, number, nth, once, stays=dice.random() < 0.3)
            with arena.room() as room:
                wrong = check_failing(arena, room, library, settings, failing)
                arena.report.add_violations(wrong, replay)
            arena.report.add_fault(f"{kind} call: {failing.error}")
            arena.moved()
