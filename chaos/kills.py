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
from penstock.chaos.history import check_acknowledged, check_order
from penstock.chaos.load import QUEUES, TOPIC, Follower, Load, read_all
from penstock.chaos.report import Report
from penstock.client.producer import Producer
from penstock.shared.index_files import index_geometry
from penstock.shared.positions import ACTORS
from penstock.shared.verify import verify_store

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
    settings: dict[str, object],
    count: int,
    dice: random.Random,
    replay: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Strike `count` times at one broker. Raises PenstockError when it does not come back."""
    report = arena.report
    broker = Broker(place, {**settings, **fixed_ports()}, environment=environment)
    loads: list[Load] = []
    follower: Follower | None = None
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
            follower = Follower(broker.consume)
            loads = [Load(name, broker.produce, rate=1000) for name in ("p1", "p2")]
            for number in range(count):
                time.sleep(dice.uniform(0, 0.1))  # the moment is what varies
                kind = dice.choices(("one", "burst", "all"), (20, 3, 3))[0]
                _strike(broker, kind, dice, report, producer, follower, number)
                arena.moved()
        for each in loads:
            each.finish()
        broker.await_dispatched()
        report.add_violations(_check(broker, loads, follower), replay)
        broker.stop()
        checked = verify_store(broker.store, index=index_geometry(broker.config))
        report.add_violations([f"{p.kind}: {p.detail}" for p in checked.problems], replay)
        report.acknowledged += sum(each.count() for each in loads)
        report.consumed += len(follower.seen)
    finally:
        for each in loads:
            each.abandon()
        if follower is not None:
            follower.abandon()
        broker.clear()


def _strike(
    broker: Broker,
    kind: str,
    dice: random.Random,
    report: Report,
    producer: Producer,
    follower: Follower,
    number: int,
) -> None:
    """One strike, and the time until a message gets through again, and comes out."""
    struck = time.monotonic()
    if kind == "all":
        broker.kill()
        broker.start()
        what = "broker killed"
        report.add_fault(what)
    else:
        several = kind == "burst"
        actors = dice.sample(ACTORS, dice.randint(2, len(ACTORS)) if several else 1)
        for actor in actors:
            signal, done = dice.choices((KILLED, FROZEN), (3, 1))[0]
            broker.strike(actor, signal)
            report.add_fault(f"actor {done}")
        what = "several at once" if several else f"{actor} {done}"
    # not the numbers of the load, so the probe has a sender of its own
    body = f"probe/0/{number}/{what}".encode()
    producer.send(TOPIC, body, queue=0).result(SERVED_TIMEOUT_S)
    acknowledged = time.monotonic() - struck
    follower.await_body(body, SERVED_TIMEOUT_S)
    consumed = time.monotonic() - struck
    report.add_recovery(what, acknowledged, consumed)
    if kind == "one":
        report.add_recovery(f"any actor {done}", acknowledged, consumed)


def _check(broker: Broker, loads: list[Load], follower: Follower) -> list[str]:
    stored = read_all(broker.consume)
    wrong = check_order(stored)
    # an actor is killed by us and by the supervisor, and has no other reason to end
    wrong += [line for line in broker.output().splitlines() if " exited with " in line][:1]
    wrong += _strays(broker)
    for load in loads:
        wrong += check_acknowledged(load.acked, stored, f"messages of {load.name} are lost")
        if load.failed:
            wrong.append(f"{len(load.failed)} sends failed, first {load.failed[0]}")
    follower.await_counts({queue: len(found) for queue, found in stored.items()}, 30)
    follower.finish()
    if follower.bodies != stored:
        wrong.append("a consumer that followed saw something else than what is stored")
    return wrong


def _strays(broker: Broker) -> list[str]:
    """Processes beside the supervisor and the actors: a frozen one that was replaced alive."""
    until = time.monotonic() + SERVED_TIMEOUT_S
    while True:
        known = {broker.process.pid, *broker.actors().values()}
        strays = [pid for pid in broker.processes() if pid not in known]
        if not strays or time.monotonic() > until:
            return [f"process {pid} lives beside its successor" for pid in strays]
