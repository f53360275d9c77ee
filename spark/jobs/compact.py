"""The last message of each key of a topic, put into another topic or store.

A message's key is its whole property KEYS, and the last message is the last in the log. If it has
an empty body, it is a tombstone, which deletes its key. A message without a key is left out.

    first pass    keys, places and lengths of bodies -> the last message of each key
    second pass   those messages, whole -> the sink
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.shared.errors import InvalidArgument
from penstock.spark.jobs.messages import messages_of
from penstock.spark.jobs.parts import Progress, watched
from penstock.spark.jobs.putting import Target, name_of, put
from penstock.spark.ranges import QueueRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Compacted(msgspec.Struct, frozen=True):
    """Of `messages` that were read, `kept` were put; for `tombstones` keys the last body was empty,
    and `without_key` messages had no key."""

    topic: str
    into: str
    messages: int
    without_key: int
    keys: int
    tombstones: int
    kept: int


def compact_topic(
    spark: SparkSession,
    directory: Path | str,
    topic: str,
    target: Target,
    *,
    write_id: str = "",
    split_bytes: int = 0,
    progress: Progress | None = None,
) -> Compacted:
    """Put the last message of each key of `topic` into the target, whose broker must be running.

    For the same input messages it is put only once, however often this runs, unless `write_id`
    differs. Raises InvalidArgument if source and target are the same topic, TopicNotFound,
    ConnectError, and what the sink raises.
    """
    from pyspark.sql import functions as sql

    root = str(Path(directory).absolute())
    if target.topic == topic and target.is_of(root):
        raise InvalidArgument(
            "a topic cannot be compacted into itself", topic, "name another one: --into"
        )
    found = messages_of(spark, root, [topic], split_bytes)
    last = sql.max(sql.struct("physical_offset", "body_bytes")).alias("last")
    newest = found.frame.groupBy("keys").agg(sql.count("*").alias("messages"), last).persist()
    kept = 0
    try:
        with watched(spark, found.costs, progress):
            has_key = sql.coalesce(sql.col("keys") != "", sql.lit(False))
            is_kept = has_key & (sql.col("last.body_bytes") > 0)
            counts = newest.select(
                sql.sum("messages").alias("messages"),
                sql.sum(sql.when(~has_key, sql.col("messages"))).alias("without_key"),
                sql.count_if(has_key).alias("keys"),
                sql.count_if(is_kept).alias("kept"),
            ).first()
            assert counts is not None, "an aggregate of all rows is one row"
            if counts.kept:
                queues = 1 + max(piece.queue_id for piece in found.ranges)
                target.prepare(queues)
                places = newest.where(is_kept).select("last.physical_offset")
                whole = (
                    spark.read.format("penstock").options(**_same_rows(root, found.ranges)).load()
                )
                name = name_of("compact", root, found.ranges, target.topic, write_id)
                kept = put(whole.join(places, "physical_offset", "left_semi"), target, name)
    finally:
        newest.unpersist()
    return Compacted(
        topic,
        target.topic,
        counts.messages or 0,
        counts.without_key or 0,
        counts["keys"],
        counts["keys"] - counts.kept,
        kept,
    )


def _same_rows(root: str, ranges: Sequence[QueueRange]) -> dict[str, str]:
    """The source's options for exactly these messages."""
    ends: dict[str, dict[str, dict[str, int]]] = {"start": {}, "stop": {}}
    queues: dict[str, list[int]] = defaultdict(list)
    for piece in ranges:
        queues[piece.topic].append(piece.queue_id)
        ends["start"].setdefault(piece.topic, {})[str(piece.queue_id)] = piece.start
        ends["stop"].setdefault(piece.topic, {})[str(piece.queue_id)] = piece.stop
    return {
        "path": root,
        "assign": json.dumps(queues),
        "startingOffsets": json.dumps(ends["start"]),
        "endingOffsets": json.dumps(ends["stop"]),
    }
