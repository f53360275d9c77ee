"""`penstock dlq`, and `penstock consume --group`: what members of groups leave, from a shell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(start_broker: Callable[..., Any]) -> Path:
    """A broker's store: topic `orders` with 10 messages in each of 2 queues."""
    path: Path = start_broker().store
    with Producer(store=path) as producer:
        producer.create_topic("orders", 2)
        for number in range(20):
            producer.send("orders", b"%d" % number, queue=number % 2, keys=f"k{number}")
        producer.flush()
    return path


@pytest.fixture
def letters(store: Path) -> Path:
    """The same, where group `billing` has done all but three, which are dead letters."""
    with GroupConsumer(store=store, group="billing", topics="orders", start="first") as consumer:
        for done, message in enumerate(consumer, 1):
            if int(message.body) in (3, 8, 13):
                message.retry(level=-1, reason=f"no account {message.keys}")
            else:
                message.ack()
            if done == 20:
                break
    return store


def _lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_dead_letters_are_counted_shown_and_exported(
    command: Command, letters: Path, tmp_path: Path
) -> None:
    assert _lines(command("dlq", "ls", "--store", letters, "-o", "json")) == [
        {"group": "billing", "messages": 3, "messages_ever": 3}
    ]
    shown = _lines(command("dlq", "show", "billing", "--store", letters, "-o", "json"))
    assert sorted(row["reason"] for row in shown) == [f"no account k{n}" for n in (13, 3, 8)]
    assert {row["origin_topic"] for row in shown} == {"orders"}
    assert "no account k8" in command("dlq", "show", "billing", "--store", letters).stdout
    file = tmp_path / "letters.jsonl"
    done = command("dlq", "export", "billing", "--to", file, "--store", letters)
    assert done.returncode == 0 and "3 dead letters are in" in done.stderr
    exported = [json.loads(line) for line in file.read_text().splitlines()]
    assert exported == shown == _lines(command("dlq", "export", "billing", "--store", letters))


def test_a_dead_letter_is_given_to_its_group_once_more(command: Command, letters: Path) -> None:
    said = ("dlq", "resend", "billing", "--key", "k8", "--store", letters, "-o", "json")
    expected = {"group": "billing", "sent": 1, "failed": 0, "dry_run": True}
    assert _lines(command(*said, "--dry-run")) == [expected]
    assert _lines(command(*said)) == [expected | {"dry_run": False}]
    with GroupConsumer(store=letters, group="billing", topics="orders") as consumer:
        message = next(iter(consumer))
        assert (message.topic, message.body, message.keys) == ("orders", b"8", "k8")
        assert message.reconsume_times == 0 and "RETRY_REASON" not in message.properties
        message.ack()
    done = command("dlq", "resend", "billing", "--key", "k1", "--store", letters)
    assert done.returncode == 1 and "no dead letter fits: k1" in done.stderr


def test_a_group_without_dead_letters_is_told_so(command: Command, store: Path) -> None:
    assert command("dlq", "ls", "--store", store).stdout.split() == ["group", "messages", "ever"]
    for verb in ("show", "export", "resend"):
        done = command("dlq", verb, "billing", "--store", store)
        assert done.returncode == 1 and "the group has no dead letters" in done.stderr
        assert "topics create" not in done.stderr


def test_consume_as_a_member_goes_on_where_the_group_is(command: Command, store: Path) -> None:
    said = ("consume", "orders", "--group", "printing", "--from", "earliest", "--store", store)
    first = command(*said, "--max", "7").stdout.split()
    assert len(first) == 7
    rest = command(*said).stdout.split()
    assert sorted(map(int, first + rest)) == list(range(20))
    assert command(*said).stdout == ""
    with GroupAdmin(store=store) as admin:
        assert {queue.offset for queue in admin.describe("printing").queues} >= {10}


def test_a_member_that_does_not_follow_waits_for_no_topic(command: Command, store: Path) -> None:
    said = ("--group", "printing", "--store", store)
    done = command("consume", "order", *said)
    assert done.returncode == 1 and "TOPIC_NOT_EXIST" in done.stderr
    assert command("topics", "update", "orders", "--perm", "w", "--store", store).returncode == 0
    done = command("consume", "orders", *said)
    assert done.returncode == 1 and "NO_PERMISSION" in done.stderr


def test_a_member_chooses_no_queue_and_no_end(command: Command, store: Path) -> None:
    for more in (("--queue", "0"), ("--to", "5")):
        done = command("consume", "orders", "--group", "printing", *more, "--store", store)
        assert done.returncode == 2 and "divide its queues" in done.stderr
