"""A home for a local Spark whose Python workers import the PySpark that is installed.

Spark puts `python/lib/pyspark.zip` of its home first on its workers' path. Python compiles what it
imports from an archive in each process again; of what is installed it has compiled files. So a
local Spark is given a home of links without that part.
"""

from __future__ import annotations

import hashlib
import sysconfig
from contextlib import suppress
from pathlib import Path

from penstock.spark.java import cached_folder

_PYTHON = "python"


def is_installed(pyspark: Path) -> bool:
    """Whether each process of this Python finds the package in this folder by itself."""
    return str(pyspark.parent) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def home_of_links(pyspark: Path) -> Path:
    """The home that the installed package in this folder is, without its archive for workers."""
    home = cached_folder(f"spark-{hashlib.sha256(str(pyspark).encode()).hexdigest()[:12]}")
    for each in pyspark.iterdir():
        if each.is_dir() and each.name != _PYTHON:
            with suppress(FileExistsError):  # of an earlier start, or of another one just now
                (home / each.name).symlink_to(each)
    return home
