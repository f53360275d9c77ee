"""Brokers of both kinds in one cluster: known by a real name server, and by Penstock's own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.takes(45)

TOPIC, QUEUES, GROUP, MESSAGES = "shared", 4, "readers", 80
THEIRS, OURS = "interop", "penstock-1"
# a member of RocketMQ's that has no queues looks for them every 20 s
IDLE_MS, WAIT_S = 180_000, 180


def await_brokers(client: Any, wanted: list[str], topic: str = TOPIC) -> None:
    """Until the name server names just these as the brokers of a topic."""
    until = time.monotonic() + WAIT_S
    while (found := client.ask("brokers", topic=topic)) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.1)


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def await_rows(file: Path, count: int) -> None:
    until = time.monotonic() + WAIT_S
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < until, f"{len(rows_of(file))} of {count} came"
        time.sleep(0.1)


def test_a_cluster_has_brokers_of_both_kinds_and_goes_on_when_ours_has_stopped(
    place: Any,
    other_place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
) -> None:
    rocketmq(place)
    ours = penstock(
        other_place,
        produce_port=0,
        gateway_enable=True,
        gateway_port=other_place.port,
        gateway_name_server_port=0,
        broker_name=OURS,
        cluster_name="interop",
        namesrv_addr=place.name_server,
    )
    client.open(place)
    for broker in (THEIRS, OURS):
        client.ask("create", topic=TOPIC, queues=QUEUES, broker=broker)
    await_brokers(client, [THEIRS, OURS])
    reader, out = type(client)(place.file("reader.txt")), place.file("read.jsonl")
    try:
        reader.open(place)
        order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
        reader.begin("consume", until=2 * MESSAGES, idle_ms=IDLE_MS, **order)
        spread = client.ask("spread", topic=TOPIC, count=MESSAGES)
        assert spread.keys() == {THEIRS, OURS} and min(spread.values()) >= MESSAGES // 4
        await_rows(out, MESSAGES)
        assert {row["broker"] for row in rows_of(out)} == {THEIRS, OURS}

        ours.stop()  # it tells the name server
        await_brokers(client, [THEIRS])
        assert client.ask("spread", topic=TOPIC, count=MESSAGES) == {THEIRS: MESSAGES}
        reader.finish()
    finally:
        reader.end()
    client.ask("close")
    bodies = [row["body"] for row in rows_of(out)]
    assert sorted(bodies) == sorted(f"spread-{n}" for n in range(2 * MESSAGES))


@pytest.fixture
def name_server(place: Any) -> Iterator[None]:
    """`penstock namesrv` where the clients of `place` look for one."""
    port = str(place.name_server_port)
    command = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--port", port]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=place.directory)
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"ready")
    yield
    running.terminate()
    assert running.wait(WAIT_S) == 0
    running.stdout.close()


@pytest.mark.usefixtures("name_server")
def test_a_java_broker_lives_by_penstocks_name_server(
    place: Any, other_place: Any, rocketmq: Callable[..., Any], client: Any
) -> None:
    # its own name server stays empty
    theirs = rocketmq(other_place, namesrvAddr=place.name_server)
    client.open(place)
    # it registers 10 s after its start: at its first try it has not looked for name servers yet;
    # one of its own topics has its name
    await_brokers(client, [THEIRS], THEIRS)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    await_brokers(client, [THEIRS])
    assert client.ask("spread", topic=TOPIC, count=MESSAGES) == {THEIRS: MESSAGES}
    out = place.file("read.jsonl")
    order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
    client.ask("consume", until=MESSAGES, idle_ms=IDLE_MS, **order)
    assert len({row["body"] for row in rows_of(out)}) == MESSAGES
    theirs.stop()
    await_brokers(client, [])
    client.ask("close")
