"""Rebuilds consume queues and index from the log; Spark's workers walk its parts.

Workers read the store and write into its penstock/rebuild/, so it must be mounted where they run.
Everything else is done by `maintenance.rebuild`, and the files are the same, byte for byte.
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
    """Rebuild; durable on return. The caller must hold the store's lock. For the rest, and for the
    errors, see `rebuild_store`."""
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
