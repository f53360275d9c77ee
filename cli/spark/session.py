"""What every Spark job has: where it runs, and its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.signals import interrupted_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _checked(ctx: click.Context, _: click.Parameter, value: str) -> str:
    """The option's value, unchanged. Every job has it, so no job begins if Spark cannot run."""
    from penstock.spark.session import check_spark

    if not ctx.resilient_parsing:  # no error while a shell completes a word
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
    """A session for the block; spark-submit's if that runs the command."""
    from penstock.spark.session import job_session

    with interrupted_once():
        session = job_session(master, f"penstock {job}")
        try:
            yield session
        finally:
            session.stop()
