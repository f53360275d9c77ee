"""The demo's streaming queries: flights in, delays of each carrier and day out, and alerts.

    topic flights -> day windows, by event time -> Parquet -> those that were late -> topic delays

`python -m penstock.spark.delays STORE PLACE` triggers both queries once a second until PLACE/ended
exists. Then it processes what is left, and writes PLACE/result.json. It may be killed and restarted
at any moment: each query goes on from its checkpoint, and both sinks take each batch once.

A window is written when the watermark has passed it. Flights are out of order by a day at most. A
message of the topic CLOCK says that all flights up to its time have come, and so ends the last
windows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.shared.files.durable import replace_file
from penstock.spark.flights import (
    LATE_MINUTES,
    LEAST_DEPARTURES,
    CarrierRow,
    DayRow,
    carrier_report,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS, CLOCK, ALERTS = "flights", "flights-clock", "delays"
_WATERMARK = "3 days"
_DAYS = "day string, carrier string, flights long, departures long, delay_minutes long"


class Result(msgspec.Struct, frozen=True):
    """Spark's results: the batch report over the store, and what the stream has written."""

    carriers: list[CarrierRow]
    days: list[DayRow]
    batches: int


def day_windows(messages: DataFrame) -> DataFrame:
    """Flights, departures and minutes of delay for each carrier and UTC day."""
    from pyspark.sql import functions as f

    body = f.from_json(
        f.col("body").cast("string"), "time_hour timestamp, dep_delay int", {"mode": "FAILFAST"}
    )
    flights = messages.select(
        f.coalesce("tags", f.lit("")).alias("carrier"), body.alias("flight")
    ).select("carrier", "flight.*")
    return (
        flights.withWatermark("time_hour", _WATERMARK)
        .groupBy(f.window("time_hour", "1 day").alias("window"), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departures"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_minutes"),
        )
        .select(
            f.date_format("window.start", "yyyy-MM-dd").alias("day"),
            *("carrier", "flights", "departures", "delay_minutes"),
        )
    )


class Queries:
    """Both queries, on a store and a directory of their own."""

    def __init__(self, spark: SparkSession, store: str, place: Path) -> None:
        self._spark, self._store, self._place = spark, store, place
        self.days = place / "days"

    def start(self, **trigger: str | bool) -> list[StreamingQuery]:
        """Start them, in this order: the second needs the log of files that the first creates."""
        return [self.aggregate(**trigger), self.alert(**trigger)]

    def aggregate(self, **trigger: str | bool) -> StreamingQuery:
        messages = (
            self._spark.readStream.format("penstock")
            .option("path", self._store)
            .option("subscribe", f"{FLIGHTS},{CLOCK}")
            .option("columns", "tags,body")
            .load()
        )
        writer = day_windows(messages).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(checkpoint(self._place)))
        return writer.trigger(**trigger).start(str(self.days))  # type: ignore[arg-type]  # one of its names

    def alert(self, **trigger: str | bool) -> StreamingQuery:
        late = (
            self._spark.readStream.schema(_DAYS)
            .parquet(str(self.days))
            .where(f"departures >= {LEAST_DEPARTURES}")
            .where(f"delay_minutes >= {LATE_MINUTES} * departures")
            .selectExpr("to_json(struct(*)) AS body", "carrier AS tags", "day AS keys")
        )
        writer = late.writeStream.format("penstock").option("path", self._store)
        writer = writer.option("topic", ALERTS)
        writer = writer.option("checkpointLocation", str(self._place / "alerts-checkpoint"))
        return writer.trigger(**trigger).start()  # type: ignore[arg-type]  # one of its names

    def finish(self) -> None:
        """Process what is left, one after the other: the second reads what the first writes."""
        for start in (self.aggregate, self.alert):
            start(availableNow=True).awaitTermination()


def checkpoint(place: Path) -> Path:
    """The checkpoint of the aggregating query."""
    return place / "days-checkpoint"


def batches(place: Path) -> int:
    """How many batches that query has finished, over all restarts."""
    commits = checkpoint(place) / "commits"
    return sum(each.name.isdigit() for each in commits.iterdir()) if commits.is_dir() else 0


def main(store: str, place: Path) -> None:
    """Raises what ends a query."""
    from penstock.spark.session import local_session

    spark = local_session("flights", settings={"spark.local.dir": str(place / "spark")})
    queries = Queries(spark, store, place)
    running = queries.start(processingTime="1 second")
    while not (place / "ended").exists():
        spark.streams.awaitAnyTermination(1)  # raises what ended a query
    for query in running:
        query.stop()
    queries.finish()
    rows = spark.read.schema(_DAYS).parquet(str(queries.days)).orderBy("day", "carrier").collect()
    days = [DayRow(*row) for row in rows]
    found = Result(carrier_report(spark, store, FLIGHTS), days, batches(place))
    replace_file(place / "result.json", msgspec.json.encode(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
