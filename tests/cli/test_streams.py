"""Standard output or error that is full or closed: a line, an exit code, and no traceback."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.takes(30)

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
Shell = Callable[..., subprocess.CompletedProcess[str]]
# each prints something; those of a store want its directory last
COMMANDS = {
    "status": ["status", "--store"],
    "topics": ["topics", "ls", "--store"],
    "consume": ["consume", "lines", "--store"],
    "consume json": ["consume", "lines", "-o", "json", "--store"],
    "query": ["query", "key", "lines", "k", "-o", "json", "--store"],
    "config": ["config", "show"],
    "clean": ["clean", "--store"],
    "recovery": ["recovery", "show", "--store"],
    "info": ["store", "info"],
    "verify": ["store", "verify", "-o", "json"],
    "inspect": ["store", "inspect"],
    "version": ["version"],
    "help": ["--help"],
    "points": ["chaos", "--points"],
}


@pytest.fixture
def shell(broker: Any) -> Shell:
    """Run a command in a shell, with what is put after it."""

    def run(words: list[str], after: str = "") -> subprocess.CompletedProcess[str]:
        store = words[-1] == "--store" or words[0] == "store"
        line = shlex.join([*PENSTOCK, *words, *([str(broker.store)] if store else [])])
        return subprocess.run(
            ["sh", "-c", f"{line} {after}"], capture_output=True, text=True, timeout=60
        )

    sent = subprocess.run(
        [*PENSTOCK, "produce", "lines", "--key", "k", "--store", str(broker.store)], input=b"one\n"
    )
    assert sent.returncode == 0
    return run


@pytest.mark.parametrize("after", [">/dev/full", ">&-"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_takes_nothing_is_one_line_and_exit_code_1(
    shell: Shell, name: str, after: str
) -> None:
    done = shell(COMMANDS[name], after)
    assert done.returncode == 1, done.stderr
    *notes, last = done.stderr.splitlines()
    told = json.loads(last)["error"]["status"] if last.startswith("{") else last
    assert "OUTPUT_FAILED" in told and len(notes) <= 1, done.stderr


@pytest.mark.parametrize("after", ["2>/dev/full", "2>&-"])
def test_an_error_that_nobody_hears_keeps_its_exit_code(shell: Shell, after: str) -> None:
    for words, code in (
        (["nonsense"], 2),
        (["status", "--store", "/nowhere", "-o", "json"], 3),
        (["consume", "missing", "--store"], 1),
        (["version"], 0),
    ):
        done = shell(words, after)
        assert (done.returncode, done.stderr) == (code, ""), words
    sent = shell(["produce", "quiet", "--store"], f"{after} <&-")
    assert (sent.returncode, sent.stderr) == (1, "")


def test_a_closed_input_is_an_input_that_cannot_be_read(shell: Shell) -> None:
    done = shell(["produce", "t", "--store"], "<&-")
    assert done.returncode == 1 and "the input cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_keeps_its_exit_code_when_its_reader_goes(
    shell: Shell, tmp_path: Path, broker: Any
) -> None:
    stray = broker.store / "consumequeue" / "lines" / "0" / "note.txt"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text("x")
    try:
        for after in ("| true; exit $?", ""):
            found = f"{after}" if not after else ""
            done = shell(["store", "verify"], found)
            assert done.returncode == 1
        line = shlex.join([*PENSTOCK, "store", "verify", str(broker.store)])
        bash = f"set -o pipefail; {line} | head -c 0"
        piped = subprocess.run(["bash", "-c", bash], capture_output=True, text=True, timeout=60)
        assert (piped.returncode, piped.stderr) == (1, "")
    finally:
        stray.unlink()


def test_names_that_are_no_text_are_printed(tmp_path: Path) -> None:
    store = tmp_path / "caf\udce9"
    for option in ([], ["-o", "json"]):
        done = subprocess.run(
            [*PENSTOCK, "config", "show", "store_path_root_dir", "--set"]
            + [f"store_path_root_dir={store}", *option],
            capture_output=True,
            env={"PATH": "", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        assert done.returncode == 0, done.stderr
        assert b"caf" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["tail", "unread-1"],
        ["consume", "unread-2", "--follow"],
        ["consume", "unread-3", "--follow", "--group", "unread", "--from", "earliest"],
        ["logs", "--follow"],
    ],
    ids=" ".join,
)
def test_what_waits_for_more_ends_when_its_reader_goes(words: list[str], broker: Any) -> None:
    """Though nothing comes that it would print: `| head -1` does not stand there for ever."""
    log, at = broker.store / "penstock" / "broker.log", ("--store", str(broker.store))
    if words[0] == "logs":
        log.write_text("one\n")
    else:
        subprocess.run([*PENSTOCK, "produce", words[1], *at], input=b"one\n", check=True)
    with subprocess.Popen(
        [*PENSTOCK, *words, *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        try:
            assert reading.stdout.readline() == b"one\n"
            reading.stdout.close()
            assert reading.wait(60) == 0 and reading.stderr.read() == b""
        finally:
            reading.kill()
            log.unlink(missing_ok=True)


@pytest.mark.parametrize("stops", [True, False])
def test_what_a_signal_left_in_the_buffer_does_not_change_the_exit_code(stops: bool) -> None:
    code = f"""if True:
        import sys
        from penstock.cli.streams import finish_output, prepare_streams, stop_when_unread
        prepare_streams()
        if {stops}:
            stop_when_unread()
        sys.stdout.write("a line of which nobody knows whether it was written")
        sys.stdin.read()  # until nobody reads
        finish_output()
        sys.exit(130)
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        program.stdout.close()
        program.stdin.close()
        assert program.wait(60) == 130
