"""The stream in a real Spark query: checkpoint, restart, limits, progress."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from .conftest import StoreBuilder


def query(spark: SparkSession, store: StoreBuilder, out: Path, **options: str) -> StreamingQuery:
    """Runs to the end of what there is."""
    stream = spark.readStream.format("penstock").options(path=store.root, **options).load()
    running = (
        stream.select("topic", "queue_id", "queue_offset", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "rows"))
    )
    assert running.awaitTermination(120)
    return running


def test_a_query_goes_on_from_its_checkpoint_without_a_gap_or_a_repeat(
    spark: SparkSession, store: StoreBuilder, tmp_path: Path
) -> None:
    for number in range(300):
        store.put(queue_id=number % 3, body=b"%d" % number)
    first = query(spark, store, tmp_path, maxOffsetsPerTrigger="120", subscribePattern="f.*")
    sizes = [progress["numInputRows"] for progress in first.recentProgress]
    assert sizes[:3] == [120, 120, 60]
    told = json.loads(first.recentProgress[0]["sources"][0]["latestOffset"])
    assert told["lagMessages"] == 180 and told["lagSeconds"] > 0
    assert told["offsets"] == {"flights": {"0": 100, "1": 100, "2": 100}}

    for number in range(300, 350):
        store.put(queue_id=number % 4, body=b"%d" % number)
    store.put("fresh", body=b"350")
    store.put("other", body=b"351")
    query(spark, store, tmp_path, maxOffsetsPerTrigger="120", subscribePattern="f.*")
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert Counter(int(row.body) for row in rows) == Counter(range(351))
    assert [row.topic for row in rows].count("fresh") == 1


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("tags string", {"endingOffsets": "earliest"}, "a stream has no end.*availableNow"),
        ("tags string", {"subscrib": "flights"}, "no such option: subscrib"),
        ("tags int", {}, "column tags is not of this type: int for string"),
    ],
)
def test_a_stream_that_cannot_be_ends_with_the_reason_alone(
    spark: SparkSession,
    store: StoreBuilder,
    schema: str,
    options: dict[str, str],
    said: str,
    available_now: bool,
) -> None:
    store.put()
    reader = spark.readStream.format("penstock").schema(schema).options(path=store.root, **options)
    writer = reader.load().writeStream.format("noop")
    if available_now:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(StreamingQueryException, match=said) as raised:
        query.awaitTermination(120)
    assert "During handling" not in str(raised.value)
