"""The driver of test_cluster.py: `python` this MASTER_URL STORE PRODUCE CONSUME PLACE.

It takes the name of a step from each line of its input, and answers with a line of JSON. PRODUCE
and CONSUME are endpoints of the broker that runs on STORE.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.chaos.machine.spark_cluster import EXECUTORS
from penstock.spark.jobs.archive import archive_store
from penstock.spark.jobs.archive_check import verify_archive
from penstock.spark.jobs.audit import audit_store
from penstock.spark.jobs.compact import compact_topic
from penstock.spark.jobs.putting import Target
from penstock.spark.jobs.restore import restore_topic
from penstock.spark.jobs.stats import store_stats
from penstock.spark.session import local_session

ROW = ("queue_id", "queue_offset", "body")
# a task that takes longer than this and three times as long as others is tried a second time, once
# half of them have ended
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "3s",
}
# of the log and of queues, for each task of a job
PART_BYTES = 500_000
WAIT_S = 300
# Spark gives up after 10 s on the Python process of a stream's source: on a busy machine that is
# too soon, and then the query is started again
SLOW_START = "Python worker failed to connect back"


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.2)  # so that there is work left when a worker is killed
        yield batch


class Steps:
    """What the test has this do, each by its name."""

    def __init__(self, spark: SparkSession, arguments: list[str]) -> None:
        self._spark = spark
        self._store, self._produce, self._consume, place = arguments
        self._place = Path(place)

    # --- the source ---

    def count(self) -> dict[str, Any]:
        frame = self._rows("path")
        return {"count": frame.count(), "parts": frame.rdd.getNumPartitions()}

    def batch_by_path(self) -> dict[str, Any]:
        rows = self._rows("path")
        rows.mapInArrow(slowly, rows.schema).write.parquet(f"{self._place}/path-batch")
        return {}

    def batch_by_endpoint(self) -> dict[str, Any]:
        self._rows("endpoint").write.parquet(f"{self._place}/endpoint-batch")
        return {}

    def stream_by_path(self) -> dict[str, Any]:
        writer = self._stream("path").select(*ROW).writeStream.format("parquet")
        return self._run(writer.option("path", f"{self._place}/path-stream"), "path")

    # --- the source and the sink ---

    def stream_into_a_topic(self) -> dict[str, Any]:
        rows = self._stream("endpoint").select("body", "keys", "queue_id")
        writer = rows.mapInArrow(slowly, rows.schema).writeStream.format("penstock")
        return self._run(
            writer.option("endpoint", self._produce).option("topic", "copy"), "endpoint"
        )

    def write_a_partition_twice(self) -> dict[str, Any]:
        """The first attempt at one partition ends when the second one has all its rows, too."""
        second = self._place / "second"

        def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            yield from batches
            if task.partitionId() == 0 and task.attemptNumber() > 0:
                second.touch()
            until = time.monotonic() + WAIT_S
            while task.partitionId() == 0 and not second.exists():
                assert time.monotonic() < until, "no task is tried a second time"
                time.sleep(0.01)

        rows = self._spark.range(0, 4000, 1, 4).selectExpr(
            "rpad(id, 200, '.') AS body", "cast(id % 4 AS int) AS queue_id"
        )
        writer = rows.mapInArrow(twice, rows.schema).write.format("penstock").mode("append")
        writer.option("endpoint", self._produce).option("topic", "twice").save()
        return {"second": second.exists()}

    # --- jobs ---

    def audit(self) -> dict[str, Any]:
        report = audit_store(self._spark, self._store, part_bytes=PART_BYTES).report
        return {"ok": report.ok, "messages": report.messages}

    def archive(self) -> dict[str, Any]:
        done = archive_store(self._spark, self._store, self._archive, split_bytes=PART_BYTES)
        report = verify_archive(self._spark, self._archive, self._store)
        return {"messages": done.messages, "ok": report.ok, "compared": report.compared}

    def restore(self) -> dict[str, Any]:
        target = Target("restored", endpoint=self._produce)
        return {"messages": restore_topic(self._spark, self._archive, "flights", target).messages}

    def stats(self) -> dict[str, Any]:
        stats = store_stats(self._spark, self._store, topics=["flights"], split_bytes=PART_BYTES)
        return {"messages": stats.messages, "gaps": stats.tables["gaps"]}

    def compact(self) -> dict[str, Any]:
        target = Target("last", endpoint=self._produce)
        done = compact_topic(self._spark, self._store, "flights", target, split_bytes=PART_BYTES)
        return {"messages": done.messages, "kept": done.kept}

    @property
    def _archive(self) -> Path:
        return self._place / "archive"

    def _where(self, option: str) -> dict[str, str]:
        return {
            option: {"path": self._store, "endpoint": self._consume}[option],
            "subscribe": "flights",
        }

    def _rows(self, option: str) -> Any:
        frame = self._spark.read.format("penstock").options(**self._where(option))
        return frame.option("maxRecordsPerPartition", "125").load().select(*ROW)

    def _stream(self, option: str) -> Any:
        stream = self._spark.readStream.format("penstock").options(**self._where(option))
        return stream.option("maxOffsetsPerTrigger", "1000").load()

    def _run(self, writer: Any, name: str) -> dict[str, Any]:
        checkpoint = f"{self._place}/{name}-checkpoint"
        while True:
            query = (
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
            try:
                query.awaitTermination()
                return {"batches": query.lastProgress["batchId"] + 1}
            except StreamingQueryException as error:
                if SLOW_START not in str(error):
                    raise


def main(master: str, *arguments: str) -> None:
    place = arguments[-1]
    settings = {
        "spark.master": master,
        **EXECUTORS,
        **SPECULATION,
        "spark.local.dir": f"{place}/driver",
        "spark.executorEnv.TMPDIR": place,
    }
    steps = Steps(local_session("cluster", settings=settings), list(arguments))
    for line in sys.stdin:
        print(json.dumps(getattr(steps, line.strip())()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
