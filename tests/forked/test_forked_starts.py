"""A forked command is, to all who look, the process that a true start would have made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from forked_starts import Forks

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
WAIT_S = 120


@pytest.fixture(params=[False, True], ids=["started", "forked"])
def forks(request: pytest.FixtureRequest) -> Iterator[Forks]:
    """Forks of this test's own, wanted or not."""
    before = vars(subprocess)["_fork_exec"]
    made = Forks()
    made.install()
    made.is_wanted = request.param
    yield made
    made.close()
    vars(subprocess)["_fork_exec"] = before


class Running(NamedTuple):
    """A name server, which runs until it is told to stop."""

    process: subprocess.Popen[str]
    line: str


@pytest.fixture
def name_server(forks: Forks, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running = []

    def start(**options: Any) -> Running:
        words = [*PENSTOCK, "namesrv", "--port", "0"]
        pipe = subprocess.PIPE
        made = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, **options)
        running.append(made)
        assert made.stdout is not None
        return Running(made, made.stdout.readline())

    yield start
    for each in running:
        each.kill()
        each.communicate()


def test_it_is_a_child_with_the_group_session_and_streams_that_were_asked_for(
    name_server: Callable[..., Running], tmp_path: Path
) -> None:
    child = name_server(cwd=tmp_path, env={**os.environ, "PENSTOCK_MARK": "here"}).process
    place = Path(f"/proc/{child.pid}")
    _, parent, group, session = _stat(child.pid)
    assert (parent, group, session) == (os.getpid(), os.getpgid(0), os.getsid(0))
    words = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert [os.fsdecode(word) for word in words] == [*PENSTOCK, "namesrv", "--port", "0"]
    shown = (place / "environ").read_bytes().rstrip(b"\0").split(b"\0")
    pairs = {f"{name}={value}".encode() for name, value in os.environ.items()}
    assert set(shown) == pairs | {b"PENSTOCK_MARK=here"}
    assert os.readlink(place / "cwd") == str(tmp_path)
    assert os.readlink(place / "exe") == os.path.realpath(sys.executable)
    assert {os.readlink(each) for each in (place / "fd").iterdir()} >= {
        os.readlink(f"/proc/self/fd/{stream.fileno()}")
        for stream in (child.stdout, child.stderr)
        if stream is not None
    }
    alone = name_server(start_new_session=True).process
    assert _stat(alone.pid)[1:] == [os.getpid(), alone.pid, alone.pid]
    grouped = name_server(process_group=0).process
    assert _stat(grouped.pid)[2] == grouped.pid


def _stat(pid: int) -> list[Any]:
    """State, parent, process group and session."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [fields[0], *map(int, fields[1:4])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it_and_the_end_is_told(
    name_server: Callable[..., Running], number: signal.Signals
) -> None:
    child = name_server().process
    child.send_signal(number)
    assert child.wait(WAIT_S) == (-number if number == signal.SIGKILL else 0)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["version", "-o", "json"], 0),
        (["no-such-command"], 2),
        (["status", "--store", "nowhere"], 3),
    ],
)
def test_it_prints_and_ends_as_a_program(
    forks: Forks, tmp_path: Path, words: list[str], code: int
) -> None:
    found = [_ran(words, tmp_path)]
    forks.is_wanted = False
    found.append(_ran(words, tmp_path))
    assert found[0] == found[1] and found[0][0] == code


def _ran(words: list[str], place: Path) -> tuple[int, str, str]:
    done = subprocess.run([*PENSTOCK, *words], cwd=place, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_program_of_chaos_begins_as_main_with_its_own_arguments(forks: Forks) -> None:
    words = [sys.executable, "-m", "penstock.chaos.clients.seller", "too", "few"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "TypeError: main() missing 1 required positional argument: 'seed'"
    )
    assert "forked_starts" in done.stderr if forks.is_wanted else "forked_starts" not in done.stderr


def test_it_fails_where_it_is_armed_to(forks: Forks, tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    fired.touch()
    armed = {"PENSTOCK_FAULTS": "start.before_abort=crash", "PENSTOCK_FAULTS_FIRED": str(fired)}
    words = [*PENSTOCK, "up", "--port", "auto", "--store", str(tmp_path / "store")]
    done = subprocess.run(words, env={**os.environ, **armed}, capture_output=True, timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert fired.read_text().split()[0] == "start.before_abort"


def test_output_that_nobody_reads_ends_it_as_it_ends_a_program(forks: Forks) -> None:
    end, other = os.pipe()
    os.close(end)
    with open(other, "wb") as closed:
        done = subprocess.run([*PENSTOCK, "--help"], stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "how",
    [
        {"env": {**os.environ, "PYTHONDEVMODE": "1"}},
        {"env": {**os.environ, "PENSTOCK_FAULTS": "no.such=crash"}},
        {"preexec_fn": lambda: None},
        {"close_fds": False},
        {"umask": 0o077},
    ],
    ids=lambda how: next(iter(how)),
)
def test_what_changes_a_start_has_a_true_one(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks, started = Forks(), []
    real = vars(subprocess)["_fork_exec"]
    monkeypatch.setitem(vars(subprocess), "_fork_exec", lambda *a: started.append(a) or real(*a))
    forks.install()
    forks.is_wanted = True
    try:
        subprocess.run([*PENSTOCK, "version"], capture_output=True)
        plain = len(started)
        subprocess.run([*PENSTOCK, "version"], capture_output=True, **how)
    finally:
        forks.close()
    assert (plain, len(started)) == (1, 2), "one is the process that forks"
