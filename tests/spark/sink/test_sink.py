"""The sink as Spark drives it: batches, streaming queries, and what is refused before it begins."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import SparkSession

from penstock.client import Consumer, Producer
from penstock.shared.faults import FIRED_VARIABLE, VARIABLE

# How often the driver is killed, besides a task or a commit once at each crash point: 50 in a long
# run. Without it none here: the demo kills one that reads, counts and writes.
KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "0"))
ROWS, FILES = 900, 5 + 2 * KILLS
DRIVER = """
import sys
from pyspark.errors import StreamingQueryException
from penstock.spark.session import local_session
store, source, checkpoint = sys.argv[1:]
spark = local_session()
while True:
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(source).repartition(3)
    query = (
        rows.selectExpr("value AS body", "substr(value, -3) AS sharding_key")
        .writeStream.format("penstock").option("path", store).option("topic", "out")
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    try:
        query.awaitTermination()
        break
    except StreamingQueryException as error:
        print("again:", error.getMessage()[:200], flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def broker(start_shared_broker: Callable[..., Any]) -> Any:
    return start_shared_broker()


def read(store: Path, topic: str, count: int) -> list[Any]:
    """At least this many messages, and all that are there."""
    found: list[Any] = []
    with Consumer(store=store, topic=topic) as consumer:
        until = time.monotonic() + 500
        while len(found) < count and time.monotonic() < until:
            found += consumer.poll(1)
        while more := consumer.poll(0.3):
            found += more
    return found


def test_a_frame_is_stored_once_under_its_name(spark: SparkSession, broker: Any) -> None:
    with Producer(store=broker.store) as producer:
        producer.create_topic("plain", 3)
    frame = spark.range(0, 2000, 1, 3).selectExpr(
        "cast(id AS string) AS body",
        "concat('c', id % 5) AS sharding_key",
        "array('k', concat('k', id)) AS keys",
        "map('n', cast(id AS string)) AS properties",
    )
    for name in ("first", "first", "second"):
        writer = frame.write.format("penstock").mode("append").option("endpoint", broker.produce)
        writer.option("topic", "plain").option("writeId", name).save()
    found = read(broker.store, "plain", 4000)
    assert Counter(int(bytes(each.body)) for each in found) == dict.fromkeys(range(2000), 2)
    assert all(each.properties["n"] == bytes(each.body).decode() for each in found)
    assert len({(each.shard, each.queue_id) for each in found}) == 5


def test_the_batches_of_one_name_are_stored_once_each_by_their_growing_numbers(
    spark: SparkSession, broker: Any
) -> None:
    """As foreachBatch writes them, where a batch may come again."""
    with Producer(store=broker.store) as producer:
        producer.create_topic("numbered", 1)
    for number in (0, 0, 1, 5, 4, 5, 6):
        frame = spark.sql(f"SELECT 'of {number}' AS body")
        writer = frame.write.format("penstock").mode("append").option("path", str(broker.store))
        writer = writer.option("topic", "numbered").option("writeId", "alerts")
        writer.option("batchId", number).save()
    found = [bytes(each.body).decode() for each in read(broker.store, "numbered", 4)]
    assert found == ["of 0", "of 1", "of 5", "of 6"]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            "body, 1 AS colour",
            {},
            "no such column.*colour. Select what is to be written. There are",
        ),
        ("1 AS body", {}, "not of a type that the sink takes.*int for binary or string"),
        ("'t' AS tags", {}, "no column body"),
        ("body", {"topic": ""}, "no topic is named"),
        ("body", {"path": ""}, "no broker is named"),
        ("body", {"endpoint": "tcp://127.0.0.1:1"}, "both"),
        ("body", {"tpoic": "x"}, "no such option.*tpoic.*topic"),
        ("body", {"topic": "a/b"}, "characters that none may have"),
        ("body", {"timeoutMs": "soon"}, "value of an option"),
        ("body", {"batchId": "7"}, "batchId has no writeId.*go together"),
        ("body", {"batchId": "-1", "writeId": "w"}, "batchId is below 0"),
        ("body", {"writeId": "a b"}, "writeId cannot be a name: 'a b'. Use 1 to 102 ASCII"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_sent(
    spark: SparkSession, broker: Any, columns: str, options: dict[str, str], said: str
) -> None:
    frame = spark.sql("SELECT 'x' AS body").selectExpr(*columns.split(", "))
    given = {"path": str(broker.store), "topic": "never"} | options
    with pytest.raises(AnalysisException, match=f"(?s){said}"):
        frame.write.format("penstock").mode("append").options(**given).save()


def test_a_row_that_cannot_be_sent_fails_the_job_and_nothing_is_seen(
    spark: SparkSession, broker: Any
) -> None:
    with Producer(store=broker.store) as producer:
        producer.create_topic("partly", 2)
    frame = spark.sql(
        "SELECT if(id = 90, null, repeat('x', 9000)) AS body FROM range(0, 100, 1, 2)"
    )
    writer = frame.write.format("penstock").option("path", str(broker.store))
    with pytest.raises(PythonException, match="null.*row 40 of partition 1"):
        writer.option("topic", "partly").mode("append").save()
    assert read(broker.store, "partly", 0) == []


def test_rows_that_were_read_are_written_without_rocketmqs_names_as_the_error_says(
    spark: SparkSession, broker: Any
) -> None:
    with Producer(store=broker.store) as producer:
        producer.send("first", b"x", keys="k1", properties={"of": "ten"}).result(60)
    source = spark.read.format("penstock").option("path", str(broker.store))
    source = source.option("subscribe", "first")
    while not source.load().count():  # the files of a queue follow an acknowledgement
        pass
    found = source.load()

    def copy(properties: str) -> None:
        writer = found.selectExpr("body", "keys", properties).write.format("penstock")
        writer.option("path", str(broker.store)).option("topic", "again").mode("append").save()

    with pytest.raises(PythonException, match="own names: KEYS.*row 0") as raised:
        copy("properties")
    said = re.search(r"map_filter\(.*\) AS properties", str(raised.value))
    assert said is not None
    copy(said[0])
    (message,) = read(broker.store, "again", 1)
    assert (message.body, message.keys, message.properties["of"]) == (b"x", "k1", "ten")


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Any) -> None:
    writer = spark.sql("SELECT 'x' AS body").write.format("penstock").mode("overwrite")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.option("path", str(broker.store)).option("topic", "never").save()


@pytest.mark.timeout(600 + 60 * KILLS)
@pytest.mark.takes(40)
def test_whatever_is_killed_a_streaming_query_stores_each_row_once(
    broker: Any, tmp_path: Path
) -> None:
    with Producer(store=broker.store) as producer:
        producer.create_topic("out", 4)
    source = tmp_path / "source"
    source.mkdir()
    wanted = Counter(f"{file:03d}-{row:05d}" for file in range(FILES) for row in range(ROWS))
    for file in range(FILES):
        lines = [f"{file:03d}-{row:05d}-{'x' * 600}-{row % 9:03d}" for row in range(ROWS)]
        (source / f"{file:03d}.txt").write_text("\n".join(lines) + "\n")
    firing = {"staged": 2, "before_decision": 1, "decided": 1, "block_published": 2, "published": 2}
    environment = {
        **os.environ,
        VARIABLE: " ".join(f"spark.{name}=crash@{pass_}" for name, pass_ in firing.items()),
        FIRED_VARIABLE: str(tmp_path / "fired"),
    }
    arguments = [sys.executable, "-c", DRIVER, str(broker.store), str(source), str(tmp_path / "c")]
    seen = 0
    for killed in range(KILLS + 1):
        with (tmp_path / "said").open("ab") as said:
            driver = subprocess.Popen(
                arguments,
                env=environment,
                start_new_session=True,
                cwd=tmp_path,
                stdout=said,
                stderr=said,
            )
        try:
            if killed < KILLS:
                seen += ROWS
                assert len(read(broker.store, "out", seen)) >= seen or driver.poll() is not None
                os.killpg(driver.pid, signal.SIGKILL)
            assert driver.wait(500) in (0, -signal.SIGKILL)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    found = Counter(bytes(each.body)[:9].decode() for each in read(broker.store, "out", 1))
    assert found == wanted
    fired = [line.split()[0] for line in (tmp_path / "fired").read_text().splitlines()]
    assert sorted(fired) == sorted(f"spark.{name}" for name in firing)
