"""What every job on Spark has: where it runs, and its session."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# what a signal raises
_ENDS = (KeyboardInterrupt, SystemExit)


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


@contextmanager
def interrupted_once() -> Iterator[None]:
    """KeyboardInterrupt is what comes of Ctrl-C, and SystemExit of a signal that ends in order.

    One that meets a call to Java is logged by py4j with its traceback, and followed by an error of
    py4j's own: the answer to that call is taken for that to the next one. So is the call that
    Spark's own handler of the signal makes in the middle of another one. One that meets a finaliser
    of py4j's is lost, for those cannot raise: it comes again when that is over."""
    unraisable = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, _ENDS):
            # by another thread: here and now it would meet the same finaliser
            number = _signal_of(lost.exc_value)
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        else:
            unraisable(lost)

    def is_other(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, RuntimeError) and "reentrant call" in str(error):
                return False
            error = error.__context__
        return "KeyboardInterrupt" not in record.getMessage()

    log = logging.getLogger()  # py4j has one of its own, and logs this to the root
    log.addFilter(is_other)
    sys.unraisablehook = again
    try:
        yield
    except Exception as error:
        before = error.__context__
        while before is not None:
            if isinstance(before, _ENDS):
                raise before from None
            before = before.__context__
        raise
    finally:
        sys.unraisablehook = unraisable
        log.removeFilter(is_other)


def _signal_of(error: BaseException) -> int:
    """By which this came: `end_in_order` ends with 128 and its number, as a shell tells it."""
    code = getattr(error, "code", None)
    return code - 128 if isinstance(code, int) and code > 128 else signal.SIGINT
