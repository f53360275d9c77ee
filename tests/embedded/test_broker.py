"""A broker inside a program: its files, its end, and what is left when all is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.chaos.machine.processes import run_directories_below
from penstock.embedded import Broker
from penstock.errors import ConfigError, InvalidArgument, StoreLocked
from penstock.shared.process.broker_status import read_status
from penstock.testing import SMALL_FILES

GONE_S = 60


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _bodies(broker: Broker, topic: str = "orders") -> list[bytes]:
    return [bytes(message.body) for message in broker.consumer(topic, follow=False)]


def test_what_one_broker_has_stored_the_next_one_on_the_store_has(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store", settings=SMALL_FILES) as broker:
        broker.producer().send("orders", b"1").result()
    assert not (tmp_path / "store" / "abort").exists()
    with penstock.open(tmp_path / "store") as broker:
        assert _bodies(broker) == [b"1"]


def test_a_broker_that_is_killed_recovers_all_that_it_acknowledged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=log) as broker:
        producer = broker.producer()
        for number in range(50):
            producer.send("orders", b"%d" % number, queue=0).result()
        broker.kill()
        assert not broker.running
        with Broker(tmp_path / "store", log=log) as second:
            assert _bodies(second) == [b"%d" % number for number in range(50)]
    assert "recovered after an unclean stop: 50 messages" in log.read_text()


def test_clients_of_rocketmq_are_served_where_that_is_asked_for(tmp_path: Path) -> None:
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=tmp_path / "log") as broker:
        assert broker.endpoints["name_server"] == ""
    asked = {**SMALL_FILES, "gateway_enable": True}
    with Broker(tmp_path / "store", settings=asked, log=tmp_path / "log") as broker:
        host, _, port = broker.endpoints["name_server"].removeprefix("tcp://").rpartition(":")
        socket.create_connection((host, int(port)), 30).close()


def test_a_killed_actor_has_a_successor_when_the_call_returns(tmp_path: Path) -> None:
    with Broker(settings=SMALL_FILES, log=tmp_path / "log") as broker:
        before = {each["name"]: each for each in broker.status()["actors"]}["writer"]
        broker.kill_actor("writer")
        after = {each["name"]: each for each in broker.status()["actors"]}["writer"]
        assert (after["generation"], after["state"]) == (before["generation"] + 1, "running")
        broker.producer().send("orders", b"1").result()
        with pytest.raises(InvalidArgument, match="no such actor: wirter.*One of allocator"):
            broker.kill_actor("wirter")


def test_a_temporary_store_goes_with_its_broker_even_if_that_was_killed(tmp_path: Path) -> None:
    for end in (Broker.close, Broker.kill):
        broker = Broker(settings=SMALL_FILES, log=tmp_path / "log")
        run = Path(broker.status()["run_directory"])
        assert broker.store.is_dir() and run.is_dir()
        end(broker)
        assert not broker.store.parent.exists() and not run.exists()
        broker.close()  # a second time is nothing


def test_a_temporary_store_goes_even_if_the_launcher_was_killed(tmp_path: Path) -> None:
    for end in (Broker.close, Broker.kill):
        broker = Broker(settings=SMALL_FILES, log=tmp_path / "log")
        run = Path(broker.status()["run_directory"])
        os.kill(psutil.Process(broker.pid).ppid(), signal.SIGKILL)
        with broker.producer() as producer:
            producer.send("orders", b"1").result(GONE_S)  # it serves on
        end(broker)
        assert not broker.store.parent.exists() and not run.exists()
        process = Path("/proc", str(broker.pid), "stat")  # a dead one may have nobody who asks
        assert not process.exists() or process.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_keeps_a_broker_from_starting_is_raised_as_itself(tmp_path: Path) -> None:
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=tmp_path / "log"):
        with pytest.raises(StoreLocked, match="store"):
            Broker(tmp_path / "store", log=tmp_path / "log")
        with pytest.raises(ConfigError, match="max_queue.*Did you mean max_queues"):
            Broker(settings={"max_queue": 1}, log=tmp_path / "log")
    with pytest.raises(InvalidArgument, match="among the settings"):
        Broker(settings={"store_path_root_dir": "elsewhere"})


PROGRAM = """
import sys, threading
from penstock.embedded import Broker
from penstock.testing import SMALL_FILES
held = Broker(sys.argv[1], settings=SMALL_FILES, log=sys.argv[2])
temporary = Broker(settings=SMALL_FILES, log=sys.argv[2])
for each in (held, temporary):
    each.producer().send("orders", b"1").result()
print(held.pid, temporary.pid, temporary.store, temporary.status()["run_directory"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_brokers_stop_in_order_when_their_program_is_killed(tmp_path: Path, number: int) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    with program.stdin, program.stdout:
        pids, *places = (line := program.stdout.readline().split())[:2], *line[2:]
        program.send_signal(number)
        assert program.wait(GONE_S) == -number
    _await(lambda: not any(Path("/proc", pid).exists() for pid in pids))
    _await(lambda: not any(Path(place).exists() for place in places))
    assert not (tmp_path / "store" / "abort").exists()
    assert run_directories_below(tmp_path) == []


def test_a_program_with_thousands_of_open_files_has_its_broker(tmp_path: Path) -> None:
    """The channel to it has a number above those that select takes."""
    program = f"""
import os, resource, penstock
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)]
with penstock.open({str(tmp_path / "store")!r}) as broker:
    print(broker.store)
"""
    said = subprocess.check_output([sys.executable, "-c", program], timeout=120, text=True)
    assert said.strip() == str(tmp_path / "store")


def test_a_fork_of_the_program_neither_holds_its_brokers_nor_ends_them(tmp_path: Path) -> None:
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=tmp_path / "log") as broker:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                # one of its own, while the parent's runs
                with Broker(settings=SMALL_FILES, log=tmp_path / "log") as own:
                    own.producer().send("orders", b"1").result()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        broker.producer().send("orders", b"2").result()
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        broker.close()  # returns although the fork is still there
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_broker_is_one_that_every_command_finds(tmp_path: Path) -> None:
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=tmp_path / "log") as broker:
        broker.producer().send("orders", b"1").result()
        assert read_status(tmp_path / "store")["supervisor_pid"] == broker.pid
        with penstock.connect(broker.endpoints["produce"]) as other:
            assert other.topics()["orders"]
        assert repr(broker) == f"<penstock broker on {tmp_path / 'store'}>"
    assert repr(broker) == f"<penstock broker on {tmp_path / 'store'}, stopped>"
