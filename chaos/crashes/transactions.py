"""Transactions whose actor is killed anywhere: what local transactions decided must hold."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import Armed
from penstock.chaos.running.transactions import SOON, Sellers


def die_in_transactions(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill the transactions actor at every point."""
    broker = Broker(place, SMALL | SOON, environment=armed.environment())
    broker.start()
    sellers = Sellers(broker, place)
    try:
        sellers.start()
        wrong = armed.await_all(broker, arena.moved)
        wrong += sellers.settle()
        broker.stop()
        return wrong
    finally:
        sellers.kill_all()
        broker.clear()
