"""A program that streams a store, to be killed: `python -m` this STORE PLACE MASTER [TOPIC].

It writes into Parquet files through Spark's own sink, which records which files of which batch
count; or into a topic of the same broker through Penstock's sink, each row with the place it came
from. A query that fails is started again at once, as a supervisor of queries does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.chaos.machine.spark_cluster import EXECUTORS
from penstock.spark.session import local_session

# property of a message in the topic: QUEUE/OFFSET of the message that was read
FROM = "from"


def main(store: str, place: Path, master: str, topic: str = "") -> None:
    settings = {"spark.master": master, "spark.executorEnv.TMPDIR": str(place)}
    if not master.startswith("local"):
        settings |= EXECUTORS | {"spark.local.dir": str(place / "driver")}
    spark = local_session("stream to be killed", settings=settings)
    from pyspark.errors import StreamingQueryException

    source = spark.readStream.format("penstock").option("path", store)
    if topic:
        found = source.option("subscribe", "streamed").load()
        at = "concat(queue_id, '/', queue_offset)"
        rows = found.selectExpr("body", f"map('{FROM}', {at}) AS properties", "queue_id")
    else:
        rows = source.load().select("topic", "queue_id", "queue_offset", "body")
    while True:
        writer = rows.writeStream.option("checkpointLocation", str(place / "checkpoint"))
        if topic:
            sink = writer.format("penstock").option("path", store).option("topic", topic)
            query = sink.start()
        else:
            query = writer.format("parquet").start(str(place / "rows"))
        print("started", flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as failed:
            print(f"failed: {failed}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
