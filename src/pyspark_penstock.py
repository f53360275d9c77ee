"""Makes `spark.read.format("penstock")` work without a call to register it.

Spark imports every top-level module called pyspark_* and takes the class of this name in it.
"""

from __future__ import annotations

from penstock.spark.source import PenstockSource


class DefaultSource(PenstockSource):
    """The source under the name that Spark looks for."""
