"""Makes consume queues and index again from the log, whose parts Spark's workers walk.

Workers read the store and write into its penstock/rebuild/, so it has to be mounted where they are.
All else is that of `maintenance.rebuild`, and so are the files, byte for byte.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.maintenance.cuts import PART_BYTES
from penstock.maintenance.rebuild import Rebuilt, rebuild_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.spark.jobs.parts import Progress, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild_on(
    spark: SparkSession | None,
    paths: StorePaths,
    config: Config,
    *,
    queues: bool = True,
    index: bool = True,
    part_bytes: int = PART_BYTES,
    progress: Progress | None = None,
) -> Rebuilt:
    """Rebuild; durable on return. The caller holds the store's lock. For the rest, and what is
    raised, see `rebuild_store`."""
    return rebuild_store(
        paths,
        config,
        SystemClock(),
        queues=queues,
        index=index,
        progress=progress,
        run=partial(run_parts, spark),
        part_bytes=part_bytes,
    )
