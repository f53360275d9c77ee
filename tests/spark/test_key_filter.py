"""Filters on keys in a real Spark session, of a store whose broker runs: by the index of keys, and
Spark says so."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.client import MessageQuery, Producer

MESSAGES = 3000
LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture(scope="module")
def store(start_shared_broker: Callable[..., Any]) -> Path:
    """With two keys for each message, of which three messages share the second one."""
    path: Path = start_shared_broker().store
    with Producer(store=path) as producer:
        for number in range(MESSAGES):
            keys = [f"k{number}", f"m{number % 1000}"]
            producer.send("flights", b"%d" % number, keys=keys)
        producer.flush(60)
    # a question finds what was acknowledged before it, so index and queues are up to date after it
    with MessageQuery(store=path) as query:
        assert len(query.by_key("flights", "m7")) == 3
    return path


@pytest.fixture
def told(spark: SparkSession) -> Iterator[Callable[[str], bool]]:
    """Whether the source logs something, which comes some time after its query."""

    def comes(pattern: str) -> bool:
        until = time.monotonic() + 500
        while time.monotonic() < until:
            rows = spark.tvf.python_worker_logs().collect()
            if any(re.fullmatch(pattern, row.msg) for row in rows):
                return True
        return False

    spark.conf.set(LOGGING, "true")
    yield comes
    spark.conf.unset(LOGGING)


def load(spark: SparkSession, store: Path, push: bool) -> DataFrame:
    source = spark.read.format("penstock").option("path", str(store)).option("columns", "keys,body")
    return source.option("pushFilters", push).load()


def explained(frame: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain("formatted")
    return shown.getvalue()


FEW = rf": 1 index files leave \d of {MESSAGES} messages to read"
NOT_USED = ": the index is not used, .*"


@pytest.mark.parametrize(
    ("condition", "found", "said"),
    [
        ("keys = 'k7 m7'", [b"7"], "keys 'k7 m7'" + FEW),
        # a filter compares all of the property
        ("keys = 'm7'", [], "keys 'm7'" + FEW),
        (
            "keys IN ('k7 m7', 'k8 m8', 'x') AND body != '7'",
            [b"8"],
            "keys 'k7 m7', 'k8 m8', 'x'" + FEW,
        ),
        ("keys = ' '", [], "keys ' '" + NOT_USED),
        ("keys LIKE 'k7 %'", [b"7"], ""),
    ],
)
def test_messages_of_a_key_are_found_by_the_index(
    spark: SparkSession,
    store: Path,
    told: Callable[[str], bool],
    condition: str,
    found: list[bytes],
    said: str,
) -> None:
    frame = load(spark, store, push=True).where(condition)
    assert [row.body for row in frame.collect()] == found
    assert "PushedFilters: [" in explained(frame)
    assert not said or told(said)
    scanned = load(spark, store, push=False).where(condition)
    assert [row.body for row in scanned.collect()] == found
