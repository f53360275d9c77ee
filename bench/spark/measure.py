"""How fast does Spark read messages from a store, and write them, compared with Parquet and Kafka?

One broker takes the messages and is stopped; the same rows are written as Parquet and, if Kafka is
wanted, to Kafka. Then all ways of reading and writing take turns in one warm session, so that other
load on the machine meets all of them alike. Bodies are random, so that compression gains nothing.
The best run of each counts.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.bench.loads.stack import running_stack
from penstock.bench.spark.kafka import (
    connector,
    kafka_endpoint,
    load_kafka,
    make_durable_topic,
    write_kafka,
)
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreDamaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

TOPIC, QUEUES = "bench", 8
# A column that the consume queue has.
COLUMN = "queue_offset"
Moved = Callable[[int, int], None]

# Names of ways, and pairs to compare: a ratio says how many times as fast the first is.
STORE, PARQUET, ZSTD, KAFKA = "store", "Parquet", "Parquet, zstd", "Kafka"
COUNT, COUNT_COLUMN = "count, all columns", "count, one column"
KEY, KEY_SCAN = "one key, by the index", "one key, by a scan"
# Penstock's rows are on disk; Kafka's are in its page cache, or on disk too
SINK, KAFKA_SINK, KAFKA_DURABLE = "sink", "Kafka's sink", "Kafka's sink, durable"
DISCARD = "sink that discards"  # the upper limit of a sink in Python
BESIDE = (
    *((STORE, PARQUET), (STORE, ZSTD), (STORE, KAFKA)),
    *((COUNT_COLUMN, COUNT), (KEY, KEY_SCAN)),
    *((SINK, KAFKA_SINK), (SINK, KAFKA_DURABLE), (DISCARD, KAFKA_SINK)),
)


class Amount(NamedTuple):
    """What is read and written: the number of messages, and the bytes of each body."""

    messages: int
    body_bytes: int


class SparkResult(msgspec.Struct, frozen=True):
    """Seconds of the best run of each way; `ratios` says how many times as fast the first of
    "FIRST / SECOND" is."""

    messages: int
    body_bytes: int
    cores: int
    seconds: dict[str, float]
    ratios: dict[str, float]


def bench_spark(
    amounts: Sequence[Amount], cores: int, runs: int, *, kafka: bool, sinks: bool, moved: Moved
) -> list[SparkResult]:
    """Measure each amount. Raises StoreDamaged if rows are missing, MissingDependency if Kafka
    cannot be had."""
    from penstock.spark.session import local_session

    settings = {"spark.driver.memory": "3g"} | (connector() if kafka else {})
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
        stack.callback(shutil.rmtree, place)
        endpoint = stack.enter_context(kafka_endpoint(place / "kafka")) if kafka else ""
        spark = local_session("penstock bench spark", cores, settings, short_lived=False)
        stack.callback(spark.stop)
        results = []
        for number, amount in enumerate(amounts):
            # progress as if each amount had as many steps as the others
            def told(done: int, total: int, number: int = number) -> None:
                moved(number * total + done, len(amounts) * total)

            bench = _Bench(spark, place / str(number), amount, endpoint)
            results.append(bench.measured(cores, runs, sinks, told))
            shutil.rmtree(place / str(number))
        return results


class _Bench:
    """The messages of one amount, in the store, as Parquet, and in Kafka."""

    def __init__(self, spark: SparkSession, place: Path, amount: Amount, endpoint: str) -> None:
        self._spark, self._place, self._amount, self._endpoint = spark, place, amount, endpoint
        self._topic = f"{TOPIC}-{amount.body_bytes}"
        _fill(place / "store", amount)
        if (found := self._load(COLUMN).count()) != amount.messages:
            raise StoreDamaged("Spark does not read every message", f"{found} of {amount.messages}")
        for codec in ("uncompressed", "zstd"):
            self._load().write.option("compression", codec).parquet(str(place / codec))
        if endpoint:
            write_kafka(self._load(), endpoint, self._topic)
            found = load_kafka(spark, endpoint, self._topic).count()
            if found != amount.messages:
                raise StoreDamaged("Kafka has not every message", f"{found} of {amount.messages}")

    def measured(self, cores: int, runs: int, sinks: bool, moved: Moved) -> SparkResult:
        with ExitStack() as stack:
            ways = self._reading()
            if sinks:
                from penstock.bench.spark.discard import Discard

                broker = stack.enter_context(running_stack(self._place / "sink"))
                with Producer(store=broker.store) as producer:
                    producer.create_topic(TOPIC, QUEUES)
                ways[SINK] = lambda: self._sink(str(broker.store))
                self._spark.dataSource.register(Discard)
                ways[DISCARD] = lambda: self._sent().format("discard").save()
                if self._endpoint:
                    into = f"{self._topic}-sink"
                    make_durable_topic(self._spark, self._endpoint, f"{into}-durable")
                    ways[KAFKA_SINK] = lambda: self._kafka_sink(into)
                    ways[KAFKA_DURABLE] = lambda: self._kafka_sink(f"{into}-durable")
            best = _best_of(ways, runs, moved)
        ratios = {
            f"{one} / {other}": best[other] / best[one]
            for one, other in BESIDE
            if one in best and other in best
        }
        return SparkResult(*self._amount, cores, best, ratios)

    def _reading(self) -> dict[str, Callable[[], object]]:
        ways: dict[str, Callable[[], object]] = {
            STORE: lambda: _drain(self._load()),
            PARQUET: lambda: _drain(self._rows()),
            ZSTD: lambda: _drain(self._spark.read.parquet(str(self._place / "zstd"))),
            COUNT: lambda: self._load().count(),
            COUNT_COLUMN: lambda: self._load(COLUMN).count(),
            KEY: lambda: self._find("= 'key-17'"),
            # the index cannot look up prefixes of keys, so the tasks compare each message's keys
            KEY_SCAN: lambda: self._find("LIKE 'key-17 %'"),
        }
        if self._endpoint:
            ways[KAFKA] = lambda: _drain(load_kafka(self._spark, self._endpoint, self._topic))
        return ways

    def _load(self, columns: str = "") -> DataFrame:
        source = self._spark.read.format("penstock").option("path", str(self._place / "store"))
        return source.option("subscribe", TOPIC).option("columns", columns).load()

    def _find(self, key: str) -> None:
        source = self._spark.read.format("penstock").option("path", str(self._place / "store"))
        _drain(source.option("pushFilters", True).load().where(f"keys {key}"))

    def _rows(self) -> DataFrame:
        """The rows for both sinks, from a file that neither store has written."""
        return self._spark.read.parquet(str(self._place / "uncompressed"))

    def _kafka_sink(self, topic: str) -> None:
        write_kafka(self._rows(), self._endpoint, topic)

    def _sink(self, store: str) -> None:
        writer = self._sent().format("penstock").option("path", store)
        writer.option("topic", TOPIC).save()

    def _sent(self) -> DataFrameWriter:
        return self._rows().selectExpr("body", "tags", "keys").write.mode("append")


def _best_of(ways: dict[str, Callable[[], object]], runs: int, moved: Moved) -> dict[str, float]:
    best = dict.fromkeys(ways, float("inf"))
    for run in range(runs + 1):  # the first is warm-up
        for number, (name, way) in enumerate(ways.items()):
            began = time.monotonic()
            way()
            if run:
                best[name] = min(best[name], time.monotonic() - began)
            moved(run * len(ways) + number + 1, (runs + 1) * len(ways))
    return best


def _fill(store: Path, amount: Amount) -> None:
    dice = random.Random(1)
    with running_stack(store) as broker, Producer(store=broker.store) as producer:
        producer.create_topic(TOPIC, QUEUES)
        for number in range(amount.messages):
            body = dice.randbytes(amount.body_bytes)
            producer.send(TOPIC, body, tags="tag", keys=[f"key-{number}"])
        producer.flush(600)
        # the queues follow an acknowledgement within a tick, and a stop waits for them


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
