"""What every job on Spark has: where it runs, and its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.signals import interrupted_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _checked(ctx: click.Context, _: click.Parameter, value: str) -> str:
    """The option as it is. Each job has it, and so none begins where Spark cannot."""
    from penstock.spark.session import check_spark

    if not ctx.resilient_parsing:  # a shell that completes a word is told nothing
        check_spark()
    return value


master_option = click.option(
    "--master",
    metavar="URL",
    default="",
    callback=_checked,
    help="Where Spark runs: spark://HOST:PORT, yarn, local[4]. All cores of this machine without.",
)


@contextmanager
def spark_session(master: str, job: str) -> Iterator[SparkSession]:
    """A session while this lasts; spark-submit's where that runs the command."""
    from penstock.spark.session import job_session

    with interrupted_once():
        session = job_session(master, f"penstock {job}")
        try:
            yield session
        finally:
            session.stop()
