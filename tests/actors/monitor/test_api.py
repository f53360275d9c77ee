"""The monitor's API against a real broker: it says what was done, and unknown is never 0."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import GroupConsumer, Producer
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import ROSTER, row_of
from penstock.shared.process.find_broker import find_running
from penstock.shared.store.deletions import Deletion, Reason

pytestmark = pytest.mark.takes(15)

WAIT_S = 60


def get(monitor: str, path: str, **query: object) -> Any:
    status, found = ask(monitor, path, **query)
    assert status == 200, found
    return found


def ask(monitor: str, path: str, **query: object) -> tuple[int, Any]:
    url = f"{monitor}{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def text_of(monitor: str, path: str) -> str:
    with urllib.request.urlopen(monitor + path, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def until(monitor: str, path: str, holds: Callable[[Any], bool], **query: object) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not holds(found := ask(monitor, path, **query)[1]):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def monitor(monitored: Any) -> str:
    """A broker with 30 orders of 3 kinds, in one queue."""
    with Producer(monitored.produce) as producer:
        for number in range(10):
            producer.send("orders", b'{"id": %d}' % number, keys=f"k{number}", queue=0)
            producer.send("orders", b"\xff\xfe\x00", tags="raw", queue=0)
            producer.send("orders", "grüße".encode(), queue=1)
    found: str = monitored.monitor
    until(found, "/api/topic", lambda it: it.get("messages") == 30, name="orders")
    return found


def test_the_overview_has_every_actor_and_how_far_it_is(monitor: str, monitored: Any) -> None:
    found = get(monitor, "/api/overview")
    status = monitored.status()
    assert [actor["name"] for actor in found["actors"]] == [row.name for row in ROSTER]
    by_name = {actor["name"]: actor for actor in found["actors"]}
    for actor in status["actors"]:
        assert by_name[actor["name"]]["pid"] == (actor["pid"] or None)
    assert by_name["writer"]["at"] == status["positions"]["wrote"]
    assert by_name["flusher"]["behind_bytes"] == by_name["flusher"]["behind_ms"] == 0
    assert by_name["coordinator"]["behind_bytes"] is None, "it has no place in the log"
    assert by_name["gateway"]["state"] == "off"
    assert by_name["gateway"]["heartbeat_age_ms"] is None
    assert found["problems"] == [] and found["messages"] == 30
    assert by_name["writer"]["notifies"] == list(row_of("writer").notifies)


def test_a_message_is_found_by_offset_key_id_and_time(monitor: str) -> None:
    (first,) = get(monitor, "/api/message", topic="orders", queue=0, offset=0)["rows"]
    assert first["text"] == '{"id": 0}' and json.loads(first["json"]) == {"id": 0}
    assert bytes.fromhex(first["hex"]) == b'{"id": 0}' and first["keys"] == "k0"
    # the index follows the queues
    by_key = until(
        monitor, "/api/message", lambda it: bool(it.get("rows")), topic="orders", key="k0"
    )
    assert by_key["rows"] == [first]
    assert get(monitor, "/api/message", id=first["message_id"])["rows"] == [first]
    by_unique = get(monitor, "/api/message", topic="orders", id=first["unique_key"])
    assert by_unique["rows"] == [first]
    at = get(monitor, "/api/message", topic="orders", time=first["stored_ms"])["rows"]
    assert [(row["queue"], row["offset"]) for row in at] == [(0, 0), (1, 0)]


def test_a_body_is_shown_as_what_it_is(monitor: str) -> None:
    (raw,) = get(monitor, "/api/message", topic="orders", queue=0, offset=1)["rows"]
    assert (raw["text"], raw["json"], raw["hex"], raw["tags"]) == (None, None, "fffe00", "raw")
    (text,) = get(monitor, "/api/message", topic="orders", queue=1, offset=0)["rows"]
    assert (text["text"], text["json"]) == ("grüße", None)


def test_a_long_body_is_cut_and_says_so(monitor: str, monitored: Any) -> None:
    with Producer(monitored.produce) as producer:
        producer.send("long", b"a" * 60_000).result(WAIT_S)
    name = {"topic": "long"}
    rows = until(monitor, "/api/topic", lambda it: it.get("messages") == 1, name="long")
    (queue,) = (row["queue"] for row in rows["rows"] if row["max_offset"])
    (row,) = get(monitor, "/api/messages", queue=queue, **name)["rows"]
    assert row["is_cut"] and row["body_bytes"] == 60_000 and row["text"] == "a" * 256
    (row,) = get(monitor, "/api/message", queue=queue, offset=0, **name)["rows"]
    assert not row["is_cut"] and len(row["text"]) == 60_000


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({"topic": "orders", "queue": 0, "offset": 1000}, 404, "the queue has no such offset"),
        ({"topic": "orders", "queue": 900, "offset": 0}, 404, "this queue has had no message"),
        ({"topic": "orders", "key": "nobody has it"}, 404, "no message of the topic has this key"),
        ({"topic": "order", "key": "k1"}, 404, "there is no topic of this name"),
        ({"topic": "order", "time": 1}, 404, "there is no topic of this name"),
        ({"topic": "orders", "queue": "x", "offset": 0}, 400, "queue is not a number"),
        ({"topic": "../../etc", "queue": 0, "offset": 0}, 400, "topic"),
        ({"topic": "orders"}, 400, "queue is not a number"),
        ({"topic": "orders", "time": "9" * 30}, 400, "time is not a number"),
        ({"id": "nonsense"}, 400, ""),
        ({"id": "7F00000100002A9F" + "0" * 15 + "7"}, 404, ""),
    ],
)
def test_what_is_not_there_or_cannot_be_read_is_said(
    monitor: str, query: dict[str, object], status: int, said: str
) -> None:
    found, error = ask(monitor, "/api/message", **query)
    assert found == status, error
    assert error["what"] and said in error["what"] and error["code"]


def test_topics_come_a_page_at_a_time_and_are_searched(monitor: str, monitored: Any) -> None:
    with Producer(monitored.produce) as producer:
        for number in range(12):
            producer.send(f"paged-{number:02}", b"x")
    until(monitor, "/api/topics", lambda it: it["total"] == 12, search="paged")
    pages = [
        get(monitor, "/api/topics", search="paged", page=page, rows=5)["rows"]
        for page in (1, 2, 3, 4)
    ]
    assert [len(rows) for rows in pages] == [5, 5, 2, 0]
    names = [row["topic"] for rows in pages for row in rows]
    assert names == [f"paged-{number:02}" for number in range(12)]
    for wrong in ({"page": 0}, {"rows": 201}, {"rows": "-1"}, {"order": "size"}):
        assert ask(monitor, "/api/topics", **wrong)[0] == 400
    assert ask(monitor, "/api/topic", name="paged")[1]["what"].startswith("there is no topic")


def test_a_topics_queues_are_all_that_it_has_and_not_those_with_messages(
    monitor: str, monitored: Any
) -> None:
    with Producer(monitored.produce) as producer:
        producer.create_topic("of-five", 5)
        found = until(monitor, "/api/topics", lambda it: it["total"] == 1, search="of-five")
        assert found["rows"][0]["queues"] == 5 and found["rows"][0]["messages"] == 0
        producer.send("of-five", b"x", queue=3).result(WAIT_S)
    until(monitor, "/api/topics", lambda it: it["rows"][0]["messages"] == 1, search="of-five")
    assert get(monitor, "/api/topics", search="of-five")["rows"][0]["queues"] == 5
    assert get(monitor, "/api/topic", name="of-five")["queues"] == 5


def test_a_groups_lag_is_what_is_left_by_queue(monitor: str, monitored: Any) -> None:
    with GroupConsumer(monitored.status()["endpoints"]["group"], group="slow", topics="orders",
                       start="first") as group:  # fmt: skip
        taken: list[Any] = []
        while len(taken) < 4:
            taken += (new := group.poll(1.0)[: 4 - len(taken)])
            for message in new:
                message.ack()
    done = {}
    for message in taken:
        done[message.queue_id] = max(done.get(message.queue_id, 0), message.queue_offset + 1)
    wanted = 30 - sum(done.values())
    found = until(monitor, "/api/group", lambda it: it.get("lag") == wanted, name="slow")
    for row in found["rows"]:
        if row["topic"] == "orders" and row["queue"] in (0, 1):
            assert row["lag"] == row["max_offset"] - row["offset"]
            assert row["lag_ms"] > 0 if row["lag"] else row["lag_ms"] == 0
    (listed,) = get(monitor, "/api/groups", search="slow")["rows"]
    assert listed["lag"] == wanted and listed["lag_ms"] > 0


def test_what_cannot_be_read_is_unknown_and_not_nothing(
    monitor: str, monitored: Any, tmp_path: Any
) -> None:
    """A damaged file of the groups: their number and lag are not 0."""
    file = StorePaths(monitored.store).subscription_groups
    before = file.read_bytes() if file.exists() else None
    try:
        file.with_suffix(".broken").write_bytes(b"{")
        file.with_suffix(".broken").replace(file)
        until(monitor, "/api/overview", lambda it: it["groups"] is None)
        assert ask(monitor, "/api/groups")[0] == 503
    finally:
        file.unlink() if before is None else file.write_bytes(before)
    until(monitor, "/api/overview", lambda it: it["groups"] is not None)


def test_topics_that_cannot_be_read_are_unknown_and_not_those_that_have_messages(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_in(tmp_path, monitor_enable="true", monitor_port=0)
    with Producer(broker.produce) as producer:
        producer.send("orders", b"x").result(WAIT_S)
    until(broker.monitor, "/api/overview", lambda it: it["messages"] == 1)
    file = StorePaths(broker.store).topics
    for each in (file, file.with_name(file.name + ".bak")):
        each.write_bytes(b"{")
    until(broker.monitor, "/api/overview", lambda it: it["topics"] is None)
    for path in ("/api/topics", "/api/topic", "/api/dead-letters"):
        status, error = ask(broker.monitor, path)
        assert (status, error["what"]) == (503, "the file of topics cannot be read")
    metrics = text_of(broker.monitor, "/metrics")
    assert "penstock_topics " not in metrics and 'left_out{of="topics"}' not in metrics
    assert 'penstock_topic_messages_total{topic="orders"} 1\n' in metrics, "its queues say so"
    assert "unknown topics" in penstock("top", "--store", broker.store)


def test_how_full_the_disk_is_can_be_unknown_and_is_not_0_then(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_in(tmp_path, monitor_enable="true", monitor_port=0)
    get(broker.monitor, "/health")  # nobody waits for the monitor at a start
    cleaner = _pid(broker, "cleaner")
    os.kill(broker.process.pid, signal.SIGSTOP)  # else it would replace the cleaner
    try:
        os.kill(cleaner, signal.SIGSTOP)
        positions = Positions(find_running(broker.store).positions, "cleaner")
        assert positions["disk_used"] > 0, "it has looked"
        positions.publish("disk_used", 0)
        positions.close()
        assert get(broker.monitor, "/api/files")["disk_used_percent"] is None
        assert "penstock_disk_used_ratio" not in text_of(broker.monitor, "/metrics")
        assert broker.status()["retention"]["disk_used_percent"] is None
        shown = penstock("status", "--store", broker.store)
        assert re.search("^disk +unknown; messages are taken$", shown, re.MULTILINE), shown
    finally:
        os.kill(cleaner, signal.SIGCONT)
        os.kill(broker.process.pid, signal.SIGCONT)


def penstock(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    return run.stdout


def _pid(broker: Any, actor: str) -> int:
    (found,) = (each["pid"] for each in broker.status()["actors"] if each["name"] == actor)
    return int(found)


def test_files_retention_and_recoveries_are_shown(monitor: str, monitored: Any) -> None:
    found = get(monitor, "/api/files")
    segments = list(StorePaths(monitored.store).commit_log.iterdir())
    assert found["files"]["commitlog"]["files"] == len(segments)
    queue_files = [*StorePaths(monitored.store).consume_queue.glob("*/*/*")]
    assert found["files"]["consumequeue"]["files"] == len(queue_files)
    assert found["disk"]["free"] > 0 and found["retention"]["file_reserved_time_h"] == 72
    assert get(monitor, "/api/recoveries") == []
    assert get(monitor, "/api/dead-letters") == {
        "total": 0, "page": 1, "rows_a_page": 50, "rows": []
    }  # fmt: skip


def test_of_deletions_the_newest_twenty_are_shown_the_newest_first(
    monitor: str, monitored: Any
) -> None:
    paths = StorePaths(monitored.store)
    rows = [
        Deletion(
            at_ms=at_ms,
            why=Reason.ASKED,
            disk_used_percent=1,
            segments=1,
            log_start=0,
            log_end=1,
            messages=1,
            uncounted_queues=0,
            stored_before_ms=0,
        )
        for at_ms in range(25)
    ]
    replace_file(paths.deletions, msgspec.json.encode(rows))
    try:
        shown = [row["at_ms"] for row in get(monitor, "/api/files")["deletions"]]
    finally:
        paths.deletions.unlink()
    assert shown == list(range(24, 4, -1))


def test_history_gets_a_row_a_second(monitor: str, monitored: Any) -> None:
    with Producer(monitored.produce) as producer:
        producer.send("history", b"x").result(WAIT_S)
        rows = until(
            monitor,
            "/api/history",
            lambda rows: any(row["acknowledge_p50_ms"] for row in rows),
        )
    (row, *_) = (row for row in rows if row["acknowledge_p50_ms"])
    assert row["acknowledge_p99_ms"] >= row["acknowledge_p50_ms"] > 0
    times = [row["at_ms"] for row in rows]
    assert times == sorted(times)


def test_only_its_own_addresses_are_answered(monitor: str) -> None:
    for path in ("/nothing", "/../actor.py", "/page/../actor.py", "//etc/passwd", "/%2e%2e/x"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(monitor + path, timeout=WAIT_S)
        with caught.value:
            assert caught.value.code == 404


def test_a_broker_with_an_actor_that_stands_still_is_not_healthy(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_in(tmp_path, monitor_enable="true", monitor_port=0, actor_stall_timeout_ms=3000)
    assert get(broker.monitor, "/health") == {"ok": True, "problems": []}
    writer = next(a["pid"] for a in broker.status()["actors"] if a["name"] == "writer")
    os.kill(broker.process.pid, signal.SIGSTOP)  # else it would replace the writer
    try:
        os.kill(writer, signal.SIGSTOP)
        for path in ("/health", "/ready"):
            found = until(broker.monitor, path, lambda it: not it["ok"])
            assert "writer does not move" in found["problems"]
    finally:
        os.kill(writer, signal.SIGCONT)
        os.kill(broker.process.pid, signal.SIGCONT)
