"""A program that streams a store into Parquet files, to be killed: `python -m` this STORE PLACE.

The sink is Spark's own, which writes down which files of which batch count. A query that fails is
started again at once, as a supervisor of queries does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark.session import local_session


def main(store: str, place: Path) -> None:
    # a task is tried four times, as on a cluster; local[2] alone tries once
    spark = local_session("stream to be killed", settings={"spark.master": "local[2,4]"})
    from pyspark.errors import StreamingQueryException

    source = spark.readStream.format("penstock").option("path", store).load()
    rows = source.select("topic", "queue_id", "queue_offset", "body")
    while True:
        query = (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .start(str(place / "rows"))
        )
        print("started", flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as failed:
            print(f"failed: {failed}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
