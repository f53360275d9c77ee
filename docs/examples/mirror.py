"""Copies a topic into another one, in the same broker or another, each message once.

    spark-submit --master spark://HOST:7077 mirror.py \\
        tcp://A:20912 orders tcp://B:20911 orders-copy hdfs:///checkpoints/orders-copy

What stands between `load` and `writeStream` is where work of your own goes. Killed at any moment it
goes on from its checkpoint. With a sixth argument, `once`, it ends with what there is.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(source: str, topic: str, target: str, into: str, checkpoint: str, *once: str) -> None:
    spark = SparkSession.builder.appName(f"mirror of {topic}").getOrCreate()
    messages = (
        spark.readStream.format("penstock")
        .option("endpoint" if source.startswith("tcp://") else "path", source)
        .option("subscribe", topic)
        .load()
    )
    query = (
        messages.select("body", "tags", "keys")
        .writeStream.format("penstock")
        .option("endpoint" if target.startswith("tcp://") else "path", target)
        .option("topic", into)
        .option("checkpointLocation", checkpoint)
        .trigger(**({"availableNow": True} if once else {"processingTime": "1 second"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
