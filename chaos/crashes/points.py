"""Processes that are killed at every named point of their work, whenever they come to it.

All points that a broker can pass in one way of running are armed at once, each to kill the process
that passes it, at a random Nth time. The supervisor replaces what dies; if it dies itself, or a
start does, the broker is started again. In the end history and store are compared.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT
from typing import NamedTuple

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import (
    ACTORS,
    DELAYS,
    EXPIRY,
    FROZEN,
    GROUPS,
    OFFLINE,
    POOL_ONLY,
    SENDERS,
    SUPERVISOR,
    TOPICS,
    TRANSACTIONS,
    Armed,
    not_reached,
)
from penstock.chaos.crashes.delays import die_in_delays
from penstock.chaos.crashes.expiry import die_expiring
from penstock.chaos.crashes.groups import die_in_groups
from penstock.chaos.crashes.repairs import die_in_repair
from penstock.chaos.crashes.senders import die_sending
from penstock.chaos.crashes.starts import die_in_start
from penstock.chaos.crashes.topics import die_deleting
from penstock.chaos.crashes.transactions import die_in_transactions
from penstock.chaos.under_load import under_load
from penstock.client.sending.producer import Producer


class Way(NamedTuple):
    """A way of running brokers: which points are passed in it, and what happens to a process that
    passes one."""

    run: Callable[[Arena, Path, random.Random, Armed], list[str]]
    points: frozenset[str]
    action: str = "crash"


def points_round(arena: Arena, dice: random.Random, replay: str) -> None:
    for way in WAYS.values():
        with arena.room() as room:
            wrong = run_way(arena, room, dice, way)
            arena.report.add_violations(wrong, replay)
        if wrong:
            return


def run_way(arena: Arena, room: Path, dice: random.Random, way: Way) -> list[str]:
    """Let each of the way's points fire, and count. Returns what is wrong. Raises PenstockError."""
    armed = Armed(room, way.points, arena.hits, dice, way.action)
    try:
        return way.run(arena, room, dice, armed)
    finally:
        arena.report.add_points(armed.counts())


def die_at_work(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill every actor at every point."""
    settings = any_settings(dice) | {"transient_store_pool_enable": armed.points >= POOL_ONLY}
    broker = Broker(place, SMALL | settings, environment=armed.environment())
    # Each successor of a dead writer starts a second later, and may die before it has answered.
    timeout_ms = 30_000 + 5000 * armed.times
    with under_load(broker, timeout_ms=timeout_ms) as running:
        with Producer(broker.produce) as producer:
            sent = [producer.send("other-0", b"other")]

            def moved() -> None:
                """Queues become known once, some together: add another one as long as one is
                needed."""
                arena.moved()
                if sent[-1].done() and "known.written" in armed.missing():
                    sent.append(producer.send(f"other-{len(sent)}", b"other"))

            wrong = armed.await_all(broker, moved)
        return wrong + running.finish()


def freeze_at_work(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Stop actors just before a store to their position, and continue them when their successors
    work: by then they must have been killed."""
    broker = Broker(place, SMALL | any_settings(dice), environment=armed.environment())
    wrong = []
    with under_load(broker) as running:
        met: set[int] = set()
        while armed.missing() or len(met) < len(armed.fired()):
            for name, pid in [row for row in armed.fired() if row[1] not in met]:
                while pid in broker.actors().values() and not armed.has_stalled():
                    time.sleep(0.001)
                try:
                    os.kill(pid, SIGCONT)
                    wrong.append(f"the process frozen at {name} lives next to its successor")
                except ProcessLookupError:
                    met.add(pid)
            if armed.has_stalled():
                raise not_reached(armed.missing(), broker)
            time.sleep(0.005)
            arena.moved()
        return wrong + running.finish()


WAYS = {
    "die at work, pool on": Way(die_at_work, ACTORS),
    "die at work, pool off": Way(die_at_work, ACTORS - POOL_ONLY),
    "freeze at work": Way(freeze_at_work, FROZEN, "stop"),
    "die sending": Way(die_sending, SENDERS),
    "die expiring": Way(die_expiring, EXPIRY),
    "die in groups": Way(die_in_groups, GROUPS),
    "die in delays": Way(die_in_delays, DELAYS),
    "die in transactions": Way(die_in_transactions, TRANSACTIONS),
    "die deleting topics": Way(die_deleting, TOPICS),
    "die in a start or stop": Way(die_in_start, SUPERVISOR),
    "die in a repair": Way(die_in_repair, OFFLINE),
}
