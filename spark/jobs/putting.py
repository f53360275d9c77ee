"""Puts messages that were read into a topic again, through the sink, each queue in its order.

A put makes a new message, with its own offset, store time and unique key. Body, keys, tags, queue
and properties stay. The property BORN_TIMESTAMP keeps when the message was first born, in ms since
1970; a message that already has it keeps it. Properties that only the client may set (WAIT, a
delay, and the sharding key, as the queue is named) are removed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.connecting.where import TIMEOUT_MS, Where
from penstock.client.sending.producer import Producer
from penstock.shared.formats.properties import LOST, RESERVED
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import original_of, read_run
from penstock.shared.messaging.delayed import TIMER_PROPERTIES
from penstock.shared.names import check_topic
from penstock.shared.wire.ask_broker import ask_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BORN_TIMESTAMP = "BORN_TIMESTAMP"
_GONE = (*sorted(RESERVED | TIMER_PROPERTIES), BORN_TIMESTAMP)


class Target(NamedTuple):
    """A topic of the broker at `endpoint`, or of the one that runs on the store `path`."""

    topic: str
    path: str = ""
    endpoint: str = ""

    def is_of(self, store: Path | str) -> bool:
        """Whether it is a topic of this store, whatever path names it. Raises ConnectError."""
        if self.path:
            return Path(self.path).expanduser().resolve() == Path(store).resolve()
        paths = StorePaths(store)
        run = read_run(paths)
        # a copy of a store has its original's run.json
        if run is None or original_of(paths, run) is not None:
            return False
        return ask_broker(self.endpoint, TIMEOUT_MS).run_id == run.run_id

    def prepare(self, queues: int) -> None:
        """Make sure that the topic has at least this many queues. Raises ConnectError,
        InvalidArgument."""
        check_topic(self.topic)
        where = Where(None, self.endpoint or None, self.path or None)
        with Producer(**where.arguments("producers")) as producer:
            producer.create_topic(self.topic, queues)


def put(frame: DataFrame, target: Target, write_id: str) -> int:
    """Store the messages of a frame with the source's columns, once under this name. Returns how
    many they are, whether stored now or before.

    The topic must have their queues. Raises what the sink raises.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    # without a repair's tombstones, which stand for lost messages
    frame = frame.where(sql.col("properties")[LOST].isNull())
    properties, born = sql.col("properties"), sql.col("born_timestamp")
    kept = sql.map_filter(properties, lambda name, _: ~name.isin(*_GONE))
    made = sql.coalesce(properties[BORN_TIMESTAMP], sql.unix_millis(born).cast("string"))
    dated = sql.map_concat(kept, sql.create_map(sql.lit(BORN_TIMESTAMP), made))
    rows = (
        frame.repartition("queue_id")
        .sortWithinPartitions("queue_id", "queue_offset")
        .select(
            "body",
            "tags",
            "keys",
            sql.when(made.isNull(), kept).otherwise(dated).alias("properties"),
            "queue_id",
        )
    )
    counted = Observation()
    rows = rows.observe(counted, sql.count("*").alias("messages"))
    where = {"path": target.path, "endpoint": target.endpoint}
    options = {name: value for name, value in where.items() if value}
    writer = rows.write.format("penstock").mode("append").options(**options)
    writer.option("topic", target.topic).option("writeId", write_id).save()
    messages: int = counted.get["messages"]
    return messages


def name_of(job: str, *parts: object) -> str:
    """A writeId that is the same whenever the same thing is put."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
    return f"{job}-{digest}"
