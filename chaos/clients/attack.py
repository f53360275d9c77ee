"""Clients that mean harm, next to some that do not: one kind of attack after the other, in any
order.

No actor is replaced by what one client sends, nothing is acknowledged that is not stored, the
others are served in time, and memory is given back when the attackers have gone.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.clients.attackers import ATTACKS, Attack
from penstock.chaos.history import check_acknowledged
from penstock.chaos.load import read_all
from penstock.chaos.machine.usage import own_memory_bytes
from penstock.chaos.scene import await_true
from penstock.chaos.under_load import one_load
from penstock.client.producer import Producer
from penstock.shared.errors import PenstockError
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

# Another client's wait at the 99th percentile during one attack, where nothing else is done.
WAIT_S = 1.0
# Besides what heaps may keep: what a broker under load takes for itself.
GROWN_BYTES = 128 << 20
GIVEN_BACK_TIMEOUT_S = 45
_PAUSE_S = 0.02


class Honest:
    """Somebody who sends a message and asks a question, again and again."""

    def __init__(self, broker: Broker) -> None:
        self.waited_s: list[float] = []
        self.wrong: list[str] = []
        self._broker = broker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="honest")
        self._thread.start()

    def _work(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        consumer = dial(context, self._broker.consume)
        try:
            with Producer(self._broker.produce) as producer:
                producer.send("honest", b"first").result(10)
                number = 0
                while not self._stopping.wait(_PAUSE_S):
                    number += 1
                    began = time.monotonic()
                    producer.send("honest", b"x").result(30)
                    consumer.send(encode(messages.Describe(number, "honest", -1)))
                    if not consumer.poll(30_000):
                        self.wrong.append("a consumer gets no answer")
                        return
                    consumer.recv_multipart()
                    self.waited_s.append(time.monotonic() - began)
        except PenstockError as error:
            self.wrong.append(f"a client that means no harm is told: {error}")
        finally:
            consumer.close()
            context.term()

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join()

    def since(self, number: int) -> float:
        """The 99th percentile of the waits from that one on."""
        waits = sorted(self.waited_s[number:])
        return waits[math.ceil(0.99 * len(waits)) - 1] if waits else 0.0


def attack_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        broker = Broker(room, any_settings(dice) | {"max_queues": 2000})
        with one_load(broker, rate=300) as load:
            with _honest(broker) as honest:
                await_true(lambda: bool(honest.waited_s), "a client is served")
                pids = broker.actors()
                before = {name: own_memory_bytes(pid) for name, pid in pids.items()}
                wrong = []
                for attack in dice.sample(ATTACKS, len(ATTACKS)):
                    wrong += _attack(arena, broker, dice, attack, honest)
            load.finish()
            wrong += honest.wrong + _replaced(broker, pids) + _kept(broker, pids, before)
            wrong += [f"a send failed: {error}" for error in load.failed[:1]]
            broker.await_dispatched()
            stored = read_all(broker.consume)
            wrong += check_acknowledged(load.acked, stored, "which were acknowledged")
            arena.report.acknowledged += load.count()
            arena.report.add_violations(wrong, replay)
            broker.stop()


def _attack(
    arena: Arena, broker: Broker, dice: random.Random, attack: Attack, honest: Honest
) -> list[str]:
    name = attack.__name__.replace("_", " ")
    done = len(honest.waited_s)
    found = attack(broker, dice)
    # whoever waits now has waited during it
    await_true(lambda: len(honest.waited_s) > done + 1 or bool(honest.wrong), "others go on", 60)
    p99_s = honest.since(done)
    arena.report.add_fault(name)
    arena.report.add_wait(name, p99_s)
    arena.moved()
    # a machine that does other things has its share of the wait
    allowed_s = WAIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    if p99_s > allowed_s:
        found.append(f"{name}: others waited {p99_s:.1f} s, {allowed_s:.1f} are allowed")
    return found


def _replaced(broker: Broker, pids: dict[str, int]) -> list[str]:
    now = broker.actors()
    return [f"{name} was replaced" for name, pid in pids.items() if now[name] != pid]


def _kept(broker: Broker, pids: dict[str, int], before: dict[str, int]) -> list[str]:
    """What was taken is given back after a while."""

    def grown() -> dict[str, int]:
        more = {name: own_memory_bytes(pid) - before[name] for name, pid in pids.items()}
        return {name: size for name, size in more.items() if size > GROWN_BYTES}

    if _replaced(broker, pids):
        return []
    deadline = time.monotonic() + GIVEN_BACK_TIMEOUT_S
    while grown() and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{name} keeps {size >> 20} MiB" for name, size in grown().items()]


@contextmanager
def _honest(broker: Broker) -> Iterator[Honest]:
    made = Honest(broker)
    try:
        yield made
    finally:
        made.finish()
