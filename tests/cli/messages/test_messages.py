"""`penstock produce`, `consume` and `topics` as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def penstock(broker: Any) -> Run:
    """Run a command of the client side against the module's broker."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        endpoint = broker.consume if arguments[0] == "consume" else broker.produce
        command = [sys.executable, "-m", "penstock.cli.main", *arguments, "--endpoint", endpoint]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=60)

    return run


def _rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_line_is_a_message_and_comes_back_as_one(penstock: Run) -> None:
    sent = penstock("produce", "lines", "--queue", "2", stdin=b"one\ntwo\r\n\xff three")
    assert (sent.returncode, sent.stdout) == (0, b"")
    assert b"3 messages sent to lines" in sent.stderr
    assert penstock("consume", "lines").stdout == b"one\ntwo\n\xff three\n"


@pytest.mark.parametrize("time", ["²", "tomorrow", "99999-01-01"])
def test_a_time_that_is_none_is_said_and_nothing_is_sent(penstock: Run, time: str) -> None:
    done = penstock("produce", "no-time", "--deliver-at", time, stdin=b"one\n")
    assert done.returncode == 2 and f"{time!r} is no time".encode() in done.stderr


def test_receipts_and_messages_as_json_name_the_same_places(penstock: Run) -> None:
    receipts = _rows(
        penstock(
            "produce",
            "json",
            "--key",
            "k1 k2",
            "--tag",
            "T",
            "--shard",
            "s",
            "-o",
            "json",
            stdin=b"a\nb\n",
        )
    )
    rows = _rows(penstock("consume", "json", "-o", "json"))
    places = ("topic", "queue_id", "queue_offset", "physical_offset", "message_id", "unique_key")
    assert [[r[p] for p in places] for r in receipts] == [[r[p] for p in places] for r in rows]
    assert [(r["tags"], r["keys"], r["body"]) for r in rows] == [
        ("T", "k1 k2", "a"),
        ("T", "k1 k2", "b"),
    ]


def test_the_whole_input_can_be_one_message(penstock: Run) -> None:
    penstock("produce", "whole", "--whole", stdin=b"two\nlines\n")
    assert [row["body"] for row in _rows(penstock("consume", "whole", "-o", "json"))] == [
        "two\nlines\n"
    ]


@pytest.mark.parametrize(
    ("start", "found"), [("earliest", 3), ("latest", 0), ("2", 1), ("-1h", 3), ("2199-01-01", 0)]
)
def test_consuming_begins_where_it_is_told_to(penstock: Run, start: str, found: int) -> None:
    topic = f"start{start}".replace("-", "_")
    penstock("produce", topic, "--queue", "0", stdin=b"a\nb\nc\n")
    assert len(_rows(penstock("consume", topic, "--from", start, "-o", "json"))) == found


def test_consuming_stops_after_max_messages(penstock: Run) -> None:
    penstock("produce", "most", stdin=b"x\n" * 20)
    assert len(_rows(penstock("consume", "most", "--max", "7", "-o", "json"))) == 7


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("consume", "missing"), 1, b"TOPIC_NOT_EXIST"),
        (("consume", "missing", "--from", "yesterday"), 2, b"yesterday"),
        (("produce", "a/b"), 2, b"INVALID_ARGUMENT"),
        (("produce", "lines", "--queue", "99"), 1, b"QUEUE_NOT_EXIST"),
        (("produce", "lines", "/no/such/file"), 2, b"No such file"),
    ],
)
def test_what_is_wrong_is_said_and_shows_in_the_exit_code(
    penstock: Run, arguments: tuple[str, ...], code: int, words: bytes
) -> None:
    done = penstock(*arguments, stdin=b"x\n")
    assert (done.returncode, done.stdout) == (code, b"")
    assert words in done.stderr
    assert b"Traceback" not in done.stderr


def test_topics_are_created_listed_and_never_lose_queues(penstock: Run) -> None:
    assert _rows(penstock("topics", "create", "wide", "--queues", "3", "-o", "json")) == [
        {"topic": "wide", "queues": 3}
    ]
    assert b"5 queues" in penstock("topics", "create", "wide", "--queues", "5").stdout
    listed = {"topic": "wide", "queues": 5, "read_queues": 5, "perm": 6}
    assert listed in _rows(penstock("topics", "ls", "-o", "json"))
    refused = penstock("topics", "create", "wide", "--queues", "2")
    assert (refused.returncode, refused.stdout) == (2, b"")


def test_nobody_at_the_endpoint_is_exit_code_3() -> None:
    for command in (["produce", "t", "--timeout", "0.3"], ["consume", "t", "--timeout", "0.3"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "penstock.cli.main",
                *command,
                "--endpoint",
                "tcp://127.0.0.1:1",
            ],
            input=b"x\n",
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 3, done.stderr
        assert b"CONNECT_FAILED" in done.stderr
