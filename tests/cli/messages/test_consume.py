"""`penstock consume`: where it begins and ends, and what a body may do to a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Producer

Command = Callable[..., subprocess.CompletedProcess[str]]
WAIT_S = 60
EVIL = b"\x1b[31mred\x07\rover\xff \xe2\x80\xaetxt\tand\nmore"


@pytest.fixture
def send(broker: Any) -> Callable[..., list[Any]]:
    """Send bodies, one after the other; their receipts."""

    def each(topic: str, *bodies: bytes, **named: Any) -> list[Any]:
        with Producer(broker.produce) as producer:
            return [producer.send(topic, body, **named).result(WAIT_S) for body in bodies]

    return each


def test_a_body_cannot_drive_a_terminal(
    broker: Any, send: Callable[..., Any], terminal: Callable[..., Any]
) -> None:
    send("evil", EVIL)
    shown = terminal("consume", "evil", "--store", broker.store)
    assert shown.end() == 0
    assert "\x1b" not in shown.text and "\x07" not in shown.text
    # ends of lines and tabs stay; the terminal itself makes CR LF of LF
    assert shown.text == "\\x1b[31mred\\x07\\rover\\xff \\u202etxt\tand\r\nmore\r\n"


def test_in_a_pipe_and_plain_a_body_is_its_bytes(
    broker: Any, send: Callable[..., Any], terminal: Callable[..., Any]
) -> None:
    send("bytes", EVIL)
    for option in ([], ["-o", "body"], ["-o", "plain"]):
        words = [sys.executable, "-m", "penstock.cli.main", "consume", "bytes", *option]
        done = subprocess.run([*words, "--store", broker.store], capture_output=True)
        assert done.stdout == EVIL + b"\n"
    send("esc", b"\x1b[31mred")
    shown = terminal("consume", "esc", "-o", "plain", "--store", broker.store)
    assert shown.end() == 0 and shown.text == "\x1b[31mred\r\n"


def test_the_table_streams_and_cuts_nothing_that_is_copied(
    broker: Any, send: Callable[..., Any], terminal: Callable[..., Any]
) -> None:
    (receipt,) = send("table", b"x" * 100 + b"\x1b[31m", keys="k" * 70, tags="a-tag")
    words = ("consume", "table", "-o", "table", "--follow", "--store", broker.store)
    shown = terminal(*words)
    shown.show(until=receipt.message_id)  # and it goes on
    shown.show(until="x" * 57 + "...")
    (later,) = send("table", b"later")
    shown.show(until=later.message_id)
    shown.type(b"\x03")
    assert shown.end() == 130 and "k" * 70 in shown.text and "a-tag" in shown.text
    assert "\x1b[31m" not in shown.text
    pipe = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words[:4], "--store", broker.store],
        capture_output=True,
        text=True,
    )
    head, *rows = pipe.stdout.splitlines()
    assert head.split() == ["queue", "offset", "stored", "tags", "keys", "message", "id", "body"]
    # two producers, so whose queue is read first is not said
    (first,) = [row for row in rows if receipt.message_id in row]
    (second,) = [row for row in rows if row.endswith("later")]
    assert first != second and len(rows) == 2


def test_an_end_is_an_offset_a_time_or_how_long_ago(
    broker: Any, send: Callable[..., Any], command: Command
) -> None:
    first = send("ends", b"a", b"b", b"c", queue=0)
    other = send("ends", b"A", queue=1)
    middle_ms = other[0].store_timestamp_ms + 1
    while int(time.time() * 1000) <= middle_ms:
        time.sleep(0.001)
    send("ends", b"B", queue=1)
    send("ends", b"d", b"e", queue=0)

    def bodies(*options: str) -> list[str]:
        done = command("consume", "ends", *options, "--store", broker.store)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.split())

    assert bodies() == ["A", "B", "a", "b", "c", "d", "e"]
    assert bodies("--to", "2") == ["A", "B", "a", "b"]
    assert bodies("--queue", "0", "--from", "1", "--to", "3") == ["b", "c"]
    # ms since 1970, told from offsets by their size
    assert bodies("--to", str(middle_ms)) == ["A", "a", "b", "c"]
    assert bodies("--from", str(middle_ms)) == ["B", "d", "e"]
    assert bodies("--from", str(first[0].store_timestamp_ms), "--to", "-1h") == []
    assert bodies("--to", "latest") == bodies()
    assert bodies("--to", "-0s") == bodies() and bodies("--to", "earliest") == []
    assert bodies("--from", "3", "--to", "1") == []
    # an end that is not there yet is no mistake: what there is is before it
    assert bodies("--queue", "0", "--to", "99") == bodies("--queue", "0")
    assert bodies("--to", "99") == bodies()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--follow", "--to", "3"), "--follow"),
        (("--to", "yesterday"), "yesterday"),
        (("--from", "9" * 30), "9" * 30),
        (("--max", "0"), "0 is not in the range"),
        (("--timeout", "nan"), "nan"),
    ],
)
def test_what_cannot_be_asked_for_is_wrong_usage(
    broker: Any, command: Command, options: tuple[str, ...], said: str
) -> None:
    done = command("consume", "missing", *options, "--store", broker.store)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""


@pytest.mark.parametrize("output", ["body", "json", "table"])
def test_a_body_that_cannot_be_read_is_no_success(
    broker: Any, command: Command, send: Callable[..., Any], output: str
) -> None:
    with Producer(broker.produce, compression="zlib") as producer:
        good = producer.send(f"bad{output}", b"x" * 9000, queue=0).result(WAIT_S)
    segment = next(iter(sorted((broker.store / "commitlog").iterdir())))
    with segment.open("r+b") as file:  # the body follows 88 bytes and its length
        file.seek(good.physical_offset % (1 << 20) + 100)
        file.write(b"\0\0\0\0")
    done = command("consume", f"bad{output}", "-o", output, "--store", broker.store)
    assert (done.returncode == 0) == (output == "table"), done.stderr
    if output == "table":
        assert "cannot be read" in done.stdout
    else:
        assert "BODY_UNREADABLE" in done.stderr


def test_a_long_read_into_a_file_shows_how_far_it_is(
    broker: Any, terminal: Callable[..., Any], tmp_path: Path
) -> None:
    with Producer(broker.produce) as producer:
        for number in range(150_000):
            producer.send("long", b"%d" % number)
    # what is stored is in the queues a moment later, and without --follow only that is read
    wrote, until = broker.status()["positions"]["wrote"], time.monotonic() + WAIT_S
    while broker.status()["positions"]["dispatched"] < wrote:
        assert time.monotonic() < until
        time.sleep(0.01)
    into = tmp_path / "bodies"
    with into.open("wb") as file:
        shown = terminal("consume", "long", "-o", "json", "--store", broker.store, stdout=file)
        assert shown.end() == 0
    assert "reading" in shown.text and "of 150,000" in shown.text
    assert shown.longest_silence_s < 2
    assert into.read_bytes().count(b"\n") == 150_000


def test_json_rows_are_what_they_were(
    broker: Any, send: Callable[..., Any], command: Command
) -> None:
    (receipt,) = send("rows", EVIL)
    (row,) = command("consume", "rows", "-o", "json", "--store", broker.store).stdout.splitlines()
    assert json.loads(row)["message_id"] == receipt.message_id
