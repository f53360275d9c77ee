"""The demo's middle part: publish the flights at their pace, kill half way, consume and compare.

The consumer is a group of two processes, one of which is killed half way. They write their results
to a second topic, which is read here. A checksum of each sent flight is kept, in order, plane by
plane, and removed in the order in which the group reports having seen them. So a message that is
missing, duplicate, out of order or altered is noticed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.bench.loads.stack import Stack
from penstock.cli.demo.flights_csv import read_flights
from penstock.cli.demo.member import SEEN, TOPIC, Figures, Seen
from penstock.cli.printing.output import progress
from penstock.client.core.sending.frames import SendFuture
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import ConnectError
from penstock.shared.process.broker_status import read_status
from penstock.spark.delays import ALERTS, CLOCK

if TYPE_CHECKING:
    from penstock.spark.flights import CarrierRow

QUEUES = 8
# Flights a second, so that their readers really have a stream to read.
PACE_PER_S = 20_000
# A time after the last flight, which ends the windows of the stream.
AFTER_ALL = "2014-02-01T00:00:00Z"
CONSUME_SILENCE_S = 30
MOST_PROBLEMS = 10


class Outcome(msgspec.Struct):
    """What was counted."""

    published: int = 0
    consumed: int = 0
    restarts: int = 0
    members_killed: int = 0
    figures: dict[str, Figures] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)

    def report(self) -> list[CarrierRow]:
        """The group's results in the form of Spark's report."""
        from penstock.spark.flights import CarrierRow

        return [
            CarrierRow(
                carrier,
                sums.flights,
                sums.departure_delays / sums.departures if sums.departures else None,
                sums.arrival_delays / sums.arrivals if sums.arrivals else None,
                sums.cancelled / sums.flights,
            )
            for carrier, sums in sorted(self.figures.items())
        ]


class _Sent:
    """The flights in flight: checksums of each plane's bodies, in the order of sending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_plane: dict[str | None, deque[int]] = defaultdict(deque)

    def add(self, plane: str | None, body: bytes) -> None:
        with self._lock:
            self._by_plane[plane].append(zlib.crc32(body))

    def take(self, plane: str | None, crc: int) -> bool:
        """Whether this is its plane's next flight; flights without a plane have no order."""
        with self._lock:
            waiting = self._by_plane[plane]
            if plane is not None:
                return bool(waiting) and waiting.popleft() == crc
            try:
                waiting.remove(crc)
            except ValueError:
                return False
            return True


def create_topics(stack: Stack) -> None:
    """Create the demo's topics, because a stream is refused if its topics do not exist."""
    with Producer(stack.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        for topic in (SEEN, CLOCK, ALERTS):
            producer.create_topic(topic, 1)


def publish_and_consume(stack: Stack, total: int, half_way: Callable[[], None]) -> Outcome:
    """Run producer and consumer until both have seen `total` flights. Returns what was counted.

    `half_way` is called when half of them are sent, before the writer is killed.
    """
    outcome = Outcome()
    sent = _Sent()

    def strike() -> None:
        half_way()
        _kill_writer(stack)

    def text(consumed: int, total: int) -> str:
        return f"{outcome.published:,} published, {consumed:,} of {total:,} consumed"

    with (
        progress("flights", text=text) as moved,
        Producer(stack.produce, ack="durable") as producer,
        _members(stack) as members,
    ):
        consumer = threading.Thread(
            target=_consume,
            args=(stack.consume, total, sent, outcome, members, moved),
            daemon=True,
        )
        consumer.start()
        _publish(producer, total, sent, outcome, strike)
        consumer.join()
    actors = read_status(stack.store)["actors"]
    outcome.restarts = sum(actor["restarts"] for actor in actors)
    return outcome


def _publish(
    producer: Producer,
    total: int,
    sent: _Sent,
    outcome: Outcome,
    half_way: Callable[[], None],
) -> None:
    waiting: deque[SendFuture] = deque()

    def acknowledged() -> None:
        waiting.popleft().result(60)
        outcome.published += 1

    began = time.monotonic()
    for number, row in enumerate(read_flights()):
        if number == total // 2:
            half_way()
            began = time.monotonic() - number / PACE_PER_S
        early_s = began + number / PACE_PER_S - time.monotonic()
        if early_s > 0.01:
            time.sleep(early_s)
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
    producer.send(CLOCK, msgspec.json.encode({"time_hour": AFTER_ALL})).result(60)


def _kill_writer(stack: Stack) -> None:
    actors = {actor["name"]: actor for actor in read_status(stack.store)["actors"]}
    pid = actors["writer"]["pid"]
    os.kill(pid, signal.SIGKILL)
    click.echo(f"half way: killed the writer (pid {pid}) with SIGKILL", err=True)


@contextmanager
def _members(stack: Stack) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A group of two, as processes."""
    command = [sys.executable, "-m", "penstock.cli.demo.member", str(stack.store)]
    # an error of theirs shows in messages that do not come
    members = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        yield members
    finally:
        for member in members:
            member.kill()
            member.wait()


def _kill_member(members: list[subprocess.Popen[bytes]], outcome: Outcome) -> None:
    member = members[0]
    member.kill()
    member.wait()
    outcome.members_killed += 1
    text = f"half way: killed one of the group's two members (pid {member.pid}) with SIGKILL"
    click.echo(text, err=True)


def _consume(
    endpoint: str,
    total: int,
    sent: _Sent,
    outcome: Outcome,
    members: list[subprocess.Popen[bytes]],
    moved: Callable[[int, int], None],
) -> None:
    with Consumer(endpoint, SEEN) as consumer:
        while outcome.consumed < total:
            try:
                batch = consumer.poll(CONSUME_SILENCE_S)
            except ConnectError as error:
                outcome.problems.append(str(error))
                return
            if not batch and outcome.consumed >= outcome.published:
                continue  # nothing is due: half way, sending pauses until the streams have begun
            if not batch:
                outcome.problems.append(f"no message came for {CONSUME_SILENCE_S} s")
                return
            for message in batch:
                _take(msgspec.msgpack.decode(message.body, type=Seen), sent, outcome)
            moved(outcome.consumed, total)
            if outcome.consumed >= total // 2 and not outcome.members_killed:
                _kill_member(members, outcome)


def _take(said: Seen, sent: _Sent, outcome: Outcome) -> None:
    for plane, crc in said.flights:
        if not sent.take(plane, crc) and len(outcome.problems) < MOST_PROBLEMS:
            outcome.problems.append(f"a flight of {plane} is not the next one of its plane")
    outcome.consumed += len(said.flights)
    for carrier, figures in said.figures.items():
        outcome.figures.setdefault(carrier, Figures()).add(figures)
