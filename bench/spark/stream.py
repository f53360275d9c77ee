"""How old is what a stream's sink gets, and what does a stream cost an idle broker?

    one producer, at a steady rate -> a topic among a hundred, all of which the query reads
    the query, by `endpoint`       -> a batch each second, of which the sink reads all rows

A batch's age is that of its newest row when the sink has read all: the time since the producer made
the message, by the clock of this machine. An idle broker is measured without the query and with it,
before anything is sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.loads.accounts import ran
from penstock.bench.loads.load import Send
from penstock.bench.loads.load_process import Moved, load_command, measured, started
from penstock.bench.loads.percentile import percentile
from penstock.bench.loads.target import Target, Where, opened
from penstock.client import Producer
from penstock.shared.errors import BrokerTimeout, StoreDamaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPICS, QUEUES = 100, 4
TRIGGER_S = 1
BODY_BYTES, IN_FLIGHT = 1024, 10_000
# The first batches of a session take longer, and queues are synced five seconds after they have
# grown.
SETTLE_S = 8.0
ROWS_TIMEOUT_S = 120


class StreamResult(msgspec.Struct, frozen=True, tag="spark stream", tag_field="kind"):
    """Ages in ms, of `batches`; percent of one processor, all processes of the broker together."""

    topics: int
    rate_per_s: int
    messages: int
    batches: int
    p50_age_ms: float
    p90_age_ms: float
    max_age_ms: float
    rest_percent: float
    rest_with_stream_percent: float
    load_1m: float


def bench_stream(rate_per_s: int, seconds: float, cores: int, moved: Moved) -> StreamResult:
    """Raises BrokerTimeout if rows do not come, StoreDamaged if some come twice."""
    from penstock.spark.session import local_session

    spark = local_session("penstock bench spark", cores, short_lived=False)
    try:
        with opened(Where(), "durable") as target:
            topics = _make_topics(target)
            time.sleep(SETTLE_S)
            rest = _percent_at_rest(target, seconds)
            sink = _Sink()
            with _query(spark, target.consume, sink) as query:
                sink.wait_rows(query, TOPICS)
                time.sleep(SETTLE_S)
                rest_with_stream = _percent_at_rest(target, seconds)
                sink.ages_ms.clear()
                sent = _send(target, topics[0], rate_per_s, seconds, moved)
                sink.wait_rows(query, TOPICS + sent)
    finally:
        spark.stop()
    ages = sink.ages_ms
    p50, p90, most = (percentile(ages, share) or 0.0 for share in (50, 90, 100))
    load_1m = round(os.getloadavg()[0], 1)
    return StreamResult(
        TOPICS, rate_per_s, sent, len(ages), p50, p90, most, rest, rest_with_stream, load_1m
    )


class _Sink:
    """Counts the rows that have come; the query calls it in a thread of its own."""

    def __init__(self) -> None:
        self.rows = 0
        self.ages_ms: list[float] = []

    def __call__(self, batch: DataFrame, _: int) -> None:
        from pyspark.sql import functions as sql

        newest = sql.unix_millis(sql.max("born_timestamp")).alias("newest")
        row = batch.agg(sql.count("*").alias("rows"), sql.count("body"), newest).first()
        assert row is not None, "an aggregate of all rows is one row"
        if row.rows:
            self.ages_ms.append(round(time.time() * 1000 - row.newest, 1))
        self.rows += row.rows

    def wait_rows(self, query: StreamingQuery, count: int) -> None:
        until = time.monotonic() + ROWS_TIMEOUT_S
        while self.rows < count:
            if not query.isActive or time.monotonic() > until:
                raise BrokerTimeout("rows did not come", f"{self.rows} of {count}") from (
                    query.exception()
                )
            time.sleep(0.05)
        if self.rows > count:
            raise StoreDamaged("more rows came than were sent", f"{self.rows} of {count}")


@contextmanager
def _query(spark: SparkSession, endpoint: str, sink: _Sink) -> Iterator[StreamingQuery]:
    frame = spark.readStream.format("penstock").option("endpoint", endpoint).load()
    writer = frame.writeStream.foreachBatch(sink).trigger(processingTime=f"{TRIGGER_S} seconds")
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def _make_topics(target: Target) -> list[str]:
    """Make topics with a message each: the query does not look at a queue that never had one."""
    names = [f"bench-{number}" for number in range(TOPICS)]
    with Producer(target.produce) as producer:
        for name in names:
            producer.create_topic(name, QUEUES)
        for future in [producer.send(name, b"first") for name in names]:
            future.result(60)
    return names


def _percent_at_rest(target: Target, seconds: float) -> float:
    pids = target.pids()
    before, began = sum(ran(pid).ns for pid in pids.values()), time.monotonic()
    time.sleep(seconds)  # the measurement is of nothing happening
    used_ns = sum(ran(pid).ns for pid in pids.values()) - before
    return round(used_ns / (time.monotonic() - began) / 1e7, 2)


def _send(target: Target, topic: str, rate_per_s: int, seconds: float, moved: Moved) -> int:
    """Send at this rate; returns how many messages were sent."""
    order = Send(
        target.produce,
        [topic],
        BODY_BYTES,
        "durable",
        IN_FLIGHT,
        seconds,
        rate_per_s=rate_per_s,
    )
    with started([load_command(order)]) as processes:
        (seen,) = measured(processes, seconds, moved)
    return seen.messages + seen.warm_messages
