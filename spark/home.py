"""A home for a local Spark whose Python workers import the installed PySpark.

Spark puts `python/lib/pyspark.zip` of its home first on its workers' path. Python compiles modules
from an archive again in each process, whereas installed ones have compiled files. So a local Spark
gets a home of links without that part.
"""

from __future__ import annotations

import hashlib
import sysconfig
from contextlib import suppress
from pathlib import Path

from penstock.spark.java import cached_folder

_PYTHON = "python"


def is_installed(pyspark: Path) -> bool:
    """Whether every process of this Python finds the package in this folder by itself."""
    return str(pyspark.parent) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def home_of_links(pyspark: Path) -> Path:
    """A Spark home of links to the package in this folder, without its archive for workers."""
    home = cached_folder(f"spark-{hashlib.sha256(str(pyspark).encode()).hexdigest()[:12]}")
    for each in pyspark.iterdir():
        if each.is_dir() and each.name != _PYTHON:
            with suppress(FileExistsError):  # made by an earlier start, or by another one just now
                (home / each.name).symlink_to(each)
    return home
