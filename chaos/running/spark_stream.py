"""A Spark query that streams a store into files or into a topic, killed with its workers, its
executors and its broker.

Messages are sent all the while. When every one of them has arrived, the rows must be the messages:
none missing, none twice. The rows are counted without Spark, from the files that its sink has
written or by a consumer of the topic; the messages are counted by a consumer of the broker.

A kill at a random moment seldom meets a commit, which takes some ms of a batch. So where the query
writes into a topic, some kills are aimed at it: the process that commits stops at a crash point,
and then the whole driver is killed.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

import psutil

from penstock.chaos.broker import Broker, running
from penstock.chaos.clients.stream_query import FROM
from penstock.chaos.machine.spark_cluster import running_cluster
from penstock.chaos.machine.spark_program import SparkProgram
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.faults import FIRED_VARIABLE, VARIABLE

TOPIC, QUEUES = "streamed", 3
INTO = "arrived"
# Of a body. What is sent before a strike is then more than a task hands on without staging it.
BODY_BYTES = 1024
# a task is tried four times, as on a cluster; local[2] alone tries once
LOCAL = "local[2,4]"
# Seconds that a start of Spark and a batch may take on a machine that does other things, and
# seconds from the last strike until all rows must be there.
BATCH_S, SETTLE_S = 180.0, 240.0
# What is struck, in percent.
STRUCK = {"driver": 20, "python worker": 35, "broker": 20, "writer": 10, "reput": 10, "flusher": 5}
ON_A_CLUSTER = STRUCK | {"python worker": 20, "executor": 15}
# From before the broker's decision to where all rows are there but Spark has not recorded that.
AT_COMMIT = {
    "spark.before_decision": 10,
    "spark.decided": 10,
    "spark.block_published": 10,
    "spark.published": 20,
}

Row = tuple[int, int, bytes]


class Verdict(NamedTuple):
    """What was struck, and which rows are missing or there more than once."""

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
    """The program, started again whenever it is killed; its JVM and workers are killed with it."""

    def __init__(self, store: Path, place: Path, master: str, into: str) -> None:
        self._store, self._place, self._into = store, place, into
        arguments = [str(store), str(place), master, *([into] if into else [])]
        self.program = SparkProgram("penstock.chaos.clients.stream_query", arguments, place)

    def kill_worker(self, dice: random.Random) -> bool:
        """kill -9 one of Spark's Python processes; return whether there was one."""
        return self._kill_one("pyspark", dice, is_java=False)

    def kill_executor(self, dice: random.Random) -> bool:
        """kill -9 one of the cluster's executors; return whether there was one."""
        return self._kill_one("CoarseGrainedExecutorBackend", dice, is_java=True)

    def _kill_one(self, word: str, dice: random.Random, *, is_java: bool) -> bool:
        found = []
        for each in self.program.others():
            words = each.info["cmdline"] or [""]
            if any(word in one for one in words) and ("java" in words[0]) == is_java:
                found.append(each)
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself: no kill to count
            dice.choice(found).kill()
            return True
        return False

    def kill_at(self, point: str, send: Callable[[], None]) -> None:
        """kill -9 the driver at a crash point of the commit of the rows that `send` brings."""
        fired = self._place / "fired"
        fired.write_bytes(b"")
        self.program.kill()
        send()
        self.program.start({VARIABLE: f"{point}=stop", FIRED_VARIABLE: str(fired)})
        self.program.wait(
            lambda: fired.stat().st_size > 0, BATCH_S, f"no commit comes to the point {point}"
        )
        self.program.kill()
        self.program.start()

    @property
    def batches(self) -> int:
        """How many batches the query has ended, over all its restarts."""
        commits = self._place / "checkpoint" / "commits"
        if not commits.is_dir():
            return 0
        return max((int(p.name) for p in commits.iterdir() if p.name.isdigit()), default=-1) + 1

    def await_batch(self, after: int, timeout_s: float = BATCH_S) -> None:
        """Wait until it has ended more than `after` batches. Raises StoreUnavailable."""
        self.program.wait(lambda: self.batches > after, timeout_s, "the query does not go on")

    def rows(self) -> Counter[Row]:
        """What the sink holds, read without Spark: the topic's messages, or the files that its log
        counts as written."""
        import pyarrow.parquet as pq

        found: Counter[Row] = Counter()
        if self._into:
            for body, at in _read(self._store, self._into):
                queue_id, offset = at.split("/")
                found[int(queue_id), int(offset), body] += 1
            return found
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
    *,
    into_topic: bool = False,
    cluster: bool = False,
) -> Verdict:
    """Strike `strikes` times, send `messages_each` before each and after; return the verdict.

    The query writes files, or `into_topic`, by Penstock's sink; it runs in the driver, or on a
    `cluster` of two workers on this machine.
    """
    kinds = (ON_A_CLUSTER if cluster else STRUCK) | (AT_COMMIT if into_topic else {})
    struck: Counter[str] = Counter()
    with ExitStack() as stack:
        broker = stack.enter_context(running(place, settings))
        producer = stack.enter_context(Producer(store=broker.store, timeout_ms=120_000))
        producer.create_topic(TOPIC, QUEUES)
        master = LOCAL
        if cluster:
            master = stack.enter_context(running_cluster(place / "cluster")).url
        if into_topic:
            producer.create_topic(INTO, QUEUES)
        into = INTO if into_topic else ""
        query = stack.enter_context(_query(broker.store, place / "query", master, into))
        sent = 0

        def send() -> None:
            nonlocal sent
            for number in range(sent, sent + messages_each):
                producer.send(TOPIC, (b"%d" % number).ljust(BODY_BYTES))
            sent += messages_each

        while struck.total() < strikes:
            before = query.batches
            send()
            query.await_batch(before)
            send()  # while it reads what comes now
            time.sleep(dice.uniform(0, 1.0))  # a strike comes at a random moment
            kind = dice.choices(list(kinds), list(kinds.values()))[0]
            if kind in AT_COMMIT:
                query.kill_at(kind, send)
                struck[kind] += 1
            else:
                struck[kind] += _strike(kind, broker, query, dice)
        producer.flush(SETTLE_S)
        messages = _messages(broker)
        rows = _settled(query, messages.total())
    lost, repeated = messages - rows, rows - messages
    return Verdict(struck, sent, rows.total(), [*lost.elements()], [*repeated.elements()])


def _strike(kind: str, broker: Broker, query: _Query, dice: random.Random) -> bool:
    if kind == "driver":
        query.program.kill()
        query.program.start()
    elif kind == "python worker":
        return query.kill_worker(dice)
    elif kind == "executor":
        return query.kill_executor(dice)
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


def _read(store: Path, topic: str) -> Iterator[tuple[bytes, str]]:
    """Each message of the query's own topic, and where it came from."""
    with Consumer(store=store, topic=topic, follow=False) as consumer:
        for message in consumer:
            yield bytes(message.body), message.properties[FROM]


@contextmanager
def _query(store: Path, place: Path, master: str, into: str) -> Iterator[_Query]:
    query = _Query(store, place, master, into)
    try:
        yield query
    finally:
        query.program.kill()
