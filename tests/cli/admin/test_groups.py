"""`penstock groups`: what an operator sees of groups, and sets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.groups.admin import GroupAdmin
from penstock.client.sending.producer import Producer

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(start_broker: Callable[..., Any]) -> Path:
    """A broker's store: topic `orders` with 10 messages in each of 2 queues, and group `billing`,
    which has done 4 of queue 0."""
    running = start_broker()
    with Producer(store=running.store) as producer:
        producer.create_topic("orders", 2)
        for number in range(20):
            producer.send("orders", b"%d" % number, queue=number % 2)
        producer.flush()
    with GroupAdmin(store=running.store) as admin:
        admin.set("billing", {"retryMaxTimes": 3})
        admin.reset("billing", "orders", {0: 4})
    path: Path = running.store
    return path


def test_groups_are_listed_with_members_and_lag(command: Command, store: Path) -> None:
    done = command("groups", "ls", "--store", store, "-o", "json")
    rows = {row["group"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows["billing"] == {"group": "billing", "members": 0, "lag": 6}
    table = command("groups", "ls", "--store", store).stdout
    assert table.splitlines()[0].split() == ["group", "members", "lag"]


def test_a_group_is_described_and_what_is_unknown_is_no_number(
    command: Command, store: Path
) -> None:
    found = json.loads(
        command("groups", "describe", "billing", "--store", store, "-o", "json").stdout
    )
    (queue,) = found["queues"]
    assert (queue["topic"], queue["queue"], queue["offset"], queue["lag"]) == ("orders", 0, 4, 6)
    assert queue["lag_bytes"] > 0 and queue["lag_ms"] >= 0 and queue["member"] is None
    assert found["settings"]["retryMaxTimes"] == 3 and found["members"] == []
    shown = command("groups", "describe", "billing", "--store", store).stdout
    assert "group billing: 0 members" in shown and "retryMaxTimes=3" in shown
    lag = json.loads(command("groups", "lag", "billing", "--store", store, "-o", "json").stdout)
    assert lag["max_offset"] == 10


def test_a_group_that_is_not_there_is_an_error_with_those_that_are(
    command: Command, store: Path
) -> None:
    done = command("groups", "describe", "biling", "--store", store)
    assert done.returncode == 1
    assert "there is no consumer group of this name: biling" in done.stderr
    assert "billing" in done.stderr


@pytest.mark.parametrize(
    ("to", "after"), [("earliest", 0), ("latest", 10), ("7", 7), ("99", 10), ("-1h", 0)]
)
def test_offsets_are_set_to_a_place_or_a_time(
    command: Command, store: Path, to: str, after: int
) -> None:
    said = ("groups", "reset", "billing", "orders", "--to", to, "--store", store, "-o", "json")
    looked = command(*said, "--dry-run")
    rows = [json.loads(line) for line in looked.stdout.splitlines()]
    assert [(row["queue"], row["before"], row["after"]) for row in rows] == [
        (0, 4, after),
        (1, None, after),
    ]
    with GroupAdmin(store=store) as admin:
        assert [queue.offset for queue in admin.describe("billing").queues] == [4]
        assert command(*said, "--yes").returncode == 0
        assert [queue.offset for queue in admin.describe("billing").queues] == [after, after]


def test_one_queue_is_set_and_the_others_stay(command: Command, store: Path) -> None:
    said = ("groups", "reset", "billing", "orders", "--to", "2", "--queue", "1", "--yes")
    assert command(*said, "--store", store).returncode == 0
    with GroupAdmin(store=store) as admin:
        offsets = {queue.queue_id: queue.offset for queue in admin.describe("billing").queues}
    assert offsets == {0: 4, 1: 2}


def test_nothing_is_set_or_removed_where_nobody_can_agree(command: Command, store: Path) -> None:
    for said in (("reset", "billing", "orders", "--to", "latest"), ("rm", "billing")):
        done = command("groups", *said, "--store", store, stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and "--yes" in done.stderr
        assert ("--dry-run" in done.stderr) == (said[0] == "reset"), "what there is to be added"
    with GroupAdmin(store=store) as admin:
        assert [queue.offset for queue in admin.describe("billing").queues] == [4]


def test_a_removed_group_is_gone_with_its_offsets(command: Command, store: Path) -> None:
    assert command("groups", "rm", "billing", "--yes", "--store", store).returncode == 0
    with GroupAdmin(store=store) as admin:
        assert not admin.describe("billing").exists
        assert "billing" not in admin.list()
    again = command("groups", "rm", "billing", "--yes", "--store", store)
    assert again.returncode == 1 and "there is no consumer group" in again.stderr
