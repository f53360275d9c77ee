"""Kafka for `penstock bench spark`: the broker that `bench/peers` starts, and Spark's connector.

Spark's own source and sink for Kafka are a library from Maven; a session must know it when it
begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.bench.peers.brokers.java import libraries
from penstock.bench.peers.brokers.kafka import PARTITIONS, Kafka
from penstock.bench.peers.brokers.peer import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def connector() -> dict[str, str]:
    """The settings of a session that reads and writes Kafka. Raises MissingDependency."""
    return {"spark.jars": ",".join(str(each) for each in libraries("spark"))}


@contextmanager
def kafka_endpoint(place: Path) -> Iterator[str]:
    """The endpoint of a broker that runs in `place`. Raises MissingDependency, StoreUnavailable."""
    server = Kafka()
    server.version()
    with server.serve(place, WRITTEN) as serving:
        yield serving.told["endpoint"]


def make_durable_topic(spark: SparkSession, endpoint: str, topic: str) -> None:
    """Make a topic whose messages are on disk when acknowledged, not only in the page cache.

    It uses the client that the connector has brought into the session.
    """
    jvm: Any = spark._jvm
    admin = jvm.org.apache.kafka.clients.admin
    client = admin.Admin.create({"bootstrap.servers": endpoint})
    try:
        made = admin.NewTopic(topic, PARTITIONS, 1).configs({"flush.messages": "1"})
        client.createTopics([made]).all().get()
    finally:
        client.close()


def load_kafka(spark: SparkSession, endpoint: str, topic: str) -> DataFrame:
    """All messages of a topic, with all columns."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", endpoint)
    return source.option("subscribe", topic).option("includeHeaders", "true").load()


def write_kafka(messages: DataFrame, endpoint: str, topic: str) -> None:
    """Write messages with the columns of Penstock's source; properties become Kafka's headers.

    They are acknowledged as the topic requires.
    """
    headers = (
        "transform(map_entries(properties), e -> struct(e.key, encode(e.value, 'UTF-8') AS value))"
    )
    rows = messages.selectExpr("keys AS key", "body AS value", f"{headers} AS headers")
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", endpoint)
    options = {
        "acks": "all",
        "batch.size": str(256 << 10),
        "linger.ms": "5",
        # the connector's older clients never get a producer id from this broker
        "enable.idempotence": "false",
    }
    writer = writer.options(**{f"kafka.{name}": value for name, value in options.items()})
    writer.option("topic", topic).save()
