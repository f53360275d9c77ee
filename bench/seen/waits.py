"""How long does a user wait who types a command, imports the client, or starts a test?

Each is what a user does, in a process of its own, from its start to the result that the user wants.
The ways take turns, so that a slower minute of the machine meets all of them. For comparison there
is an interpreter that does nothing: no program in Python takes less.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.stack import running_stack
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable

TOPIC = "bench"
ANSWER_S = 60
_CLI = (sys.executable, "-m", "penstock.cli.main")
# the importing process times imports, so the interpreter's start is in none of them
_IMPORT = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"
_TEST = """\
import pytest

@pytest.mark.parametrize("number", range({}))
def test_a_message_is_read(number, producer, topic, consumer):
    producer.send(topic, b"%d" % number).result({answer_s})
    assert [message.body for message in consumer.poll({answer_s})] == [b"%d" % number]
"""
_SET_UP = re.compile(r"^([0-9.]+)s setup .*\[(\d+)\]$", re.MULTILINE)


class Wait(msgspec.Struct, frozen=True, tag="wait", tag_field="kind"):
    """Milliseconds until `what` was there. `asked_ms` is the limit that it must keep; 0: none."""

    what: str
    asked_ms: int
    runs: int
    p50_ms: float
    max_ms: float


def bench_waits(runs: int, moved: Moved) -> list[Wait]:
    """Each `runs` times. Raises StoreUnavailable if a command fails."""
    with running_stack(None) as stack:
        with Producer(stack.produce) as producer:
            producer.create_topic(TOPIC, 4)
            producer.send(TOPIC, b"here").result(ANSWER_S)
        at = ("--store", str(stack.store))
        ways: dict[tuple[str, int], Callable[[], float]] = {
            ("python -c pass", 0): lambda: _ended([sys.executable, "-c", "pass"]),
            ("import zmq, msgspec", 0): lambda: _imported("import zmq, msgspec"),
            ("import penstock.client", 60): lambda: _imported("import penstock.client"),
            ("from penstock import Producer, Consumer", 0): lambda: _imported(
                "from penstock import Producer, Consumer"
            ),
            ("penstock --help", 100): lambda: _ended([*_CLI, "--help"]),
            ("penstock topics ls", 250): lambda: _ended([*_CLI, "topics", "ls", *at]),
            ("penstock tail, its first line", 300): lambda: _first_line(
                [*_CLI, "tail", TOPIC, *at]
            ),
        }
        took: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
        for run in range(runs):
            for way, wait in ways.items():
                took[way].append(wait())
            moved(run + 1, runs + 1)
    took["a test's broker, from the second on", 300] = _fixtures(runs)
    moved(runs + 1, runs + 1)
    return [
        Wait(what, asked_ms, len(all_s), _ms(median(all_s)), _ms(max(all_s)))
        for (what, asked_ms), all_s in took.items()
    ]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _ended(command: Sequence[str]) -> float:
    """Seconds until the command has ended."""
    began = time.perf_counter()
    _said(command)
    return time.perf_counter() - began


def _imported(statement: str) -> float:
    return float(_said([sys.executable, "-c", _IMPORT.format(statement)]))


def _said(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=cwd)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise StoreUnavailable("a command of this measurement has failed", command, said)
    return done.stdout


def _first_line(command: Sequence[str]) -> float:
    """Seconds until the command has printed its first line; then it is ended."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            if not process.stdout.readline():
                raise StoreUnavailable("tail has ended", process.stderr.read().decode().strip())
            return time.perf_counter() - began
        finally:
            process.terminate()


def _fixtures(runs: int) -> list[float]:
    """Seconds that pytest waited for a broker, a topic and both clients, without the first test,
    which also starts the process that later ones are forked from."""
    with tempfile.TemporaryDirectory(prefix="penstock-waits-") as place:
        file = Path(place, "test_waits.py")
        file.write_text(_TEST.format(runs + 1, answer_s=ANSWER_S))
        words = ["-m", "pytest", "-vv", "-p", "no:cacheprovider", "--durations=0"]
        said = _said([sys.executable, *words, "--rootdir", place, str(file)], Path(place))
    found = {int(number): float(seconds) for seconds, number in _SET_UP.findall(said)}
    if len(found) != runs + 1:
        raise StoreUnavailable("pytest did not say how long each test waited", said)
    return [seconds for number, seconds in found.items() if number]
