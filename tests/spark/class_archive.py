"""The classes that every start of Spark loads, laid out once so that it maps them: `make test`.

A start takes 5 s of processor time with this archive and 9 s without it, and the tests start Spark
some thirty times. Most of those read a store, so the archive has the classes of that, too. A JVM
that cannot use it, as one of another version, starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.spark.session import local_session
from penstock.testing import SMALL_FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _copy(session: SparkSession, place: Path) -> None:
    """Messages into Spark and back: that loads Arrow, and what Spark has for Python sources."""
    with penstock.open(place / "store", settings=SMALL_FILES) as broker:
        broker.producer().send("orders", b"1").result(30)
        broker.producer().create_topic("copies", 1)
        path = str(place / "store")
        orders = session.readStream.format("penstock").option("path", path)
        copies = orders.option("subscribe", "orders").load().select("body").writeStream
        copies = copies.option("checkpointLocation", str(place / "copied")).format("penstock")
        copies = copies.option("path", path).option("topic", "copies").trigger(availableNow=True)
        copies.start().awaitTermination()
        read = session.read.format("penstock").option("path", path).option("subscribe", "copies")
        assert read.load().count() == 1


def main(target: Path) -> None:
    # beside its place, as it is moved there when it is whole
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        made = Path(place) / "classes"
        os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={made}"
        session = local_session()
        rows = session.range(100).selectExpr("id", "id % 7 AS rest")
        rows.write.parquet(f"{place}/rows")
        session.read.parquet(f"{place}/rows").groupBy("rest").count().collect()
        counted = session.readStream.schema(rows.schema).parquet(f"{place}/rows").writeStream
        stream = counted.option("checkpointLocation", f"{place}/seen").format("noop").start()
        stream.processAllAvailable()
        stream.stop()
        _copy(session, Path(place))
        java = session.sparkContext._gateway.proc
        session.stop()
        java.stdin.close()  # by which it ends
        java.wait()
        if made.exists():  # not every Java can
            made.rename(target)


main(Path(sys.argv[1]))
