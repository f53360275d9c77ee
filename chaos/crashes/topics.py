"""A topic is deleted and created again, over and over, while the processes that delete it are
killed.

Each life of the topic has its own messages. A consumer of one life must get all of that life's, at
offsets from 0 on, and none of another's, whatever was killed in between. Other topics keep theirs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import TypeVar

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import Armed, not_reached
from penstock.chaos.crashes.starts import start_or_die
from penstock.chaos.stepped.replay import check_whole
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import PenstockError, TopicNotFound
from penstock.shared.faults import VARIABLE

TOPIC, OTHER = "reborn", "stays"
QUEUES, MESSAGES = 3, 30
TIMEOUT_S = 30
AT_START = "topic.forgotten_at_start"
# no reput gets further, so the queues are still there when the broker is killed
STUCK = "reput.queues_marked=crash@1x100000"

T = TypeVar("T")


def die_deleting(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill the writer, the reput, the cleaner, and a start, at each point of a deletion."""
    broker = Broker(place, SMALL, environment=armed.environment())
    broker.start()
    lives = _Lives(broker)
    try:
        while armed.missing() - {AT_START}:
            arena.moved()
            if armed.has_stalled():
                raise not_reached(armed.missing(), broker)
            lives.live()
        lives.await_quiet()
        while AT_START in armed.missing():
            arena.moved()
            broker.stop()
            broker.environment = {VARIABLE: STUCK}
            broker.start()
            lives.live()
            broker.process.send_signal(SIGKILL)
            broker.wait_end()
            broker.await_gone()
            broker.environment = armed.environment()
            while not start_or_die(broker):
                arena.moved()
            if armed.has_stalled():
                raise not_reached(armed.missing(), broker)
        lives.live()
        lives.await_quiet()
        broker.stop()
        return lives.wrong + check_whole(broker.store, broker.config)
    finally:
        broker.clear()


class _Lives:
    """One topic's lives, and what was wrong with them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._life = self._others = 0
        self.wrong: list[str] = []

    def live(self) -> None:
        """Create the topic, fill it, read it, delete it."""
        self._life += 1
        with Producer(store=self._broker.store, timeout_ms=TIMEOUT_S * 1000) as producer:
            _again(lambda: producer.create_topic(TOPIC, QUEUES))
            sent = [
                producer.send(TOPIC, f"{self._life} {number}".encode(), queue=number % QUEUES)
                for number in range(MESSAGES)
            ]
            other = producer.send(OTHER, b"other")
            expected = {}
            for number, future in enumerate(sent):
                receipt = future.result(TIMEOUT_S)
                body = f"{self._life} {number}".encode()
                expected[receipt.queue_id, receipt.queue_offset] = body
            other.result(TIMEOUT_S)
            self._others += 1
            self._compare(TOPIC, expected)
            if len(found := _again(lambda: _read(self._broker, OTHER))) != self._others:
                self.wrong.append(f"{OTHER} has {len(found)} messages of {self._others}")
            _again(lambda: _delete(producer))

    def _compare(self, topic: str, expected: dict[tuple[int, int], bytes]) -> None:
        found = _again(lambda: _read(self._broker, topic))
        if found != expected or min(offset for _, offset in expected):
            foreign = sorted(found.items() - expected.items())[:3]
            self.wrong.append(
                f"life {self._life} of {topic} has {len(found)} messages of {len(expected)}, from "
                f"{min(expected)} on; not of it: {foreign}"
            )

    def await_quiet(self) -> None:
        """Wait until nothing of a deleted topic is left in the file system."""
        deadline = time.monotonic() + TIMEOUT_S
        places = [
            self._broker.store / "consumequeue" / TOPIC,
            *(self._broker.store / "penstock" / "deleted").glob("*"),
        ]
        while any(place.exists() for place in places):
            if time.monotonic() > deadline:
                self.wrong.append(f"files of deleted queues stay: {places}")
                return
            time.sleep(0.01)


def _delete(producer: Producer) -> None:
    try:
        producer.delete_topic(TOPIC)
    except TopicNotFound:
        return  # an earlier try has deleted it, and its answer was lost


def _read(broker: Broker, topic: str) -> dict[tuple[int, int], bytes]:
    with Consumer(store=broker.store, topic=topic, follow=False) as consumer:
        return {(m.queue_id, m.queue_offset): bytes(m.body) for m in consumer}


def _again(action: Callable[[], T]) -> T:
    """Repeat it until it works: the processes that it needs are being killed."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return action()
        except PenstockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
