"""Statistics of a store: by topic, queue, tag and hour, with gaps and the commonest keys.

    tasks     ranges of queues -> messages without their bodies
    Spark     one pass for the groups of four tables, one for keys, one for gaps if there are any

Percentiles are Spark's approximate ones. Sizes are those of bodies as consumers get them. A latency
is the store time minus the born time; these come from two clocks, so it may be negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.jobs.messages import Messages, messages_of
from penstock.spark.jobs.parts import Progress, watched

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOP_KEYS, MOST_GAPS = 10, 100
HOUR_MS = 3_600_000
_SHARES = (0.5, 0.9, 0.99)
_GROUPS = {
    "topics": ("topic",),
    "queues": ("topic", "queue_id"),
    "tags": ("topic", "tags"),
    "hours": ("topic", "hour"),
}
_MEASURED = ("bytes", "min_bytes", "p50_bytes", "p90_bytes", "p99_bytes", "max_bytes")
_LATENCY = ("p50_latency_ms", "p90_latency_ms", "p99_latency_ms", "max_latency_ms")
COLUMNS: dict[str, tuple[str, ...]] = {
    **{name: (*keys, "messages", *_MEASURED, *_LATENCY) for name, keys in _GROUPS.items()},
    "keys": ("topic", "key", "messages"),
    "gaps": ("topic", "queue_id", "start", "stop"),
}
COLUMNS["queues"] += ("min_offset", "max_offset", "missing")

_TYPES = {
    **dict.fromkeys(("topic", "tags", "key"), pa.string()),
    "hour": pa.timestamp("ms", tz="UTC"),
}

Row = dict[str, Any]


class Stats(msgspec.Struct, frozen=True):
    """Tables by name, each a list of rows with the columns of COLUMNS; times are UTC."""

    store: str
    at: str
    messages: int
    bytes: int
    tables: dict[str, list[Row]]


def store_stats(
    spark: SparkSession,
    directory: Path | str,
    *,
    topics: Sequence[str] = (),
    split_bytes: int = 0,
    progress: Progress | None = None,
) -> Stats:
    """The statistics of a store, running or stopped, for all topics but the broker's own, or for
    those named. Raises TopicNotFound, and ConfigError if there is no store."""
    found = messages_of(spark, directory, topics, split_bytes)
    frame = found.frame.persist()
    try:
        with watched(spark, found.costs, progress):
            tables = _grouped(frame)
            tables["keys"] = _commonest(frame)
            _complete(tables["queues"], found)
            tables["gaps"] = _gaps(frame, tables["queues"], found)
    finally:
        frame.unpersist()
    return Stats(
        str(Path(directory).absolute()),
        datetime.now(UTC).isoformat(timespec="seconds"),
        sum(row["messages"] for row in tables["topics"]),
        sum(row["bytes"] for row in tables["topics"]),
        tables,
    )


def write_parquet(stats: Stats, place: Path) -> None:
    """Write each table as a file into the directory `place`, which is created. Raises OSError."""
    place.mkdir(parents=True)
    for name, rows in stats.tables.items():
        schema = pa.schema([(column, _TYPES.get(column, pa.int64())) for column in COLUMNS[name]])
        pq.write_table(pa.Table.from_pylist(rows, schema), place / f"{name}.parquet")


def _grouped(frame: DataFrame) -> dict[str, list[Row]]:
    """The four tables, from one pass: each row of the result says what it was grouped by."""
    from pyspark.sql import functions as sql

    latency = sql.unix_millis("store_timestamp") - sql.unix_millis("born_timestamp")
    hours = sql.floor(sql.unix_millis("store_timestamp") / HOUR_MS)
    dated = frame.withColumn("hour", hours)
    names = ("topic", "queue_id", "tags", "hour")
    sets = [[sql.col(name) for name in keys] for keys in _GROUPS.values()]
    size = sql.col("body_bytes")
    rows = (
        dated.withColumn("latency_ms", latency)
        .groupingSets(sets, *[sql.col(name) for name in names])
        .agg(
            sql.grouping_id().alias("by"),
            sql.count("*").alias("messages"),
            sql.sum(size).alias("bytes"),
            sql.min(size).alias("min_bytes"),
            sql.max(size).alias("max_bytes"),
            _percentiles(size).alias("sizes"),
            sql.max("latency_ms").alias("max_latency_ms"),
            _percentiles(sql.col("latency_ms")).alias("latencies"),
            sql.min("queue_offset").alias("min_offset"),
            (sql.max("queue_offset") + 1).alias("max_offset"),
        )
        .collect()
    )
    # Spark's grouping id has a bit for each name that is not grouped by, with the last name lowest
    table_of = {
        sum(8 >> at for at, name in enumerate(names) if name not in keys): table
        for table, keys in _GROUPS.items()
    }
    tables: dict[str, list[Row]] = {name: [] for name in _GROUPS}
    for each in rows:
        row = each.asDict()
        if row["hour"] is not None:
            # grouped as a number, because Spark returns times in its driver's time zone
            row["hour"] = datetime.fromtimestamp(row["hour"] * HOUR_MS / 1000, UTC)
        for number, share in enumerate(_SHARES):
            for kind, unit in (("sizes", "bytes"), ("latencies", "latency_ms")):
                found = row[kind]
                row[f"p{share * 100:.0f}_{unit}"] = None if found is None else found[number]
        name = table_of[row["by"]]
        tables[name].append({column: row.get(column) for column in COLUMNS[name]})
    for name, keys in _GROUPS.items():
        tables[name].sort(key=lambda row: [(row[key] is not None, row[key]) for key in keys])  # noqa: B023 - called here
    return tables


def _percentiles(column: Column) -> Column:
    from pyspark.sql import functions as sql

    return sql.percentile_approx(column, list(_SHARES))


def _commonest(frame: DataFrame) -> list[Row]:
    """The most frequent keys of each topic; a message may have several keys."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    keys = frame.select("topic", sql.explode(sql.split("keys", " ")).alias("key")).where(
        "key != ''"
    )
    counts = keys.groupBy("topic", "key").agg(sql.count("*").alias("messages"))
    order = Window.partitionBy("topic").orderBy(sql.desc("messages"), "key")
    top = counts.withColumn("place", sql.row_number().over(order)).where(f"place <= {TOP_KEYS}")
    rows = top.orderBy("topic", "place").collect()
    return [{column: row[column] for column in COLUMNS["keys"]} for row in rows]


def _complete(queues: Sequence[Row], found: Messages) -> None:
    """Add to each queue how many of its offsets have no message."""
    offered = {(piece.topic, piece.queue_id): piece for piece in found.ranges}
    for row in queues:
        piece = offered[row["topic"], row["queue_id"]]
        row["missing"] = piece.stop - piece.start - row["messages"]


def _gaps(frame: DataFrame, queues: Sequence[Row], found: Messages) -> list[Row]:
    """The first offsets without a message, by queue. Only queues that have any are read again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    by_queue = {(row["topic"], row["queue_id"]): row for row in queues}
    counted: dict[str, list[int]] = defaultdict(list)
    around: list[Row] = []  # before the first message of a queue, and after its last
    for topic, queue_id, start, stop in found.ranges:
        row = by_queue.get((topic, queue_id))
        first, end = (stop, stop) if row is None else (row["min_offset"], row["max_offset"])
        around += [
            {"topic": topic, "queue_id": queue_id, "start": at, "stop": to}
            for at, to in ((start, first), (end, stop))
            if at < to
        ]
        if row is not None and row["messages"] < end - first:
            counted[topic].append(queue_id)
    if not counted:
        return _first(around)
    wanted = sql.lit(False)
    for topic, ids in counted.items():
        wanted = wanted | ((sql.col("topic") == topic) & sql.col("queue_id").isin(ids))
    before = sql.lag("queue_offset").over(
        Window.partitionBy("topic", "queue_id").orderBy("queue_offset")
    )
    rows = (
        frame.where(wanted)
        .select(
            "topic", "queue_id", (before + 1).alias("start"), sql.col("queue_offset").alias("stop")
        )
        .where("start < stop")
        .orderBy("topic", "queue_id", "start")
        .limit(MOST_GAPS)
        .collect()
    )
    return _first([*around, *(row.asDict() for row in rows)])


def _first(gaps: list[Row]) -> list[Row]:
    return sorted(gaps, key=lambda row: [row[name] for name in COLUMNS["gaps"]])[:MOST_GAPS]
