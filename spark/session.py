"""A local Spark session with settings for short jobs on one machine.

Owns the settings; `java` finds the Java.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

import penstock
from penstock.shared.errors import ConfigError, MissingDependency
from penstock.spark import register
from penstock.spark.home import home_of_links, is_installed
from penstock.spark.java import cached_file, find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark expects this root level from a shell, and complains about any other on stderr
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
appender.stderr.filter.threshold.type = ThresholdFilter
appender.stderr.filter.threshold.level = error
"""
# A local session lives for seconds: on few cores, the optimising compiler and a parallel collector
# cost more than they gain.
_SHORT_LIVED_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# prefixes of the names of Spark's masters
_MASTERS = ("local", "spark", "yarn", "k8s")
_MASTER_HINT = "a master is written like local[4], spark://HOST:7077, yarn or k8s://HOST:PORT"
# settings of a session whose executors are all on this machine
_ON_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def local_session(
    app_name: str = "penstock",
    cores: int = 2,
    settings: Mapping[str, str] | None = None,
    *,
    short_lived: bool = True,
) -> SparkSession:
    """The running session, or a new one on this machine only. `settings` override the defaults.

    A JVM that is not `short_lived` optimises hot code better, which takes a while.
    """
    local = _ON_LOOPBACK | dict(settings or {})
    return _session(app_name, f"local[{cores}]", local, short_lived=short_lived)


def job_session(master: str = "", app_name: str = "penstock") -> SparkSession:
    """A session for a job: on the cluster at `master`, on that of spark-submit, or on all cores of
    this machine. Raises MissingDependency, ConfigError."""
    if master and not master.startswith(_MASTERS):
        raise ConfigError("Spark knows no such master", master, _MASTER_HINT)
    if master and not master.startswith("local"):
        return _session(app_name, master, {})
    if not master and "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.appName(app_name).getOrCreate()
        register(session)
        return session
    return _session(app_name, master or "local[*]", _ON_LOOPBACK)


def check_spark() -> None:
    """Raise MissingDependency if PySpark, what its workers need, or a Java for it is missing."""
    for package, name in (("pyspark", "PySpark"), ("pyarrow", "PyArrow")):
        if importlib.util.find_spec(package) is None:
            hint = "pip install 'penstock[spark]'"
            raise MissingDependency(f"{name} is not installed", None, hint)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has started one
        find_java()


def _session(
    app_name: str, master: str, settings: Mapping[str, str], *, short_lived: bool = True
) -> SparkSession:
    check_spark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    found = find_java()
    logging = cached_file("log4j2.properties", _LOGGING).as_uri()
    compiling = _SHORT_LIVED_JVM if short_lived else ""
    defaults = {
        "spark.driver.extraJavaOptions": f"{compiling} -Dlog4j2.configurationFile={logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(_cores(master)),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    environment = _launch_environment(java_home(), is_local=_is_local(master))
    if "spark.driver.host" in settings:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with _environment(environment), _without_orphans():
        session = _started(builder.getOrCreate, master, found)
    register(session)
    return session


def _started(start: Callable[[], SparkSession], master: str, java: object) -> SparkSession:
    """Raises MissingDependency if no JVM starts, and ConfigError if Spark fails inside the JVM."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError

    try:
        return start()
    except PySparkRuntimeError as error:
        raise MissingDependency(
            "Spark did not start on the Java that was found",
            f"{java}: {error}",
            "its reason is on standard error above; set JAVA_HOME to another Java",
        ) from error
    except Py4JJavaError as error:
        # read now, because the JVM that holds the error's text is about to be ended
        reason = error.java_exception.toString().partition("\n")[0]
        raise ConfigError("Spark did not start", f"{master}: {reason}", _MASTER_HINT) from None


@contextmanager
def _without_orphans() -> Iterator[None]:
    """If a start is interrupted, end the JVM that it has launched. PySpark would forget it, and
    delete the file through which the JVM says where it listens; without that it never ends."""
    before = set(_launchers())
    try:
        yield
    except BaseException:
        for process in set(_launchers()) - before:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        raise


def _launchers() -> Iterator[psutil.Process]:
    """Children of this process that are Spark, or the script that turns into it."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("spark-submit" in word or "SparkSubmit" in word for word in child.cmdline()):
                yield child


def _is_local(master: str) -> bool:
    """Whether the tasks run in the driver's own JVM."""
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    """How many tasks run at once, going by the master's name."""
    found = re.fullmatch(r"local\[(\d+)\]", master)
    return int(found[1]) if found else os.cpu_count() or 1


def _launch_environment(home: Path, *, is_local: bool) -> dict[str, str]:
    """The variables that the JVM, and through it Spark's Python workers, must find."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations, "pyspark was found before"
    pyspark = Path(spec.submodule_search_locations[0])
    # workers import the same penstock as this process, installed or not
    packages = str(Path(penstock.__file__).parent.parent)
    inherited, python = os.environ.get("PYTHONPATH"), os.environ.get("PYSPARK_PYTHON")
    # another Python may have no PySpark installed, and then its workers need Spark's own
    is_own = is_local and python in (None, sys.executable) and is_installed(pyspark)
    return {
        "JAVA_HOME": str(home),
        # so that Spark's start script need not run a Python process to find it
        "SPARK_HOME": os.environ.get("SPARK_HOME")
        or str(home_of_links(pyspark) if is_own else pyspark),
        "SPARK_LAUNCHER_OPTS": _SHORT_LIVED_JVM,
        "PYSPARK_PYTHON": python or sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (packages, inherited))),
    }


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables while Spark starts, and restore the process's own afterwards."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
