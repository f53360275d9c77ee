"""Processes that are killed at named points of their work, while others are killed from outside."""

from __future__ import annotations

import random

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.kills import run_kills
from penstock.shared.faults import FIRED_VARIABLE, POINTS, VARIABLE

STRIKES = 10
# those that a start does not pass
NAMES = [name for name in POINTS if name.startswith(("write.", "commit.", "flush.", "reput."))]


def points_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        fired = room / "fired"
        fired.touch()
        armed = [f"{name}=crash@{dice.randint(1, 60)}x20" for name in dice.sample(NAMES, 6)]
        environment = {VARIABLE: " ".join(armed), FIRED_VARIABLE: str(fired)}
        run_kills(arena, room, any_settings(dice), STRIKES, dice, replay, environment)
        arena.report.add_fault("crash point", len(fired.read_text().splitlines()))
