"""`penstock top`: a frame fits the terminal, q and Ctrl-C leave it as it was. Its views are in
test_top_views.py."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.broker.top import LINES, _frame
from penstock.cli.broker.top_pipeline import pipeline
from penstock.client import Producer
from penstock.shared.layout import StorePaths
from penstock.shared.memory.roster import ROSTER

WAIT_S = 120
ANSI = re.compile(rb"\x1b\[[?0-9;]*[A-Za-z]")
# from the corner to what is cleared below the last line
FRAME = re.compile(rb"\x1b\[H((?:(?!\x1b\[H).)*?)\x1b\[J", re.DOTALL)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", "top", *map(str, arguments)]


class Terminal:
    """`top` in a terminal of its own."""

    def __init__(self, store: Path, columns: int, lines: int, every: str = "0.2") -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (lines, columns))
        self.before = termios.tcgetattr(self.ours)
        self.process = subprocess.Popen(
            command("--store", store, "--every", every),
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: _take(theirs),
            # readline, which pytest imports, has put a size into the environment of its children
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        )  # fmt: skip
        os.close(theirs)
        self.came = b""
        self.readable = select.poll()
        self.readable.register(self.ours, select.POLLIN)

    def until(self, text: bytes) -> None:
        self._read_until(lambda: text in self.came)

    def frame_of(self, columns: int, lines: int) -> list[bytes]:
        """The lines of the first whole frame to come that is no larger than this."""
        fits: list[list[bytes]] = []

        def came() -> bool:
            frames = [lines_of(frame) for frame in FRAME.findall(self.came)]
            fits[:] = [f for f in frames if len(f) <= lines and max(map(len, f)) <= columns]
            return bool(fits)

        self._read_until(came)
        return fits[0]

    def _read_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            if self.readable.poll(1000):
                try:
                    self.came += os.read(self.ours, 65536)
                except OSError:  # nobody has the other end any more
                    break
            assert time.monotonic() < deadline, self.came
        assert done(), self.came

    def press(self, keys: bytes, text: bytes) -> None:
        """Until this is shown; what was shown before does not count."""
        self.came = b""
        os.write(self.ours, keys)
        self.until(text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def _take(terminal: int) -> None:
    import fcntl

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.fixture(params=[(80, 24)], ids=["80x24"])
def terminal(broker: Any, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    found = Terminal(broker.store, *request.param)
    yield found
    found.close()


def lines_of(came: bytes) -> list[bytes]:
    return [line.rstrip(b"\r") for line in ANSI.sub(b"", came).split(b"\n")]


@pytest.mark.parametrize("terminal", [(60, 14), (200, 60)], ids=str, indirect=True)
def test_a_frame_is_no_larger_than_its_terminal(
    terminal: Terminal, request: pytest.FixtureRequest
) -> None:
    columns, height = request.node.callspec.params["terminal"]
    lines = terminal.frame_of(columns, height)
    assert columns < 80 or len(lines[0]) == columns and lines[0].endswith(b"q ends")


@pytest.mark.parametrize("terminal", [(40, 30)], ids=str, indirect=True)
def test_a_narrow_terminal_shows_all_that_stands_above_the_table(terminal: Terminal) -> None:
    terminal.until(b"had to recover")


def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.until(b"cleaner")
    terminal.process.terminate()
    terminal.until(b"\x1b[?1049l")
    assert terminal.process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert termios.tcgetattr(terminal.ours) == terminal.before


def test_a_stop_leaves_the_terminal_as_it_was_until_it_goes_on(terminal: Terminal) -> None:
    terminal.until(b"cleaner")
    os.write(terminal.ours, b"\x1a")  # Ctrl-Z
    terminal.until(b"\x1b[?1049l")
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert termios.tcgetattr(terminal.ours) == terminal.before
    terminal.came = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(b"\x1b[?1049h")
    terminal.until(b"cleaner")
    os.write(terminal.ours, b"q")
    terminal.until(b"\x1b[?1049l")
    assert terminal.process.wait(WAIT_S) == 0
    assert termios.tcgetattr(terminal.ours) == terminal.before


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_shows_every_actor_and_a_key_ends_it_with_the_terminal_as_it_was(
    terminal: Terminal, key: bytes
) -> None:
    terminal.until(b"cleaner")
    terminal.until(b"transactions")
    terminal.frame_of(80, 24)
    for frame in FRAME.findall(terminal.came):
        assert max(map(len, lines_of(frame))) <= 80
    os.write(terminal.ours, key)
    terminal.until(b"\x1b[?1049l")
    assert terminal.process.wait(WAIT_S) == 0
    assert b"Traceback" not in terminal.came
    assert terminal.came.count(b"\x1b[?1049h") == terminal.came.count(b"\x1b[?25h") == 1
    assert termios.tcgetattr(terminal.ours) == terminal.before


def test_one_look_as_json_has_the_actors_and_rates(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.send("seen", b"x").result(WAIT_S)
    said = subprocess.check_output(command("--store", broker.store, "-o", "json"), timeout=WAIT_S)
    found = json.loads(said)
    assert [actor["name"] for actor in found["actors"]] == [row.name for row in ROSTER]
    assert found["rates"]["messages_s"] >= 0 and found["problems"] == []
    writer = next(actor for actor in found["actors"] if actor["name"] == "writer")
    assert writer["at"] == broker.status()["positions"]["wrote"] > 0


def test_without_a_terminal_there_is_one_frame(broker: Any) -> None:
    said = subprocess.check_output(command("--store", broker.store), timeout=WAIT_S)
    assert said.count(b"\n") < 24
    assert b"\x1b" not in said and said.count(b"\nwriter ") == 1


def test_it_shows_what_the_broker_was_started_with_and_fits_with_many_groups(
    start_broker: Any,
) -> None:
    broker = start_broker(broker_name='"shop-1"')
    said = subprocess.check_output(command("--store", broker.store, "-o", "json"), timeout=WAIT_S)
    found = json.loads(said)
    assert found["broker"] == "shop-1", "and not the default name"
    lag = {"lag": 5, "lag_ms": 7}
    for count in range(12):
        found["most_lag"] = [{"group": f"g{number}", **lag} for number in range(count)]
        found["actors"] = [actor | {"state": "running"} for actor in found["actors"]]
        lines, _ = _frame(["shop-1", "healthy"], pipeline(found, {}))
        assert len(lines) < LINES and "actor" in lines[6]
        shown = [line for line in lines if re.match(r"g\d", line)]
        assert len(shown) == min(count, 2), "those with most, of as many as there is room for"


def test_disk_dead_letters_and_the_last_recovery_are_shown_and_unknown_where_they_are(
    broker_in: Any, tmp_path: Path
) -> None:
    broker_in(tmp_path).kill()
    broker = broker_in(tmp_path)  # recovers
    with Producer(broker.produce) as producer:
        producer.send("%DLQ%billing", b"x").result(WAIT_S)
    look = command("--store", broker.store)
    deadline = time.monotonic() + WAIT_S
    found = {"dead_letters": 0}
    while not found["dead_letters"]:  # it is counted once it is in its queue
        assert time.monotonic() < deadline
        found = json.loads(subprocess.check_output([*look, "-o", "json"], timeout=WAIT_S))
    assert 0 <= found["disk_used_percent"] <= 100
    (recovery,) = found["recoveries"]
    assert recovery["found"]["mode"] == "unclean"
    line = subprocess.check_output(look, timeout=WAIT_S).decode().splitlines()[4]
    shown = re.fullmatch(
        r"disk (\d+) % used, "
        r"full (unknown|not at this rate|in \S+ \S+); 1 dead letters; recovered \S+ \S+ ago",
        line,
    )
    # others write to the disk between the two looks
    assert shown and abs(int(shown[1]) - found["disk_used_percent"]) <= 1, line
    paths = StorePaths(broker.store)
    for file in (paths.topics, paths.topics.with_name("topics.json.bak"), paths.recoveries):
        file.write_bytes(b"{")
    line = subprocess.check_output(look, timeout=WAIT_S).decode().splitlines()[4]
    assert line.endswith("; unknown dead letters; recoveries unknown")


def test_without_a_broker_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = subprocess.run(command("--store", tmp_path), capture_output=True, timeout=WAIT_S)
    assert done.returncode == 3 and b"penstock up" in done.stderr
