"""A Spark query that streams a store into files, killed with its workers and with its broker.

Messages are sent all the while. When every one of them has arrived the rows must be the messages:
none missing, none twice. The rows are counted without Spark, from the files that its sink has
written down, and the messages by a consumer of the broker.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

import psutil

from penstock.chaos.broker import Broker, running
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.shared.errors import StoreUnavailable

TOPIC, QUEUES = "streamed", 3
# How long a start of Spark and a batch may take on a machine that does other things, and how long
# all rows may take after the last strike.
BATCH_S, SETTLE_S = 180.0, 240.0
# What is struck, and how often of a hundred times.
STRUCK = {"driver": 20, "python worker": 35, "broker": 20, "writer": 10, "reput": 10, "flusher": 5}

Row = tuple[int, int, bytes]


class Verdict(NamedTuple):
    """What was struck, and which rows are missing, or there more often than once."""

    struck: Counter[str]
    messages: int
    rows: int
    lost: list[Row]
    repeated: list[Row]

    def __str__(self) -> str:
        struck = ", ".join(f"{count} x {name}" for name, count in sorted(self.struck.items()))
        return (
            f"{self.struck.total()} kills ({struck}): {self.messages:,} messages, {self.rows:,} "
            f"rows, {len(self.lost)} lost, {len(self.repeated)} repeated"
        )


class _Query:
    """The program, started again whenever it is killed; its JVM and its workers go with it."""

    def __init__(self, store: Path, place: Path) -> None:
        self._store, self._place = store, place
        place.mkdir()
        self.start()

    def start(self) -> None:
        with (self._place / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.chaos.clients.stream_query"]
                + [str(self._store), str(self._place)],
                stdout=said,
                stderr=said,
                env={**os.environ, "TMPDIR": str(self._place)},
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9 of the driver: Python and JVM at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Spark's daemon of workers leads a group of its own, and ends when its JVM is gone
        for each in self._strays():
            with suppress(psutil.NoSuchProcess):  # it has just done so
                each.kill()

    def _strays(self) -> list[psutil.Process]:
        found = []
        for each in psutil.process_iter(["environ", "cmdline"]):
            environment = each.info["environ"] or {}
            if environment.get("TMPDIR") == str(self._place):
                found.append(each)
        return found

    def kill_worker(self, dice: random.Random) -> bool:
        """kill -9 of one of Spark's Python processes; whether there was one."""
        workers = [
            each
            for each in self._strays()
            if each.pid != self._process.pid
            and any("pyspark" in word for word in each.info["cmdline"] or [])
            and "java" not in (each.info["cmdline"] or [""])[0]
        ]
        if not workers:
            return False
        dice.choice(workers).kill()
        return True

    @property
    def batches(self) -> int:
        """How many batches it has ended, in all its lives."""
        commits = self._place / "checkpoint" / "commits"
        if not commits.is_dir():
            return 0
        return max((int(p.name) for p in commits.iterdir() if p.name.isdigit()), default=-1) + 1

    def await_batch(self, after: int, timeout_s: float = BATCH_S) -> None:
        """Wait until it has ended a batch after that many. Raises StoreUnavailable."""
        until = time.monotonic() + timeout_s
        while self.batches <= after:
            if time.monotonic() > until or self._process.poll() is not None:
                said = (self._place / "said").read_text(errors="replace")
                raise StoreUnavailable("the query does not go on", said[-2000:])
            time.sleep(0.05)

    def rows(self) -> Counter[Row]:
        """What its sink holds: the files that count, by its log, read without Spark."""
        import pyarrow.parquet as pq

        found: Counter[Row] = Counter()
        for file in self._files():
            columns = pq.read_table(file, columns=["queue_id", "queue_offset", "body"]).columns
            found.update(zip(*(column.to_pylist() for column in columns), strict=True))
        return found

    def _files(self) -> set[Path]:
        found = set()
        log = self._place / "rows" / "_spark_metadata"
        for entry in log.iterdir() if log.is_dir() else ():
            if entry.name.removesuffix(".compact").isdigit():
                for line in entry.read_text().splitlines()[1:]:
                    found.add(Path(unquote(urlparse(json.loads(line)["path"]).path)))
        return found


def run_spark_stream(
    place: Path,
    settings: Mapping[str, object],
    strikes: int,
    dice: random.Random,
    messages_each: int = 500,
) -> Verdict:
    """Strike `strikes` times, and send `messages_each` before each and after; what came of it."""
    struck: Counter[str] = Counter()
    with ExitStack() as stack:
        broker = stack.enter_context(running(place, settings))
        producer = stack.enter_context(Producer(store=broker.store, timeout_ms=120_000))
        producer.create_topic(TOPIC, QUEUES)
        query = stack.enter_context(_query(broker.store, place / "query"))
        sent = 0
        while struck.total() < strikes:
            before = query.batches
            for _ in range(messages_each):
                producer.send(TOPIC, b"%d" % sent)
                sent += 1
            query.await_batch(before)
            # while it reads what comes now
            for _ in range(messages_each):
                producer.send(TOPIC, b"%d" % sent)
                sent += 1
            time.sleep(dice.uniform(0, 1.0))  # the moment is what varies
            kind = dice.choices(list(STRUCK), list(STRUCK.values()))[0]
            struck[kind] += _strike(kind, broker, query, dice)
        producer.flush(SETTLE_S)
        messages = _messages(broker)
        rows = _settled(query, messages.total())
    lost, repeated = messages - rows, rows - messages
    return Verdict(struck, sent, rows.total(), [*lost.elements()], [*repeated.elements()])


def _strike(kind: str, broker: Broker, query: _Query, dice: random.Random) -> bool:
    if kind == "driver":
        query.kill()
        query.start()
    elif kind == "python worker":
        return query.kill_worker(dice)
    elif kind == "broker":
        broker.kill()
        broker.start()
    else:
        broker.strike(kind, signal.SIGKILL)
    return True


def _messages(broker: Broker) -> Counter[Row]:
    broker.await_dispatched()
    with Consumer(store=broker.store, topic=TOPIC, follow=False) as consumer:
        return Counter((m.queue_id, m.queue_offset, bytes(m.body)) for m in consumer)


def _settled(query: _Query, wanted: int) -> Counter[Row]:
    """All rows, once there are as many as there should be and a further batch adds none."""
    until = time.monotonic() + SETTLE_S
    before = -1
    while True:
        found = query.rows().total()
        if (found >= wanted and found == before) or time.monotonic() > until:
            return query.rows()
        before = found
        time.sleep(2)


@contextmanager
def _query(store: Path, place: Path) -> Iterator[_Query]:
    query = _Query(store, place)
    try:
        yield query
    finally:
        query.kill()
