"""The supervisor is killed: it takes the actors with it, and the next start finds everything.

All processes are gone then, but not the memory: what was acknowledged as `written`, and stood in
the pool only, is there after the restart too. The producers carry on by themselves.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.sending.producer import Producer
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run

pytestmark = pytest.mark.takes(35)

TOPIC = "chaos"
QUEUES = 4
DEATHS = 5
GONE_S = 2
# a start may find a second's worth of messages not yet covered by the checkpoint
START_S = 5


@pytest.fixture
def ports() -> dict[str, int]:
    """Ports that stay the same over restarts; they lie where no connection takes its own."""
    found: dict[str, int] = {}
    candidate = random.SystemRandom().randrange(10_000, 30_000)
    for name in ("produce_port", "consume_port", "group_port", "transaction_port"):
        while name not in found:
            candidate += 1
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", candidate)) != 0:
                    found[name] = candidate
    return found


def _await_more(loads: list[Any], count: int) -> None:
    """Wait until each producer has this many more acknowledgements."""
    goals = [each.count() + count for each in loads]
    deadline = time.monotonic() + 120
    while any(each.count() < goal for each, goal in zip(loads, goals, strict=True)):
        assert time.monotonic() < deadline, "the producers do not get on"
        time.sleep(0.005)


def _killed_within_s(broker: Any, own_clock: Callable[..., float]) -> float:
    """How long until all actors were gone, on the clock of this process: it looks for them without
    a pause, so on a busy machine it is kept from looking as they are from dying."""
    began_s = own_clock()
    broker.kill()
    return own_clock() - began_s


def _waited_s(broker: Any, own_clock: Callable[..., float]) -> float:
    """For how long a start had no CPU: that process of the broker which had to wait longest."""
    pids = [broker.process.pid, *broker.actors().values()]
    return max(time.monotonic() - own_clock(pid) for pid in pids)


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_supervisor_takes_its_actors_along_and_the_restart_finds_every_message(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    follow: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    ports: dict[str, int],
    own_clock: Callable[..., float],
    flush: str,
    pool: bool,
) -> None:
    running = broker(flush_disk_type=flush, transient_store_pool_enable=pool, **ports)
    running.start()
    with Producer(running.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
    follower = follow(running.consume)
    loads = [
        load("durable", running.produce, ack="durable"),
        load("written", running.produce, ack="written"),
    ]
    for _ in range(DEATHS):
        _await_more(loads, 200)
        assert _killed_within_s(running, own_clock) < GONE_S
        took = running.start() - _waited_s(running, own_clock)
        assert took < START_S, f"ready only after {took:.1f} s"
        print(f"restart ready after {took:.2f} s; {running.output().splitlines()[-1]}")
    _await_more(loads, 200)
    for each in loads:
        each.finish()
    running.await_dispatched()
    stored = read_all(running.consume)
    check_history(loads, stored)
    follower.await_counts({queue: len(found) for queue, found in stored.items()}, 30)
    follower.finish()
    assert follower.bodies == stored
    running.stop()
    check_store(running)


def test_after_a_reboot_everything_durable_is_there(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    ports: dict[str, int],
) -> None:
    """The memory goes with the machine; here it is deleted between kill and start."""
    running = broker(**ports)
    running.start()
    with Producer(running.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
    loads = [load("p1", running.produce), load("p2", running.produce)]
    for _ in range(2):
        _await_more(loads, 300)
        running.kill()
        run = read_run(StorePaths(running.store))
        assert run is not None
        shutil.rmtree(run.path)
        running.start()
    _await_more(loads, 100)
    for each in loads:
        each.finish()
    running.await_dispatched()
    check_history(loads, read_all(running.consume))
    running.stop()
    check_store(running)


def test_memory_of_a_run_is_not_used_when_another_broker_had_the_store_since(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
) -> None:
    """RocketMQ writes its own process id into `abort`. What it stored must not be overwritten."""
    running = broker()
    running.start()
    with Producer(running.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
    one = load("p1", running.produce)
    _await_more([one], 300)
    one.finish()
    running.kill()
    StorePaths(running.store).abort.write_text("1")
    running.start()
    assert " 0 bytes taken from the pool" in running.output()
    running.await_dispatched()
    check_history([one], read_all(running.consume))
    running.stop()


def test_a_stopped_actor_does_not_outlive_the_supervisor(
    broker: Callable[..., Any], own_clock: Callable[..., float]
) -> None:
    running = broker(actor_stopped_timeout_ms=60_000)
    running.start()
    writer = running.actors()["writer"]
    os.kill(writer, signal.SIGSTOP)
    assert _killed_within_s(running, own_clock) < GONE_S
    running.start()
    running.stop()
