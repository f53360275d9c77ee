"""The demo's middle part: publish the flights, kill the writer half way, consume and compare.

What was sent is remembered as one hash for each flight, in order, plane by plane; the consumer
takes them off in the order the messages come. So a message that is missing, comes twice, is out of
order or has other bytes does not go unseen.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict, deque
from collections.abc import Callable

import click
import msgspec

from penstock.bench.stack import Stack
from penstock.cli.flights_csv import read_flights
from penstock.cli.output import progress
from penstock.client.consumer import Consumer
from penstock.client.core.sending.frames import SendFuture
from penstock.client.producer import Producer
from penstock.shared.errors import ConnectError
from penstock.shared.process.broker_status import read_status

TOPIC = "flights"
QUEUES = 8
CONSUME_SILENCE_S = 30
MOST_PROBLEMS = 10


class Outcome(msgspec.Struct):
    """What was counted."""

    published: int = 0
    consumed: int = 0
    restarts: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class _Sent:
    """The flights on their way: hashes of the bodies of each plane, in the order they were sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_plane: dict[str | None, deque[int]] = defaultdict(deque)

    def add(self, plane: str | None, body: bytes) -> None:
        with self._lock:
            self._by_plane[plane].append(hash(body))

    def take(self, plane: str | None, body: bytes) -> bool:
        """Whether this is the next flight of its plane; flights of no plane have no order."""
        with self._lock:
            waiting = self._by_plane[plane]
            if plane is not None:
                return bool(waiting) and waiting.popleft() == hash(body)
            try:
                waiting.remove(hash(body))
            except ValueError:
                return False
            return True


def publish_and_consume(stack: Stack, total: int) -> Outcome:
    """Run producer and consumer until both have seen `total` flights; what was counted."""
    outcome = Outcome()
    sent = _Sent()

    def text(consumed: int, total: int) -> str:
        return f"{outcome.published:,} published, {consumed:,} of {total:,} consumed"

    with progress("flights", text=text) as moved:
        with Producer(stack.produce, ack="durable") as producer:
            producer.create_topic(TOPIC, QUEUES)
            consumer = threading.Thread(
                target=_consume, args=(stack.consume, total, sent, outcome, moved), daemon=True
            )
            consumer.start()
            _publish(producer, stack, total, sent, outcome)
        consumer.join()
    actors = read_status(stack.store)["actors"]
    outcome.restarts = sum(actor["restarts"] for actor in actors)
    return outcome


def _publish(producer: Producer, stack: Stack, total: int, sent: _Sent, outcome: Outcome) -> None:
    waiting: deque[SendFuture] = deque()

    def acknowledged() -> None:
        waiting.popleft().result(60)
        outcome.published += 1

    for number, row in enumerate(read_flights()):
        if number == total // 2:
            _kill_writer(stack)
        body = msgspec.json.encode(row)
        plane = row["tailnum"]
        assert plane is None or isinstance(plane, str)
        sent.add(plane, body)
        waiting.append(
            producer.send(TOPIC, body, tags=str(row["carrier"]), keys=plane, shard=plane)
        )
        while waiting and waiting[0].done():
            acknowledged()
    while waiting:
        acknowledged()


def _kill_writer(stack: Stack) -> None:
    actors = {actor["name"]: actor for actor in read_status(stack.store)["actors"]}
    pid = actors["writer"]["pid"]
    os.kill(pid, signal.SIGKILL)
    click.echo(f"half way: killed the writer (pid {pid}) with SIGKILL", err=True)


def _consume(
    endpoint: str,
    total: int,
    sent: _Sent,
    outcome: Outcome,
    moved: Callable[[int, int], None],
) -> None:
    with Consumer(endpoint, TOPIC) as consumer:
        while outcome.consumed < total:
            try:
                batch = consumer.poll(CONSUME_SILENCE_S)
            except ConnectError as error:
                outcome.problems.append(str(error))
                return
            if not batch:
                outcome.problems.append(f"no message came for {CONSUME_SILENCE_S} s")
                return
            for message in batch:
                outcome.consumed += 1
                if (
                    not sent.take(message.keys, message.body)
                    and len(outcome.problems) < MOST_PROBLEMS
                ):
                    outcome.problems.append(f"{message!r} is not the next one of its plane")
            moved(outcome.consumed, total)
