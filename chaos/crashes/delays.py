"""Delayed messages of all kinds while the scheduler is killed at every point of its work."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import Armed
from penstock.chaos.running.delay_load import DelayLoad


def die_in_delays(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill the scheduler at every point; and the writer where it takes a recall."""
    broker = Broker(place, SMALL, environment=armed.environment())
    broker.start()
    load = DelayLoad(broker, dice)
    try:

        def moved() -> None:
            arena.moved()
            load.step()

        wrong = armed.await_all(broker, moved)
        return wrong + load.finish()
    finally:
        load.close()
        broker.stop()
