"""Two to four kinds of harm at once: processes die and stand still, the clock jumps, doorbells get
lost, consumers stop reading, clients are greedy, connections come and go."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.clients.crowd import churn, stuck_consumers
from penstock.chaos.load import TOPIC
from penstock.chaos.running.clock import JUMPS_S, SETTINGS, SOURCE, Skew, jump
from penstock.chaos.running.frozen import freeze
from penstock.chaos.running.kills import strike
from penstock.chaos.running.memory import greed
from penstock.chaos.scene import Scene, scene
from penstock.shared.faults import VARIABLE

# in a round
HARMS = 6


def mixed_round(arena: Arena, dice: random.Random, replay: str) -> None:
    library = arena.library(SOURCE)
    with arena.room() as room, ExitStack() as left:
        skew = Skew(room, library)
        left.callback(skew.close)

        def leap(it: Scene, dice: random.Random) -> None:
            jump(it, skew, dice.choice(JUMPS_S), dice)

        def get_stuck(it: Scene, dice: random.Random) -> None:
            stuck.enter_context(stuck_consumers(it.broker.consume, TOPIC))

        def want_much(it: Scene, dice: random.Random) -> None:
            greed(it.broker, dice)

        harms: list[Callable[[Scene, random.Random], None]]
        harms = [strike, freeze, leap, get_stuck, want_much, churn]
        chosen = dice.sample(harms, dice.randint(2, 4))
        environment = dict(skew.environment)
        if dice.random() < 0.5:
            environment[VARIABLE] = "bell.lost=yes:30 bell.repeated=yes:50"
        settings = {**SETTINGS, **any_settings(dice)}
        with scene(arena, room, settings, environment, rate=500) as it, ExitStack() as stuck:
            for _ in range(HARMS):
                dice.choice(chosen)(it, dice)
                arena.report.add_fault("harm among others")
            it.probe("several kinds of harm", time.monotonic())
            it.finish(replay)
