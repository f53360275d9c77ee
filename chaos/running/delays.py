"""Delayed messages while scheduler, writer, other actors and the broker are killed at any moment.

Messages are sent by level, at a time and after a time; some are recalled a moment before they are
due. In the end each message that was acknowledged is in its queue once and was not stored there
before its time, those of one level are in order, and a message whose recall was answered is absent.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL, Broker, fixed_ports
from penstock.chaos.running.delay_load import SOON_MS, DelayLoad
from penstock.shared.faults import VARIABLE
from penstock.shared.memory.roster import ACTORS

# in a round
STRIKES = 10
# What is struck, in percent; "other" is any actor.
STRUCK = {"scheduler": 45, "writer": 15, "other": 20, "broker": 20}
# The writer finds that a message may still be recalled, and then waits until the message is due:
# what it told the scheduler earlier has to hold the message back.
LATE_RECALLS = {VARIABLE: f"write.recall_checked=delay:{2 * SOON_MS}@1x20"}


def delays_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        struck, wrong = run_delays(room, any_settings(dice), STRIKES, dice)
    for kind, count in struck.items():
        arena.report.add_fault(f"{kind} with delayed messages", count)
    arena.report.add_violations(wrong, replay)


def run_delays(
    place: Path, settings: Mapping[str, object], count: int, dice: random.Random
) -> tuple[Counter[str], list[str]]:
    """Strike `count` times at one broker; return how often what was struck, and what is wrong.

    Raises PenstockError when the broker does not come back.
    """
    struck = Counter[str]()
    broker = Broker(place, {**SMALL, **settings, **fixed_ports()}, environment=LATE_RECALLS)
    broker.start()
    load = DelayLoad(broker, dice)
    try:
        for _ in range(count):
            for _ in range(dice.randint(1, 20)):
                load.step(10)
                time.sleep(0.02)  # paces the load; the moment of the strike varies with it
            (kind,) = dice.choices([*STRUCK], [*STRUCK.values()])
            if kind == "broker":
                broker.kill()
                broker.start()
                struck["broker killed"] += 1
                continue
            actor = dice.choice(ACTORS) if kind == "other" else kind
            signal, done = dice.choices([(SIGKILL, "killed"), (SIGSTOP, "frozen")], (4, 1))[0]
            broker.strike(actor, signal)
            struck[f"{kind if kind != 'other' else 'actor'} {done}"] += 1
        return struck, load.finish()
    finally:
        load.close()
        broker.clear()
