"""The views of `penstock top`: each is what the page's route answers; keys lead through them."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import termios
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.broker.top_browsing import VIEWS, Browsing, keys_of, words_of
from penstock.cli.broker.top_views import Place, Row, Shown, history, place, wrapped
from penstock.client import GroupConsumer, Producer
from tests.cli.broker.test_top import WAIT_S, Terminal, command


@pytest.fixture(scope="module")
def busy(monitored: Any) -> Any:
    """Of 30 messages in one queue a group has had one; and one dead letter."""
    with Producer(monitored.produce) as producer:
        for number in range(30):
            body = b'{"id": %d}' % number
            producer.send("orders", body, keys=f"k{number}", queue=1).result(WAIT_S)
        producer.send("%DLQ%billing", b"lost", queue=0).result(WAIT_S)
    endpoint = monitored.status()["endpoints"]["group"]
    with GroupConsumer(endpoint, group="billing", topics="orders", start="first") as consumer:
        while not (came := consumer.poll(1.0)):
            pass
        came[0].ack()
    deadline = time.monotonic() + WAIT_S
    while _get(monitored, "group", name="billing").get("lag") != 29:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return monitored


@pytest.fixture
def terminal(busy: Any) -> Iterator[Terminal]:
    found = Terminal(busy.store, 100, 30)
    yield found
    found.close()


def _get(broker: Any, path: str, **words: str) -> Any:
    words_of_address = urllib.parse.urlencode(words)
    try:
        with urllib.request.urlopen(f"{broker.monitor}/api/{path}?{words_of_address}") as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


@pytest.mark.parametrize(
    "asked",
    [
        "topics", "topics all=1 order=messages rows=3", "topic name=orders", "groups order=lag",
        "group name=billing", "messages topic=orders queue=1 offset=5",
        "message topic=orders key=k7", "message topic=orders time=1", "dead-letters", "recoveries",
    ],
)  # fmt: skip
def test_a_view_is_what_the_pages_route_answers(busy: Any, asked: str) -> None:
    view, *words = asked.split()
    ran = subprocess.check_output(
        command(view, *words, "--store", busy.store, "-o", "json"), timeout=WAIT_S
    )
    found = [json.loads(line) for line in ran.splitlines()]
    wanted = _get(busy, VIEWS[view].look, **dict(words_of(words)))
    for each in (*found, wanted):
        if isinstance(each, dict):
            for row in each["rows"]:
                row.pop("lag_ms", None)  # both are right, at their moment
    assert found == (wanted if isinstance(wanted, list) else [wanted])


def test_files_have_what_the_page_has(busy: Any) -> None:
    ran = subprocess.check_output(command("files", "--store", busy.store, "-o", "json"))
    assert json.loads(ran).keys() == _get(busy, "files").keys()


def test_what_is_not_there_is_an_error_as_by_other_commands(busy: Any) -> None:
    look = command("topic", "name=orderz", "--store", busy.store)
    ran = subprocess.run(look, capture_output=True, text=True, timeout=WAIT_S)
    assert (ran.returncode, ran.stdout) == (1, "") and "orders" in ran.stderr
    ran = subprocess.run(command("topics", "orders"), capture_output=True, text=True)
    assert ran.returncode == 2 and "KEY=VALUE" in ran.stderr


def test_without_a_terminal_every_row_of_the_page_is_printed(busy: Any) -> None:
    look = command("messages", "topic=orders", "queue=1", "rows=30", "--store", busy.store)
    said = subprocess.check_output(look, text=True, timeout=WAIT_S)
    assert said.count('{"id": ') == 30 and "\x1b" not in said


def test_keys_lead_from_a_topic_to_a_body_and_back(terminal: Terminal) -> None:
    terminal.until(b"cleaner")
    terminal.press(b"2", b"Topics: 1 in all, page 1 of 1")
    terminal.press(b"\r", b"Queues of the topic orders: 4 in all")
    terminal.until(b"1 groups: billing")
    terminal.press(b"j\r", b"Topic orders, queue 1: offsets 0 to 30")
    terminal.press(b"\x1b[A\x1b[F\r", b"Topic orders, queue 1, offset 29")
    terminal.until(b'"id": 29')
    terminal.until(b"keys k29")
    terminal.press(b"f", b"body as text of json, text, hex, 10 B:")
    terminal.press(b"f", b"7b226964223a2032397d")
    terminal.press(b"\x1b", b"Topic orders, queue 1: offsets 0 to 30")
    terminal.press(b"\x1b", b"Queues of the topic orders")
    terminal.press(b"\x7f", b"Topics: 1 in all")
    terminal.press(b"a", b"%DLQ%billing")


def test_each_key_leads_to_its_view(terminal: Terminal) -> None:
    terminal.until(b"cleaner")
    terminal.press(b"3", b"billing")
    terminal.press(b"\r", b"Queues of the group billing: 4 in all")
    terminal.until(b"lag 29 messages")  # it is drawn after the line that was waited for
    terminal.press(b"4", b"press / and type")
    terminal.press(b"5", b"Groups with dead letters: 1 in all")
    terminal.press(b"\r", b"lost")
    terminal.press(b"6", b"are kept 72 h")
    terminal.press(b"7", b"No start had to recover")
    terminal.press(b"8", b"looks of up to 15 minutes")
    terminal.press(b"1", b"cleaner")
    os.write(terminal.ours, b"q")
    terminal.until(b"\x1b[?1049l")
    assert terminal.process.wait(WAIT_S) == 0


def test_what_is_typed_after_a_slash_is_no_key(terminal: Terminal) -> None:
    terminal.until(b"cleaner")
    terminal.press(b"2/qqq1", b"search: qqq1_")
    terminal.press(b"\r", b"Topics: 0 in all")
    terminal.press(b"/ord\x7f\r", b"Topics: 1 in all")
    terminal.press(b"4/orders\r", b"'orders' is not KEY=VALUE")
    terminal.press(b"/topic=orders key=k3\r", b'"id": 3')
    terminal.press(b"/topic=orders key=nobody\r", b"no message of the topic has this key")
    terminal.press(b"/gone\x1b", b"no message of the topic has this key")


def test_an_actor_that_is_killed_from_here_is_seen_to_come_back(
    broker_in: Any, tmp_path: Path
) -> None:
    broker = broker_in(tmp_path)

    def writer() -> dict[str, Any]:
        (found,) = (each for each in broker.status()["actors"] if each["name"] == "writer")
        return dict(found)

    terminal = Terminal(broker.store, 100, 30)
    try:
        terminal.until(b"cleaner")
        before = writer()
        terminal.press(b"jK", b"kill -9 %d, the writer? y does it" % before["pid"])
        terminal.press(b"n", b"K kill")
        terminal.press(b"K", b"the writer? y does it")
        os.write(terminal.ours, b"y")
        deadline = time.monotonic() + WAIT_S
        while (now := writer())["state"] != "running" or now["pid"] == before["pid"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.press(b"1", str(now["pid"]).encode())
        assert now["restarts"] == before["restarts"] + 1
    finally:
        terminal.close()


def test_another_size_is_seen_at_once_and_ctrl_c_ends_a_view(busy: Any) -> None:
    terminal = Terminal(busy.store, 100, 30, every="3600")
    try:
        terminal.until(b"cleaner")
        terminal.press(b"2", b"Topics: 1 in all")
        terminal.came = b""
        fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 41, 0, 0))
        terminal.frame_of(columns=41, lines=12)
        os.write(terminal.ours, b"\x03")
        terminal.until(b"\x1b[?1049l")
        assert terminal.process.wait(WAIT_S) == 0
        assert termios.tcgetattr(terminal.ours) == terminal.before
    finally:
        terminal.close()


def test_keys_that_are_no_letters_are_known_and_others_of_their_kind_are_none() -> None:
    assert list(keys_of("\x1b[A\x1bOBj\x1b[6~\r\x7f\x1b")) == [
        *("up", "down", "j", "page down", "enter", "erase", "escape")
    ]
    assert list(keys_of("\x1b[1;5Cq\x1b[")) == ["q"]


def test_pages_go_no_further_than_there_are_and_another_order_begins_again() -> None:
    browsing = Browsing(place("topics"))
    second = Shown([], ("topic",), [Row(("a",))] * 3, page=2, pages=2)
    for key, words in {"n": {}, "p": {"page": "1"}, "o": {"order": "messages"}, "a": {}}.items():
        browsing.place = place("topics")
        assert browsing.press(key, second, 10)
        assert dict(browsing.place.words) == (words or ({"all": "1"} if key == "a" else {}))
    browsing.press("end", second, 10)
    browsing.press("down", second, 10)
    assert browsing.row == 2
    browsing.press("page up", Shown([]), 10)
    assert browsing.row == 0


def test_a_long_line_of_a_body_is_folded_and_no_sequence_of_it_reaches_the_terminal() -> None:
    shown = wrapped(Shown([], (), [Row(("\x1b[2J" + "a" * 20,))]), 10)
    assert [row.cells[0] for row in shown.rows] == ["\\x1b[2Jaaa", "a" * 10, "a" * 7]


def test_what_was_not_measured_is_a_gap_and_unknown() -> None:
    row = {"at_ms": 1, "messages_s": 1.0, "bytes_s": 2.0, "pulls_s": 0.0}
    row |= dict.fromkeys(
        ("acknowledge_p50_ms", "acknowledge_p99_ms", "flush_p50_ms", "flush_p99_ms")
    )
    shown = history([row, row | {"messages_s": 4.0}], {})
    assert shown.head[1].split() == ["messages/s", "▂█", "highest", "4"]
    assert shown.head[3].split() == ["acknowledge", "p99", "highest", "unknown"]
    assert Place("history").but(rows=None) == Place("history")
