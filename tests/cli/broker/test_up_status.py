"""`penstock up` and `penstock status`: a broker says where it is, how it is, and when it is not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos.broker import Broker
from penstock.client import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.faults import VARIABLE
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import POSITIONS, STATES
from penstock.shared.memory.roster import ACTORS, ROSTER

WAIT_S = 60


def penstock(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def status(store: Path) -> dict[str, Any]:
    done = penstock("status", "--store", store, "-o", "json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_ready_names_the_endpoints_and_the_store(broker: Any) -> None:
    assert re.fullmatch(
        r"ready( (produce|consume|group|transaction)=tcp://127\.0\.0\.1:\d+)+ "
        rf"store={re.escape(str(broker.store))}\n",
        broker.ready,
    )


def test_status_shows_every_actor_position_and_endpoint(broker: Any) -> None:
    found = status(broker.store)
    assert [actor["name"] for actor in found["actors"]] == list(ACTORS)
    off = {row.name for row in ROSTER if row.enabled_by}
    running = [actor for actor in found["actors"] if actor["name"] not in off]
    for actor in running:
        assert actor["pid"] > 1 and Path(f"/proc/{actor['pid']}").is_dir()
        assert actor["state"] in STATES and actor["state"] == "running"
        assert (actor["generation"], actor["restarts"]) == (1, 0)
        assert 0 <= actor["heartbeat_age_ms"] < 5000
    assert len({actor["pid"] for actor in running}) == len(running)
    assert {actor["state"] for actor in found["actors"] if actor["name"] in off} == {"off"}
    assert set(found["positions"]) == {position.name for position in POSITIONS}
    assert found["endpoints"]["produce"] == broker.produce
    assert found["endpoints"]["consume"] == broker.consume
    assert found["supervisor_pid"] == broker.process.pid
    assert found["store"] == str(broker.store.resolve())
    assert Path(found["run_directory"]).is_dir()


def test_positions_move_with_the_messages(broker: Any) -> None:
    before = status(broker.store)["positions"]
    with Producer(broker.produce) as producer:
        receipt = producer.send("moves", b"x").result(WAIT_S)
    after = status(broker.store)["positions"]
    assert before["wrote"] <= receipt.physical_offset < after["wrote"]
    assert after["flushed"] == after["committed"] == after["wrote"]
    assert after["allocated"] > after["wrote"] and after["flush_error"] == 0
    assert after["wrote_timestamp"] == receipt.store_timestamp_ms
    deadline = time.monotonic() + WAIT_S
    while status(broker.store)["positions"]["dispatched"] < after["wrote"]:
        assert time.monotonic() < deadline
    assert status(broker.store)["positions"]["queue_count"] >= 1


def test_the_table_says_the_same_for_people(broker: Any) -> None:
    done = penstock("status", "--store", broker.store, "--all")
    assert done.returncode == 0
    for name in (*ACTORS, *(position.name for position in POSITIONS), broker.produce):
        assert name in done.stdout
    for position in POSITIONS:
        assert position.meaning in done.stdout


def test_status_says_when_no_message_is_taken_any_more(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {}, environment={VARIABLE: "flush.before_msync=error:EROFS"})
    try:
        broker.start()
        assert status(broker.store)["retention"]["state"] == "messages are taken"
        with Producer(broker.produce) as producer, pytest.raises(StoreUnavailable, match="flush"):
            producer.send("orders", b"x", ack="durable").result(WAIT_S)
        said = "a flush failed (Read-only file system): no message is taken until a restart"
        assert status(broker.store)["retention"]["state"] == said
        assert said in penstock("status", "--store", broker.store).stdout
    finally:
        broker.clear()


@pytest.mark.parametrize("output", ["table", "json"])
def test_without_a_broker_status_exits_with_3_and_says_how_to_start_one(
    tmp_path: Path, output: str
) -> None:
    for store in (tmp_path, tmp_path / "none"):
        done = penstock("status", "--store", store, "-o", output)
        assert (done.returncode, done.stdout) == (3, "")
        assert "penstock up --store" in done.stderr and "Traceback" not in done.stderr


def test_after_a_stop_there_is_no_broker_and_no_trace_of_it(start_broker: Any) -> None:
    broker = start_broker()
    run_directory = Path(status(broker.store)["run_directory"])
    assert StorePaths(broker.store).abort.exists()
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(WAIT_S) == 0
    assert not run_directory.exists() and not StorePaths(broker.store).abort.exists()
    assert penstock("status", "--store", broker.store).returncode == 3


def test_a_store_has_one_broker_at_a_time(broker: Any) -> None:
    ports = ("--port", "auto")
    done = penstock("up", "--store", broker.store, *ports)
    assert done.returncode == 1 and "STORE_LOCKED" in done.stderr
    assert "Traceback" not in done.stderr
    assert all(actor["restarts"] == 0 for actor in status(broker.store)["actors"])


def test_up_can_say_it_is_ready_as_json(tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ["up", "--store", str(store), "--port", "auto"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *arguments, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] is True and ready["store"] == str(store)
        assert ready["endpoints"] == status(store)["endpoints"]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and "the store is clean" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("flush_disc_type = 'sync'", "Did you mean flush_disk_type?"),
        ("produce_port = 99999", "from 0"),
        ("= 1", "line 1"),
    ],
)
def test_a_wrong_configuration_exits_with_2_before_anything_is_made(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(content)
    done = penstock("up", "--config", file, "--store", tmp_path / "store")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_start_that_cuts_bytes_says_so_also_where_the_last_stop_was_in_order(
    broker_in: Any, tmp_path: Path
) -> None:
    running = broker_in(tmp_path)
    with Producer(running.produce) as producer:
        producer.send("cut", b"x").result(WAIT_S)
    end = running.status()["positions"]["wrote"]
    assert running.stop() == 0
    segment = min(StorePaths(running.store).commit_log.iterdir())
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(b"\xff" * 200)
    again = broker_in(tmp_path)
    assert f"200 bytes behind the log's end, which is {end}," in again.said.read_text()


def test_the_pid_of_one_actor_is_all_that_is_printed_where_it_is_asked_for(broker: Any) -> None:
    found = status(broker.store)
    pids = {actor["name"]: actor["pid"] for actor in found["actors"]}
    assert penstock("status", "--store", broker.store, "--pid", "writer").stdout == (
        f"{pids['writer']}\n"
    )
    supervisor = penstock("status", "--store", broker.store, "--pid", "supervisor").stdout
    assert int(supervisor) == found["supervisor_pid"]
    unknown = penstock("status", "--store", broker.store, "--pid", "wirter")
    assert unknown.returncode == 2 and "One of supervisor, " in unknown.stderr


def test_a_check_says_what_is_wrong_and_by_its_exit_code_that_something_is(
    broker_in: Any, tmp_path: Path
) -> None:
    running = broker_in(tmp_path, actor_stall_timeout_ms=3000)
    check = ("status", "--store", running.store, "--check")
    found = penstock(*check)
    assert (found.returncode, found.stdout) == (0, "healthy\n")
    supervisor, writer = running.process.pid, status(running.store)["actors"][1]
    assert writer["name"] == "writer"
    os.kill(supervisor, signal.SIGSTOP)  # else it would replace the writer
    try:
        os.kill(writer["pid"], signal.SIGSTOP)
        deadline = time.monotonic() + WAIT_S
        while (found := penstock(*check)).returncode == 0:
            assert time.monotonic() < deadline
        assert (found.returncode, found.stdout) == (1, "not healthy: writer does not move\n")
        as_json = penstock(*check, "-o", "json")
        assert as_json.returncode == 1
        assert json.loads(as_json.stdout) == {"ok": False, "problems": ["writer does not move"]}
    finally:
        os.kill(writer["pid"], signal.SIGCONT)
        os.kill(supervisor, signal.SIGCONT)
    running.stop()
    assert penstock(*check).returncode == 3
