"""Actors killed and frozen at random moments, alone, together, and with the whole broker.

Load runs all the time. When it has ended, what producers were told and consumers saw is held
against what is stored, and the store is checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.load import TOPIC
from penstock.chaos.report import Report
from penstock.chaos.under_load import UnderLoad, under_load
from penstock.client.producer import Producer
from penstock.shared.positions import ACTORS

# strikes in a round
STRIKES = 30
SERVED_TIMEOUT_S = 15
KILLED, FROZEN = (SIGKILL, "killed"), (SIGSTOP, "frozen")


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
    broker = Broker(place, {**settings, **fixed_ports()}, environment=environment)
    with under_load(broker) as running:
        with Producer(broker.produce) as producer:
            for number in range(count):
                time.sleep(dice.uniform(0, 0.1))  # the moment is what varies
                _strike(arena, running, producer, dice, number)
                arena.moved()
        arena.report.add_violations(running.finish(), replay)
        arena.report.acknowledged += sum(each.count() for each in running.loads)
        arena.report.consumed += len(running.follower.seen)


def _strike(
    arena: Arena, running: UnderLoad, producer: Producer, dice: random.Random, number: int
) -> None:
    """One strike, and the time until a message gets through again, and comes out."""
    struck = time.monotonic()
    names = _hit(arena.report, running.broker, dice)
    # not the numbers of the load, so the probe has a sender of its own
    body = f"probe/0/{number}/{names[0]}".encode()
    producer.send(TOPIC, body, queue=0).result(SERVED_TIMEOUT_S)
    acknowledged = time.monotonic() - struck
    running.follower.await_body(body, SERVED_TIMEOUT_S)
    consumed = time.monotonic() - struck
    for name in names:
        arena.report.add_recovery(name, acknowledged, consumed)


def _hit(report: Report, broker: Broker, dice: random.Random) -> tuple[str, ...]:
    """Kill or freeze somebody; what that is called, for those whom it may concern."""
    kind = dice.choices(("one", "burst", "all"), (20, 3, 3))[0]
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
    for _ in range(dice.randint(0, 4)):  # and their successors, while they start
        broker.strike(dice.choice(actors), SIGKILL)
        report.add_fault("actor killed")
        time.sleep(dice.uniform(0, 0.02))
    return ("several at once",)
