"""Doorbells between actors that get lost or ring twice, while actors are killed."""

from __future__ import annotations

import random

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.kills import run_kills
from penstock.shared.faults import VARIABLE

STRIKES = 10


def bells_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        environment = {VARIABLE: "bell.lost=yes:30 bell.repeated=yes:50"}
        run_kills(arena, room, any_settings(dice), STRIKES, dice, replay, environment)
        arena.report.add_fault("round of lost and repeated doorbells")
