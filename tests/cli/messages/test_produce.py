"""`penstock produce` when something breaks half way: what is stored, and what is said of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.takes(30)

Command = Callable[..., subprocess.CompletedProcess[str]]
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
LINES = 20_000
WAIT_S = 60


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "some lines"
    file.write_text("".join(f"{number}\n" for number in range(1, LINES + 1)))
    return file


@pytest.fixture
def stored(broker: Any, command: Command) -> Callable[[str], list[str]]:
    """The bodies of a topic, in no order."""

    def bodies(topic: str) -> list[str]:
        done = command("consume", topic, "--store", broker.store)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return bodies


def _start(*arguments: str | Path, **streams: Any) -> subprocess.Popen[bytes]:
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PENSTOCK, *map(str, arguments)], **(given | streams))


def _await(stream: Any, wanted: bytes) -> bytes:
    """What comes until this does."""
    said = b""
    while wanted not in said:
        waiting = select.poll()  # select() refuses descriptors above 1023
        waiting.register(stream, select.POLLIN)
        assert waiting.poll(WAIT_S * 1000), said
        part = os.read(stream.fileno(), 65536)
        assert part, said
        said += part
    return said


def test_a_reader_of_receipts_that_goes_ends_no_sending(
    broker: Any, lines: Path, stored: Callable[[str], list[str]]
) -> None:
    for topic in ("gone1", "gone2", "gone3"):
        process = _start("produce", topic, lines, "-o", "json", "--store", broker.store)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == "PUT_OK"
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read().decode()
        process.stderr.close()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0, said
        assert f"{LINES} messages sent to {topic}" in said and "receipts are missing" in said
        assert len(stored(topic)) == LINES


@pytest.mark.parametrize("output", ["full", "closed"])
def test_receipts_that_cannot_be_written_are_an_error_behind_the_sending(
    broker: Any, lines: Path, stored: Callable[[str], list[str]], output: str
) -> None:
    words = [*PENSTOCK, "produce", output, str(lines), "--store", str(broker.store), "-o", "json"]
    how = ">/dev/full" if output == "full" else ">&-"
    done = subprocess.run(["sh", "-c", f"{shlex.join(words)} {how}"], capture_output=True)
    *_, sent, error = done.stderr.decode().splitlines()
    assert done.returncode == 1 and sent == f"{LINES} messages sent to {output}"
    assert json.loads(error)["error"]["status"] == "OUTPUT_FAILED"
    assert len(stored(output)) == LINES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_sending_and_says_how_to_go_on(
    broker: Any,
    lines: Path,
    stored: Callable[[str], list[str]],
    number: signal.Signals,
    tmp_path: Path,
) -> None:
    topic = f"asked{number.name}"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = ("produce", topic, fifo, "--key", "two words", "--property", "a=b", "--store")
    process = _start(*words, broker.store, "-o", "json")
    with fifo.open("wb", buffering=0) as feed:
        feed.write(b"1\n2\n3\n4 is not whole yet")
        assert process.stdout is not None and process.stderr is not None
        _await(process.stdout, b'"queue_offset"')
        deadline = time.monotonic() + WAIT_S
        while len(stored(topic)) < 3:
            assert time.monotonic() < deadline
        process.send_signal(number)
        said = process.stderr.read().decode()
        code = process.wait(WAIT_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    assert code == 128 + number
    told = json.loads(said.splitlines()[-1])["error"]
    assert (told["status"], told["exit_code"]) == ("INTERRUPTED", code)
    assert (told["stored"], told["first_not_stored"]) == (3, 4)
    # what it says is what it means: the same options, and the lines that are missing
    tail, go_on = told["go_on"].split(" | ")
    assert shlex.split(tail) == ["tail", "-n", "+4", str(fifo)]
    assert shlex.split(go_on)[1:] == [
        *("produce", topic, "--key", "two words", "--property", "a=b"),
        *("--store", str(broker.store), "--output", "json"),
    ]
    assert sorted(stored(topic)) == ["1", "2", "3"]


def test_the_printed_command_sends_exactly_what_is_missing(
    broker: Any, lines: Path, stored: Callable[[str], list[str]], command: Command
) -> None:
    content = lines.read_text().splitlines()
    content[7000] = "x" * 70_000  # longer than this broker takes
    lines.write_text("\n".join(content) + "\n")
    done = command("produce", "long", lines, "--store", broker.store)
    assert done.returncode == 2 and "MESSAGE_ILLEGAL" in done.stderr
    said = "7000 lines are stored; the first that is not is line 7001"
    assert said in done.stderr, done.stderr
    assert len(stored("long")) == 7000
    content[7000] = "shorter"
    lines.write_text("\n".join(content) + "\n")
    (go_on,) = re.findall(r"^go on: (.+)$", done.stderr, re.M)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    again = subprocess.run(["sh", "-c", go_on], capture_output=True, env={"PATH": path})
    assert again.returncode == 0, again.stderr
    assert sorted(stored("long")) == sorted(content)


def _give(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Write to its input, and wait until it has read that."""
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
    deadline = time.monotonic() + WAIT_S
    left = bytearray(b"left")
    while any(left):
        assert time.monotonic() < deadline
        fcntl.ioctl(process.stdin, termios.FIONREAD, left)


def test_a_second_signal_ends_at_once(broker_in: Callable[..., Any], tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    writer = next(a["pid"] for a in broker.status()["actors"] if a["name"] == "writer")
    process = _start("produce", "stuck", "-o", "json", "--store", broker.store)
    assert process.stdout is not None and process.stderr is not None
    os.kill(broker.process.pid, signal.SIGSTOP)  # else it replaces the writer
    try:
        _give(process, b"one\n")
        _await(process.stdout, b"\n")
        os.kill(writer, signal.SIGSTOP)
        _give(process, b"two\n")
        _give(process, b"three\n")  # read, and so the one before it is on its way
        process.send_signal(signal.SIGINT)
        said = _await(process.stderr, b"stopping: waiting")
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
        assert process.wait(WAIT_S) == 130
        assert b"1 lines are stored; those from line 2 on may not be" in said
    finally:
        os.kill(writer, signal.SIGCONT)
        os.kill(broker.process.pid, signal.SIGCONT)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_an_input_that_breaks_in_the_middle_is_no_end_of_it(
    broker: Any, stored: Callable[[str], list[str]]
) -> None:
    outer, inner = pty.openpty()
    tty.setraw(inner)
    process = _start("produce", "breaks", "--store", broker.store, stdin=outer)
    os.write(inner, b"1\n2\nhalf a li")
    deadline = time.monotonic() + WAIT_S
    while True:  # until it has read that; closing would take it away
        try:
            if len(stored("breaks")) == 2:
                break
        except AssertionError:
            assert time.monotonic() < deadline
    os.close(inner)  # reading fails with EIO now
    _, said = process.communicate(timeout=WAIT_S)
    os.close(outer)
    assert process.returncode == 1 and b"the input cannot be read any further" in said
    assert b"2 lines are stored; the first that is not is line 3" in said
    assert sorted(stored("breaks")) == ["1", "2"]


def test_a_broker_that_dies_is_told_of_while_the_input_waits(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_in(tmp_path)
    process = _start("produce", "t", "--timeout", "1s", "-o", "json", "--store", broker.store)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"1\n")
    process.stdin.flush()
    _await(process.stdout, b"\n")  # the receipt comes though the input goes on
    broker.kill()
    process.stdin.write(b"2\n3\n")
    process.stdin.flush()
    assert process.stderr is not None
    said = process.stderr.read()  # its end, while the input still has none
    assert process.wait(WAIT_S) == 3
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    told = json.loads(said.splitlines()[-1])["error"]
    assert (told["stored"], told["first_not_stored"]) == (1, 2)


@pytest.mark.parametrize("newlines", [True, False])
def test_memory_stays_bounded_whatever_the_input(broker: Any, newlines: bool) -> None:
    source = "yes" if newlines else "cat /dev/zero"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    words = [*PENSTOCK, "produce", "much", "--store", str(broker.store), "--ack", "written"]
    cut = f"{source} | head -c 400000000 | head -n 300000 | {shlex.join(words)}"
    measured = (
        "import resource, subprocess, sys;"
        "done = subprocess.run(['sh', '-c', sys.argv[1]], capture_output=True);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", measured, cut], capture_output=True, text=True)
    code, kib = map(int, done.stdout.split())
    assert code == (0 if newlines else 2), before
    assert kib < 250_000


def test_line_ends_are_no_part_of_a_body_and_nothing_else_is_taken_away(
    broker: Any, command: Command
) -> None:
    sent = subprocess.run(
        [*PENSTOCK, "produce", "ends", "--queue", "0", "--store", str(broker.store)],
        input=b"a\r\nb\r\r\n\nc\t \nd",
        capture_output=True,
    )
    assert sent.returncode == 0, sent.stderr
    rows = command("consume", "ends", "--store", broker.store, "-o", "json").stdout.splitlines()
    assert [json.loads(row)["body"] for row in rows] == ["a", "b\r", "", "c\t ", "d"]


def test_keys_and_properties_may_be_several(broker: Any, command: Command) -> None:
    done = command(
        *("produce", "several", "--key", "k1", "--key", "k2 k3", "--property", "region=eu"),
        *("--property", "empty==x", "--store", broker.store),
        input="x\n",
    )
    assert done.returncode == 0, done.stderr
    (row,) = command(
        "consume", "several", "--store", broker.store, "-o", "json"
    ).stdout.splitlines()
    found = json.loads(row)
    assert found["keys"] == "k1 k2 k3"
    assert found["properties"] | {"region": "eu", "empty": "=x"} == found["properties"]
    wrong = command("produce", "several", "--property", "region", "--store", broker.store, input="")
    assert wrong.returncode == 2 and "NAME=VALUE" in wrong.stderr
    twice = "--property", "region=eu", "--property", "region=us"
    wrong = command("produce", "several", *twice, "--store", broker.store, input="x")
    assert wrong.returncode == 2 and "'region' is given two values" in wrong.stderr


def test_a_bar_shows_how_far_a_long_file_is(
    broker: Any, terminal: Callable[..., Any], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"exec sleep 60 > {fifo}"]) as feed:
        shown = terminal("produce", "bar", fifo, "--store", broker.store)
        shown.show(until="sending")  # by itself, though nothing moves
        feed.terminate()
    assert shown.end() == 0 and "0 messages sent to bar" in shown.text


def test_who_types_is_told_how_to_end(broker: Any, terminal: Callable[..., Any]) -> None:
    shown = terminal("produce", "typed", "--store", broker.store)
    shown.show(until="Ctrl-D")
    shown.type(b"hello\n\x04")
    assert shown.end() == 0 and "1 message sent to typed" in shown.text
