"""Actors killed and frozen at random moments under load: nothing acknowledged is lost, all goes on.

PENSTOCK_CHAOS_KILLS sets how many (24 without it), PENSTOCK_CHAOS_SEED which. Both are printed
with the times from the kill until a new message was acknowledged, and until it was consumed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.producer import Producer

TOPIC = "chaos"
QUEUES = 4
KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "24"))
KILLS_BY_MODE = max(6, KILLS // 8)
ACTORS = ("allocator", "writer", "committer", "flusher", "reput", "reader", "cleaner")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
SERVED_TIMEOUT_S = 15


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={chosen} PENSTOCK_CHAOS_KILLS={KILLS}")
    return chosen


def _victims(kills: int, dice: random.Random) -> list[tuple[str, signal.Signals]]:
    """Every actor with every signal, again and again, each round in another order."""
    victims: list[tuple[str, signal.Signals]] = []
    while len(victims) < kills:
        victims += dice.sample([(a, s) for a in ACTORS for s in SIGNALS], len(ACTORS) * 2)
    return victims[:kills]


def _percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99))
    return f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {ordered[-1] * 1000:.0f} ms"


def _kill(broker: Any, actor: str, number: int) -> int:
    """Signal the actor, which may just be starting; its pid."""
    deadline = time.monotonic() + SERVED_TIMEOUT_S
    while time.monotonic() < deadline:
        if pid := broker.actors()[actor]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # dead already, and the page does not say so yet
            return int(pid)
    raise AssertionError(f"{actor} does not come back\n{broker.output()}")


def _storm(
    broker: Any, producer: Producer, follower: Any, kills: int, dice: random.Random
) -> dict[tuple[signal.Signals, str], list[float]]:
    """Kill, and measure how long it takes until a message gets through, and comes out again."""
    times: dict[tuple[signal.Signals, str], list[float]] = {
        (number, what): [] for number in SIGNALS for what in ("acknowledged", "consumed")
    }
    for count, (actor, number) in enumerate(_victims(kills, dice)):
        time.sleep(dice.uniform(0, 0.15))  # the moment is what the test varies
        killed = time.monotonic()
        _kill(broker, actor, number)
        # not the queue offsets of the load, so the probe has a number of its own
        body = f"probe/0/{count}/{actor}".encode()
        future = producer.send(TOPIC, body, queue=0)
        future.result(SERVED_TIMEOUT_S)
        acknowledged = time.monotonic()
        follower.await_body(body, SERVED_TIMEOUT_S)
        consumed = time.monotonic()
        times[number, "acknowledged"].append(acknowledged - killed)
        times[number, "consumed"].append(consumed - killed)
        said = broker.output().splitlines()[-3:] if consumed - killed > 1 else []
        slow = f" <- slow: {said}" if said else ""
        print(
            f"{count:4} {number.name} {actor:9} acknowledged {acknowledged - killed:.3f} s, "
            f"consumed {consumed - killed:.3f} s{slow}"
        )
    return times


def _bursts(
    broker: Any, producer: Producer, follower: Any, kills: int, dice: random.Random
) -> dict[tuple[signal.Signals, str], list[float]]:
    """Several actors at once, and their successors again while they start."""
    for count in range(kills):
        time.sleep(dice.uniform(0, 0.1))
        actors = dice.sample(ACTORS, dice.randint(2, len(ACTORS)))
        for actor in actors:
            _kill(broker, actor, dice.choice(SIGNALS))
        for _ in range(dice.randint(0, 4)):
            _kill(broker, dice.choice(actors), signal.SIGKILL)
            time.sleep(dice.uniform(0, 0.02))
        body = f"probe/0/{count}/burst".encode()
        producer.send(TOPIC, body, queue=0).result(SERVED_TIMEOUT_S)
        follower.await_body(body, SERVED_TIMEOUT_S)
    return {}


def _run(
    broker: Any,
    torment: Callable[..., dict[tuple[signal.Signals, str], list[float]]],
    kills: int,
    dice: random.Random,
    load: Callable[..., Any],
    follow: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
) -> None:
    broker.start()
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        follower = follow(broker.consume)
        loads = [load(name, broker.produce, rate=2500) for name in ("p1", "p2")]
        times = torment(broker, producer, follower, kills, dice)
        for each in loads:
            each.finish()
    restarts = {a["name"]: a["restarts"] for a in broker.status()["actors"]}
    broker.await_dispatched()
    stored = read_all(broker.consume)
    check_history(loads, stored)
    follower.await_counts({queue: len(found) for queue, found in stored.items()}, 30)
    follower.finish()
    assert follower.bodies == stored, "the consumer that followed saw something else"
    print(f"{sum(each.count() for each in loads)} messages acknowledged; restarts {restarts}")
    for (number, what), seconds in times.items():
        if seconds:
            print(f"{number.name} -> {what}: {_percentiles(seconds)} ({len(seconds)} kills)")


def test_nothing_acknowledged_is_lost_repeated_or_disordered_by_random_kills(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    follow: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    seed: int,
) -> None:
    running = broker()
    dice = random.Random(seed)
    _run(running, _storm, KILLS, dice, load, follow, read_all, check_history)
    running.stop()
    check_store(running)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_it_holds_in_every_mode(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    follow: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    seed: int,
    flush: str,
    pool: bool,
) -> None:
    running = broker(flush_disk_type=flush, transient_store_pool_enable=pool)
    dice = random.Random(f"{seed}-{flush}-{pool}")
    _run(running, _storm, KILLS_BY_MODE, dice, load, follow, read_all, check_history)
    running.stop()
    check_store(running)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_several_actors_killed_at_once_and_again_while_they_start(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    follow: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    seed: int,
    flush: str,
    pool: bool,
) -> None:
    running = broker(flush_disk_type=flush, transient_store_pool_enable=pool)
    dice = random.Random(f"{seed}-{flush}-{pool}")
    _run(running, _bursts, KILLS_BY_MODE, dice, load, follow, read_all, check_history)
    running.stop()
    check_store(running)
