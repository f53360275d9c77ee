"""Actors killed and frozen at random moments, alone, together, and with the whole broker.

Load runs all the time. When it has ended, what producers were told and what consumers saw is
compared with what is stored, and the store is checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.report import Report
from penstock.chaos.scene import Scene, scene
from penstock.shared.memory.roster import ACTORS

# strikes in a round
STRIKES = 30
KILLED, FROZEN = (SIGKILL, "killed"), (SIGSTOP, "frozen")
# The actor that is frozen for a moment before the whole broker is killed; "" for none. The pool is
# then full of acknowledged messages, or the log of messages that no queue has yet.
DAMMED = ("", "committer", "committer", "flusher", "reput")
DAMMED_S = 0.05


def kills_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        run_kills(arena, room, any_settings(dice), STRIKES, dice, replay)


def run_kills(
    arena: Arena,
    place: Path,
    settings: Mapping[str, object],
    count: int,
    dice: random.Random,
    replay: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Strike `count` times at one broker. Raises PenstockError when it does not come back."""
    with scene(arena, place, settings, environment) as it:
        for _ in range(count):
            time.sleep(dice.uniform(0, 0.1))  # a strike comes at a random moment
            strike(it, dice)
        it.finish(replay)


def strike(it: Scene, dice: random.Random) -> None:
    """Strike once, and measure until a message gets through again and reaches a consumer."""
    report = it.arena.report
    kind = dice.choices(("one", "burst", "all"), (20, 3, 3))[0]
    if kind == "all" and (actor := dice.choice(DAMMED)):
        it.broker.strike(actor, SIGSTOP)
        time.sleep(dice.uniform(0, DAMMED_S))
    struck = time.monotonic()
    first, *others = _hit(report, it.broker, kind, dice)
    times = it.probe(first, struck)
    for name in others:
        report.add_recovery(name, *times)


def _hit(report: Report, broker: Broker, kind: str, dice: random.Random) -> tuple[str, ...]:
    """Kill or freeze actors; return the names under which the report notes the recovery."""
    if kind == "all":
        broker.kill()
        broker.start()
        report.add_fault("broker killed")
        return ("broker killed",)
    several = kind == "burst"
    actors = dice.sample(ACTORS, dice.randint(2, len(ACTORS)) if several else 1)
    for actor in actors:
        signal, done = dice.choices((KILLED, FROZEN), (3, 1))[0]
        broker.strike(actor, signal)
        report.add_fault(f"actor {done}")
    if not several:
        return (f"{actor} {done}", f"any actor {done}")
    for _ in range(dice.randint(0, 4)):  # and their successors, as they start
        broker.strike(dice.choice(actors), SIGKILL)
        report.add_fault("actor killed")
        time.sleep(dice.uniform(0, 0.02))
    return ("several at once",)
