"""The driver of test_cluster.py, a JSON line for each step.

`python` this MASTER_URL OPTION SOURCE PLACE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.chaos.machine.spark_cluster import EXECUTORS
from penstock.spark.session import local_session


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.2)  # so that the job is still running when a worker is killed
        yield batch


def main(master: str, option: str, source: str, place: str) -> None:
    settings = {
        "spark.master": master,
        **EXECUTORS,
        "spark.local.dir": f"{place}/driver",
        "spark.executorEnv.TMPDIR": place,
    }
    spark = local_session("cluster", settings=settings)
    frame: Any = spark.read.format("penstock").option(option, source)
    frame = frame.option("subscribe", "flights").option("maxRecordsPerPartition", "125").load()
    print(json.dumps({"count": frame.count(), "parts": frame.rdd.getNumPartitions()}), flush=True)
    rows = frame.mapInArrow(slowly, frame.schema).select("queue_id", "queue_offset", "body")
    rows.write.parquet(f"{place}/batch")
    stream: Any = spark.readStream.format("penstock").option(option, source)
    query = (
        stream.option("subscribe", "flights")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
        .select("queue_id", "queue_offset", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{place}/stream")
    )
    query.awaitTermination()
    print(json.dumps({"batches": query.lastProgress["batchId"] + 1}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
