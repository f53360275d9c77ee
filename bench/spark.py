"""How fast does Spark read messages out of a store, beside the same rows out of Parquet?

One broker takes the messages and is stopped; then every way of reading is run by turns in one warm
session, so that what else the machine does meets all of them alike. Bodies are random, so that
nothing gains by compressing them. The best run of each counts.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.stack import running_stack
from penstock.client.producer import Producer
from penstock.shared.errors import StoreDamaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, QUEUES = "bench", 8
# One column that the consume queue has, and one that is in the records.
COLUMN = "queue_offset"
Moved = Callable[[int, int], None]


class SparkResult(msgspec.Struct, frozen=True):
    """Seconds of the best run of each. A ratio says how many times as fast as the other it is."""

    messages: int
    body_bytes: int
    cores: int
    # all columns of all rows, thrown away
    store_s: float
    parquet_s: float
    parquet_zstd_s: float
    # how many rows there are, by all columns and by one
    count_s: float
    count_column_s: float
    store_to_parquet: float
    store_to_parquet_zstd: float
    column_to_all: float


def bench_spark(messages: int, size: int, cores: int, runs: int, moved: Moved) -> SparkResult:
    """Measure with so large bodies. Raises StoreDamaged where rows are missing."""
    from penstock.spark.session import local_session

    place = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    try:
        _fill(place / "store", messages, size)
        spark = local_session(
            "penstock bench spark",
            cores,
            {"spark.driver.memory": "2g"},
            short_lived=False,
        )
        return _measured(spark, place, messages, size, cores, runs, moved)
    finally:
        shutil.rmtree(place)


def _fill(store: Path, messages: int, size: int) -> None:
    dice = random.Random(1)
    with running_stack(store) as stack, Producer(store=stack.store) as producer:
        producer.create_topic(TOPIC, QUEUES)
        for number in range(messages):
            producer.send(TOPIC, dice.randbytes(size), tags="tag", keys=[f"key-{number}"])
        producer.flush(600)
        # the queues follow an acknowledgement within a tick, and a stop waits for them


def _measured(
    spark: SparkSession,
    place: Path,
    messages: int,
    size: int,
    cores: int,
    runs: int,
    moved: Moved,
) -> SparkResult:
    def load(columns: str = "") -> DataFrame:
        source = spark.read.format("penstock").option("path", str(place / "store"))
        return source.option("subscribe", TOPIC).option("columns", columns).load()

    for codec in ("uncompressed", "zstd"):
        load().write.option("compression", codec).parquet(str(place / codec))
    if (found := load(COLUMN).count()) != messages:
        raise StoreDamaged("Spark does not read every message", f"{found} of {messages}")
    ways: dict[str, Callable[[], object]] = {
        "store": lambda: _drain(load()),
        "parquet": lambda: _drain(spark.read.parquet(str(place / "uncompressed"))),
        "zstd": lambda: _drain(spark.read.parquet(str(place / "zstd"))),
        "count": lambda: load().count(),
        "column": lambda: load(COLUMN).count(),
    }
    best = dict.fromkeys(ways, float("inf"))
    for run in range(runs + 1):  # the first is warming up
        for number, (name, way) in enumerate(ways.items()):
            began = time.monotonic()
            way()
            if run:
                best[name] = min(best[name], time.monotonic() - began)
            moved(run * len(ways) + number + 1, (runs + 1) * len(ways))
    return SparkResult(
        messages,
        size,
        cores,
        best["store"],
        best["parquet"],
        best["zstd"],
        best["count"],
        best["column"],
        best["parquet"] / best["store"],
        best["zstd"] / best["store"],
        best["count"] / best["column"],
    )


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
