"""A report over stored flights, computed by Spark, and the same figures from the CSV rows.

A message's body is a row of the CSV as a JSON object, and its tag is the carrier. The two
computations share only the row type, so that one can check the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# only what the report needs: from_json skips the other fields
BODY_SCHEMA = "dep_time int, dep_delay int, arr_delay int"
# delays are whole minutes, so only the last division and the order of sums can differ
TOLERANCE = 1e-9


# A carrier's day is late if it has this many departures, and they were this late on average.
LATE_MINUTES, LEAST_DEPARTURES = 60, 10


class CarrierRow(msgspec.Struct, frozen=True):
    """One carrier's year; carrier "" has messages without a tag. A mean of no values is None."""

    carrier: str
    flights: int
    mean_departure_delay_minutes: float | None
    mean_arrival_delay_minutes: float | None
    cancelled_share: float


class DayRow(msgspec.Struct, frozen=True, order=True):
    """One carrier's UTC day, by scheduled departure. Delays are whole minutes."""

    day: str
    carrier: str
    flights: int
    departures: int
    delay_minutes: int

    @property
    def is_late(self) -> bool:
        """Whether the stream sends a message about it."""
        enough = self.departures >= LEAST_DEPARTURES
        return enough and self.delay_minutes >= LATE_MINUTES * self.departures


def carrier_report(
    spark: SparkSession, store_path: str | Path, topic: str = "flights"
) -> list[CarrierRow]:
    """The report from the store, by carrier. Its flights add up to the messages of the topic."""
    from pyspark.sql import functions as f

    messages = (
        spark.read.format("penstock")
        .option("path", str(store_path))
        .option("subscribe", topic)
        .option("columns", "tags,body")
        .load()
    )
    # A body that is not JSON stops the report, as it would otherwise look like a cancelled flight.
    flight = f.from_json(f.col("body").cast("string"), BODY_SCHEMA, {"mode": "FAILFAST"})
    rows = (
        messages.select(f.coalesce("tags", f.lit("")).alias("carrier"), flight.alias("flight"))
        .groupBy("carrier")
        .agg(
            f.count("*"),
            f.avg("flight.dep_delay"),
            f.avg("flight.arr_delay"),
            f.avg(f.col("flight.dep_time").isNull().cast("int")),
        )
        .orderBy("carrier")
        .collect()
    )
    return list(starmap(CarrierRow, rows))


def csv_report(rows: Iterable[Mapping[str, Any]]) -> list[CarrierRow]:
    """The same figures in plain Python, from the rows that `cli.demo.flights_csv` yields."""
    by_carrier: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_carrier.setdefault(row["carrier"], []).append(row)
    return [
        CarrierRow(
            carrier,
            len(flights),
            _mean([row["dep_delay"] for row in flights]),
            _mean([row["arr_delay"] for row in flights]),
            sum(row["dep_time"] is None for row in flights) / len(flights),
        )
        for carrier, flights in sorted(by_carrier.items())
    ]


def csv_days(rows: Iterable[Mapping[str, Any]]) -> list[DayRow]:
    """What the stream should write for the same rows, in plain Python, by day and carrier."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        found = sums.setdefault((row["time_hour"][:10], row["carrier"]), [0, 0, 0])
        found[0] += 1
        if row["dep_delay"] is not None:
            found[1] += 1
            found[2] += row["dep_delay"]
    return [DayRow(day, carrier, *found) for (day, carrier), found in sorted(sums.items())]


def same_report(left: Sequence[CarrierRow], right: Sequence[CarrierRow]) -> bool:
    """Whether both are equal; means may differ by the rounding of one division."""
    return len(left) == len(right) and all(map(_same_row, left, right))


def _same_row(left: CarrierRow, right: CarrierRow) -> bool:
    return (left.carrier, left.flights) == (right.carrier, right.flights) and all(
        map(
            _close,
            msgspec.structs.astuple(left)[2:],
            msgspec.structs.astuple(right)[2:],
        )
    )


def _close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
