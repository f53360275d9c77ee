"""The supervisor with actors that misbehave: a broker whose actors are of the test's own making.

How it deals with kills from outside is in tests/chaos.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import supervisor
from penstock.client import Producer
from penstock.remoting.codes import Request
from penstock.remoting.command import Command, decode_command, encode_command
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.shared.memory.roster import ACTORS
from penstock.shared.memory.run_directory import read_run, remove_run_directory
from penstock.shared.process.broker_status import read_status
from penstock.shared.process.doorbells import QUIET_AFTER_MS, QUIET_TICK_MS, TICK_MS
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.supervisor import CHECK_MS, FAILURES_LIMIT

pytestmark = pytest.mark.takes(40)

READY_TIMEOUT_S = 120
SCRIPT = """\
import os, signal, sys, time
from penstock import supervisor
from penstock.client import Producer
from penstock.actors.reader import Reader
from penstock.actors.flusher import Flusher
from penstock.cli.main import main
{actor}
main(["up", "--config", sys.argv[1], "--store", sys.argv[2]])
"""
CONFIG = """\
produce_port = 0
consume_port = 0
group_port = 0
transaction_port = 0
gateway_port = 0
gateway_name_server_port = 0
monitor_port = 0
mapped_file_size_commit_log_bytes = 1048576
transient_store_pool_bytes = 33554432
{settings}
"""


class Broker:
    """`penstock up` with an actor of the test's own."""

    def __init__(self, place: Path, actor: str, settings: str) -> None:
        place.mkdir()
        self.store = place / "store"
        self.said = place / "stderr"
        script, config = place / "broker.py", place / "broker.toml"
        script.write_text(SCRIPT.format(actor=textwrap.dedent(actor)))
        config.write_text(CONFIG.format(settings=settings))
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(config), str(self.store)],
                stdout=subprocess.PIPE,
                stderr=said,
            )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_TIMEOUT_S), self.output()
        return self.process.stdout.readline().decode()

    def await_ready(self) -> None:
        assert self.ready_line().startswith("ready "), self.output()

    def actor(self, name: str) -> dict[str, Any]:
        (found,) = (a for a in read_status(self.store)["actors"] if a["name"] == name)
        return dict(found)

    def cycles(self) -> dict[str, int]:
        """Of each actor that runs, how often it has woken."""
        return {a["name"]: a["cycles"] for a in read_status(self.store)["actors"] if a["pid"]}

    def output(self) -> str:
        return self.said.read_text()

    def await_output(self, text: str, seconds: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output():
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.output()}"
            time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(READY_TIMEOUT_S)

    def clear(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if run := read_run(StorePaths(self.store)):
            remove_run_directory(run)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(actor: str = "", settings: str = "gateway_enable = false") -> Broker:
        made.append(Broker(tmp_path / f"broker-{len(made)}", actor, settings))
        return made[-1]

    yield make
    for each in made:
        each.clear()


def test_a_stop_wakes_an_actor_that_was_stopped_by_a_signal(broker: Callable[..., Broker]) -> None:
    # as long as nobody takes it for dead before the stop itself gives up
    running = broker(settings="actor_stopped_timeout_ms = 60000\nactor_stall_timeout_ms = 60000")
    running.await_ready()
    os.kill(running.actor("flusher")["pid"], signal.SIGSTOP)
    assert running.end() == 0 and "the store is clean" in running.output(), running.output()
    assert "replacing it" not in running.output()


def test_a_broker_that_nobody_uses_lets_its_actors_sleep(broker: Callable[..., Broker]) -> None:
    """All that run by default. At ten ticks a second each would wake twenty times."""
    running = broker(settings="")
    running.await_ready()
    window_s = 2.0
    deadline = time.monotonic() + 120
    while True:
        before = running.cycles()
        time.sleep(window_s)
        counts = {name: n - before.get(name, 0) for name, n in running.cycles().items()}
        busy = {name: n for name, n in counts.items() if n > 9}
        if not busy and len(before) == len(ACTORS):
            break
        assert time.monotonic() < deadline, f"cycles in {window_s} s: {busy}"
    assert running.end() == 0


def test_an_actor_that_clients_reach_takes_a_turn_when_its_process_works(
    broker: Callable[..., Broker],
) -> None:
    """As ZeroMQ's thread does that receives a message without an end. No tick comes by here."""
    running = broker(
        """
        import hashlib, threading
        from penstock.shared.process import actor
        NEVER_MS = 10_000_000

        def receive():
            while True:
                hashlib.sha256(bytes(1 << 20))

        class Works(Reader):
            def start(self):
                super().start()
                actor.TICK_MS = actor.QUIET_TICK_MS = NEVER_MS
                threading.Thread(target=receive, daemon=True).start()

            def idle_ms(self):
                return NEVER_MS
        supervisor.CLASSES["reader"] = Works
        """,
        settings="gateway_enable = false\nactor_stall_timeout_ms = 40000000",
    )
    running.await_ready()
    before, deadline = running.cycles()["reader"], time.monotonic() + 60
    while running.cycles()["reader"] < before + 20:
        assert time.monotonic() < deadline, running.output()
        time.sleep(0.05)
    assert running.end() == 0


def test_actors_that_have_nothing_to_do_sleep(broker: Callable[..., Broker]) -> None:
    running = broker("")
    running.await_ready()
    began, before = time.monotonic(), running.cycles()
    woken = dict.fromkeys(before, 0)
    while min(woken.values()) < 20:
        assert time.monotonic() < began + READY_TIMEOUT_S, running.output()
        time.sleep(0.05)
        now = running.cycles()
        woken = {name: now[name] - count for name, count in before.items()}
    # ten a second is usual; without sleep it is hundreds, with twenty others at the processor, too
    most = 20 + 40 * (time.monotonic() - began)
    assert max(woken.values()) < most, woken
    assert running.end() == 0


def test_an_actor_that_has_found_work_without_a_bell_looks_again_at_the_next_tick(
    broker: Callable[..., Broker],
) -> None:
    """There may be more of it, of which no bell tells either."""
    running = broker(
        """
        from penstock.shared.process import actor
        NEVER_MS = 10_000_000

        class Finds(Reader):
            def start(self):
                super().start()
                actor.QUIET_TICK_MS = NEVER_MS

            def work(self):
                return super().work() + 1

            def has_more(self):
                return False

            def idle_ms(self):
                return NEVER_MS
        supervisor.CLASSES["reader"] = Finds
        """,
        settings="gateway_enable = false\nactor_stall_timeout_ms = 40000000",
    )
    running.await_ready()
    before, deadline = running.cycles()["reader"], time.monotonic() + 60
    # more than it takes for as long as a bell of the start keeps it awake
    while running.cycles()["reader"] < before + 2 * QUIET_AFTER_MS // TICK_MS:
        assert time.monotonic() < deadline, running.output()
        time.sleep(0.05)
    assert running.end() == 0


def test_a_child_that_has_retired_is_looked_at_no_more(tmp_path: Path) -> None:
    """Not even one that was stopped, went on, and ended before anybody was told that it went on."""
    made = supervisor.Supervisor(Config(store_path_root_dir=str(tmp_path)))
    for child in made._children.values():
        child.retired, child.stopped_since_ms = True, 1
    assert made._next_look_ms() > 0


def test_it_looks_at_the_instants_at_which_actors_look(tmp_path: Path) -> None:
    clock = ManualClock()
    made = supervisor.Supervisor(Config(store_path_root_dir=str(tmp_path)), clock)
    for child in made._children.values():
        child.retired = True
    for late_ms in (0, 1, CHECK_MS - 2):
        clock.advance(late_ms)
        assert (clock.monotonic_ms() + made._next_look_ms()) % QUIET_TICK_MS in (0, CHECK_MS)


def test_an_actor_whose_heartbeat_stands_still_is_replaced(broker: Callable[..., Broker]) -> None:
    """It is not stopped and has not ended: it hangs."""
    running = broker(
        """
        class Hangs(Reader):
            def work(self):
                if self._stage.generation == 1 and self._stage.positions["wrote_timestamp"] == 0:
                    time.sleep(3600)
                return super().work()
        supervisor.CLASSES["reader"] = Hangs
        """,
        "actor_stall_timeout_ms = 1000",
    )
    running.await_ready()  # it begins to work before it hangs, so this may come first
    deadline = time.monotonic() + READY_TIMEOUT_S
    while running.actor("reader")["generation"] < 2:
        assert time.monotonic() < deadline, running.output()
        time.sleep(0.01)
    assert re.search(r"reader \(pid \d+\) does not move; replacing it", running.output())
    assert running.end() == 0


def test_an_actor_that_is_busy_for_less_than_the_timeout_is_left_alone(
    broker: Callable[..., Broker],
) -> None:
    """A sync of a slow disk may take long."""
    running = broker(
        """
        class Slow(Flusher):
            def work(self):
                time.sleep(1.0)
                return super().work()
        supervisor.CLASSES["flusher"] = Slow
        """,
        "actor_stall_timeout_ms = 4000",
    )
    running.await_ready()
    before = running.actor("flusher")["cycles"]
    deadline = time.monotonic() + READY_TIMEOUT_S
    while running.actor("flusher")["cycles"] < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert running.actor("flusher")["generation"] == 1
    assert "replacing" not in running.output()
    assert running.end() == 0


def test_a_start_that_takes_long_and_says_so_is_waited_for(broker: Callable[..., Broker]) -> None:
    running = broker(
        """
        class Slow(Reader):
            def start(self):
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    time.sleep(0.05)
                    self._stage.beat()
                super().start()
        supervisor.CLASSES["reader"] = Slow
        supervisor.READY_TIMEOUT_MS = 1000
        """,
        "actor_stall_timeout_ms = 500",
    )
    running.await_ready()
    assert running.actor("reader")["generation"] == 1
    assert running.end() == 0


def test_an_actor_that_cannot_start_ends_the_broker_with_its_name_and_reason(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Broken(Reader):
            def start(self):
                raise RuntimeError("the reason")
        supervisor.CLASSES["reader"] = Broken
        """
    )
    assert running.process.wait(READY_TIMEOUT_S) == 1
    said = running.output()
    assert "RuntimeError: the reason" in said
    assert "error: " in said and "reader exited with 1" in said, said
    assert running.ready_line() == ""


def test_one_failure_is_not_the_end(broker: Callable[..., Broker]) -> None:
    """It comes back after a second: it had not even run that long."""
    running = broker(
        """
        class FailsOnce(Reader):
            def work(self):
                if self._stage.generation == 1:
                    os.abort()
                return super().work()
        supervisor.CLASSES["reader"] = FailsOnce
        """
    )
    running.await_output("reader")
    running.await_output("was killed by SIGABRT; starting another")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while running.actor("reader")["state"] != "running" or running.actor("reader")["restarts"] < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert running.actor("reader")["restarts"] == 1
    assert running.end() == 0


def test_an_actor_that_will_not_stop_is_killed_and_the_store_recovered_next_time(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Stays(Reader):
            def drained(self):
                return False
        supervisor.CLASSES["reader"] = Stays
        supervisor.STOP_TIMEOUT_MS = 1000
        """
    )
    running.await_ready()
    began = time.monotonic()
    code = running.end()
    assert time.monotonic() - began < supervisor.STOP_TIMEOUT_MS / 1000, "not the usual time"
    said = running.output()
    assert "an actor did not stop within 1000 ms: reader" in said and code == 1, said
    assert StorePaths(running.store).abort.exists()


def test_a_broker_of_many_queues_has_more_time_to_sync_them_when_it_stops(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Slow(Flusher):
            def close(self):
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    self._stage.beat()
                    time.sleep(0.05)
                super().close()
        supervisor.CLASSES["flusher"] = Slow
        supervisor.STOP_TIMEOUT_MS, supervisor.STOP_QUEUE_MS = 500, 30_000
        """
    )
    running.await_ready()
    assert (run := read_run(StorePaths(running.store))) is not None
    with Producer(run.endpoints.produce) as producer:
        producer.send("many", b"").result(READY_TIMEOUT_S)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not read_status(running.store)["positions"]["queue_count"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert running.end() == 0 and "the store is clean" in running.output(), running.output()


def test_a_broker_told_to_stop_while_it_starts_does_so_and_never_says_ready(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Slow(Reader):
            def start(self):
                print("reader starts", file=sys.stderr, flush=True)
                for _ in range(20):
                    time.sleep(0.05)
                    self._stage.beat()
                super().start()
        supervisor.CLASSES["reader"] = Slow
        """
    )
    running.await_output("reader starts")
    assert running.end() == 0
    assert running.ready_line() == ""
    assert "the store is clean" in running.output()


def test_a_signal_that_comes_right_behind_the_fork_is_not_lost(
    broker: Callable[..., Broker],
) -> None:
    """The child has the supervisor's handlers for a moment: until its own are there, it waits."""
    running = broker()
    running.await_ready()
    pid = running.actor("committer")["pid"]
    for _ in range(30):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (new := running.actor("committer")["pid"]) in (0, pid):
            assert time.monotonic() < deadline, running.output()
        pid = new
    running.await_output("exited with 0")
    said = running.output()
    assert said.count("exited with 0; starting another") >= 29, said
    assert "was killed by" not in said
    assert running.end() == 0


def test_the_log_of_restarts_tells_who_and_why(broker: Callable[..., Broker]) -> None:
    running = broker()
    running.await_ready()
    pid = running.actor("allocator")["pid"]
    os.kill(pid, signal.SIGKILL)
    running.await_output(f"allocator (pid {pid}) was killed by SIGKILL; starting another")
    assert running.end() == 0
    assert running.output().rstrip().endswith("stopped; the store is clean")


def test_a_closed_terminal_stops_the_broker_in_order(broker: Callable[..., Broker]) -> None:
    running = broker()
    running.await_ready()
    assert running.end(signal.SIGHUP) == 0
    assert "the store is clean" in running.output()


def test_at_a_stop_the_flusher_makes_durable_what_the_reput_writes_last(
    broker: Callable[..., Broker],
) -> None:
    """The reput has a backlog when it is asked to stop."""
    running = broker(
        """
        from penstock.actors.reput import Reput
        class Late(Reput):
            asked = False
            def work(self):
                return super().work() if self.asked else 0
            def drained(self):
                self.asked = True
                return super().drained()
        supervisor.CLASSES["reput"] = Late
        """
    )
    running.await_ready()
    run = read_run(StorePaths(running.store))
    assert run is not None
    with Producer(run.endpoints.produce) as producer:
        receipts = [producer.send("orders", b"x" * 100, queue=0).result(60) for _ in range(50)]
    assert read_status(running.store)["positions"]["dispatched"] == 0
    assert running.end() == 0, running.output()
    paths = StorePaths(running.store)
    found = load_checkpoint(paths.checkpoint)
    assert found.confirm_offset == receipts[-1].physical_offset
    assert found.logics_timestamp_ms == receipts[-1].store_timestamp_ms
    assert not paths.abort.exists()


def test_a_start_does_not_wait_for_the_gateway_and_its_clients_wait_meanwhile(
    broker: Callable[..., Broker], tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    running = broker(
        f"""
        from penstock.actors.gateway import Gateway
        class Late(Gateway):
            def start(self):
                while not os.path.exists({str(go_on)!r}):
                    self._stage.beat()
                    time.sleep(0.01)
                super().start()
        supervisor.CLASSES["gateway"] = Late
        """,
        "gateway_enable = true",
    )
    line = running.ready_line()
    assert line.startswith("ready "), running.output()
    assert running.actor("gateway")["state"] == "starting"
    host, _, port = line.partition("remoting=")[2].split()[0].rpartition(":")
    with socket.create_connection((host, int(port)), READY_TIMEOUT_S) as client:
        client.sendall(encode_command(Command(Request.GET_BROKER_CLUSTER_INFO, 7)))
        go_on.touch()
        frame = client.recv(1 << 16)
    assert decode_command(frame[4:]).opaque == 7
    assert running.end() == 0, running.output()


def test_a_broker_that_stops_before_its_gateway_has_begun_stops_in_order(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Slow(Reader):
            def start(self):
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(0.5)
                super().start()
        supervisor.CLASSES["reader"] = Slow
        """,
        "gateway_enable = true",
    )
    assert running.process.wait(READY_TIMEOUT_S) == 0, running.output()
    assert running.process.stdout is not None and running.process.stdout.read() == b""
    assert "the store is clean" in running.output()


def test_a_stop_does_not_wait_for_a_spare_actor(broker: Callable[..., Broker]) -> None:
    """Neither for one that does not come to its end, nor for one that could not even begin."""
    running = broker(
        """
        from penstock.actors.monitor import Monitor
        class Hangs(Monitor):
            def work(self):
                print("hangs", file=sys.stderr, flush=True)
                time.sleep(3600)
        supervisor.CLASSES["monitor"] = Hangs
        # so that an ordinary wait would not end within the test's own time
        supervisor.STOP_TIMEOUT_MS = 3600_000
        """,
        "actor_stall_timeout_ms = 60000",
    )
    running.await_ready()
    running.await_output("hangs")
    assert running.end() == 0 and "the store is clean" in running.output(), running.output()

    running = broker(
        """
        class Broken:
            def __init__(self, stage):
                raise OSError("it cannot be")
        supervisor.CLASSES["monitor"] = Broken
        supervisor.MIN_RUN_MS = 3600_000
        """
    )
    running.await_ready()
    running.await_output("exited with 1")
    assert running.end() == 0 and "the store is clean" in running.output(), running.output()
    assert "did not stop" not in running.output()


def test_a_spare_actor_may_fail_as_often_as_it_likes(
    broker: Callable[..., Broker],
) -> None:
    running = broker(
        """
        class Broken:
            def __init__(self, stage):
                raise OSError("it cannot be")
        supervisor.CLASSES["monitor"] = Broken
        supervisor.MIN_RUN_MS = 20
        """
    )
    running.await_ready()
    deadline = time.monotonic() + READY_TIMEOUT_S
    while running.actor("monitor")["generation"] <= 2 * FAILURES_LIMIT:
        assert time.monotonic() < deadline, running.output()
        time.sleep(0.01)
    assert "it cannot be" in running.output()
    assert running.actor("writer")["generation"] == 1
    assert running.end() == 0 and "the store is clean" in running.output()
