"""Doorbells between two actors get lost, come twice or come late, for each pair in turn.

A doorbell only says "look", so a pair's bells have no order that could change; late bells change
the order between pairs. An actor that hears no bell looks at the next tick: a message takes at most
two ticks longer, and nothing else happens. That is measured with one message at a time. Then load
runs, all bells are disturbed at random, and actors are killed.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.load import QUEUES, TOPIC, Follower
from penstock.chaos.running.kills import run_kills
from penstock.client.sending.producer import Producer
from penstock.shared.faults import VARIABLE
from penstock.shared.memory.roster import ROSTER

PAIRS = [f"{row.name}-{woken}" for row in ROSTER for woken in row.notifies]
LATE_MS = 5000
# pairs in a round, each with one disturbance; and the strikes after them
MEASURED = 2
STRIKES = 10
ALL = f"bell.lost=yes:30 bell.repeated=yes:50 bell.late=upto:{LATE_MS}"
MESSAGES = 15
# the slower half may have waited for this machine, not for a bell
STALL_S = 0.2
ANSWER_S = 10


def bells_round(arena: Arena, dice: random.Random, replay: str) -> None:
    kinds = [(kind, pair) for kind in ("lost", "repeated", "late") for pair in PAIRS]
    for kind, pair in kinds if arena.every else dice.sample(kinds, MEASURED):
        with arena.room() as room:
            wrong = check_pair(arena, room, any_settings(dice), kind, pair)
            arena.report.add_violations(wrong, replay)
        arena.moved()
    with arena.room() as room:
        run_kills(arena, room, any_settings(dice), STRIKES, dice, replay, {VARIABLE: ALL})
        arena.report.add_fault("round of disturbed doorbells")


def check_pair(
    arena: Arena, place: Path, settings: dict[str, object], kind: str, pair: str
) -> list[str]:
    """Disturb every doorbell of one pair, and measure how long a message takes. Returns what is
    wrong."""
    action = f"upto:{LATE_MS}" if kind == "late" else "yes:100"
    broker = Broker(place, settings, environment={VARIABLE: f"bell.{kind}/{pair}={action}"})
    follower: Follower | None = None
    acknowledged, consumed = [], []
    try:
        broker.start()
        with Producer(broker.produce, ack="durable") as producer:
            producer.create_topic(TOPIC, QUEUES)
            follower = Follower(broker.consume)
            for number in range(MESSAGES):
                body = f"probe/{number % QUEUES}/{number}/".encode()
                began = time.monotonic()
                producer.send(TOPIC, body, queue=number % QUEUES).result(ANSWER_S)
                acknowledged.append(time.monotonic() - began)
                follower.await_body(body, ANSWER_S)
                consumed.append(time.monotonic() - began)
        follower.finish()
        broker.stop()
    finally:
        if follower is not None:
            follower.abandon()
        broker.clear()
    wrong = []
    for what, seconds in (("acknowledged", acknowledged), ("consumed", consumed)):
        if statistics.median(seconds) > STALL_S:
            median_ms = statistics.median(seconds) * 1000
            wrong.append(f"{pair} {kind}: a message is {what} after {median_ms:.0f} ms")
    for each in acknowledged:
        arena.report.add_wait(f"doorbells {kind}: {pair}", each)
    arena.report.acknowledged += len(acknowledged)
    arena.report.add_fault(f"doorbells {kind}: {pair}")
    return wrong
