"""Rings in shared memory between real processes: used, taken over by nobody, and never left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos.broker import Broker
from penstock.chaos.crashes.senders import rings_left
from penstock.chaos.machine.leaks import Baseline
from penstock.client import Consumer, Producer, aio
from penstock.client.core.sending.frame_ring import ENOUGH_BYTES
from penstock.shared.faults import VARIABLE
from penstock.shared.memory.ring_file import make_ring, ring_files, ring_path

pytestmark = pytest.mark.takes(20)

BODY_BYTES = 4000
WAIT_S = 60
Brokers = Callable[..., Broker]


def bodies(number: int) -> list[bytes]:
    """Enough of them for a ring, each another one."""
    count = 2 * ENOUGH_BYTES // BODY_BYTES
    return [b"%d/%d/".ljust(BODY_BYTES, b".") % (number, n) for n in range(count)]


def send(producer: Producer, number: int) -> list[bytes]:
    """Send them to one queue, and wait for all."""
    sent = bodies(number)
    for body in sent:
        producer.send("rings", body, queue=0)
    producer.flush(WAIT_S)
    return sent


def send_through_a_ring(producer: Producer, first: int = 0) -> list[bytes]:
    """Send until there is a ring, and then once more."""
    sent, number = [], first
    deadline = time.monotonic() + WAIT_S
    while not producer._core._ring.is_held:
        assert time.monotonic() < deadline, "no ring comes"
        sent += send(producer, number)
        number += 1
    return sent + send(producer, number)


def files(broker: Broker) -> list[Path]:
    return ring_files(Path(broker.status()["run_directory"]))


def await_bytes(broker: Broker, count: int) -> None:
    """Wait until the log is longer than that."""
    deadline = time.monotonic() + WAIT_S
    while broker.status()["positions"]["wrote"] < count:
        assert time.monotonic() < deadline, "messages do not come"
        time.sleep(0.01)


def received(broker: Broker) -> list[bytes]:
    broker.await_dispatched()
    with Consumer(broker.consume, "rings", queues=[0], follow=False) as consumer:
        return [bytes(message.body) for message in consumer]


@pytest.fixture
def running(broker: Brokers) -> Broker:
    running = broker()
    running.start()
    return running


def test_who_sends_much_does_so_through_a_ring_which_goes_when_he_does(running: Broker) -> None:
    with Producer(running.produce) as producer:
        assert files(running) == []
        sent = send_through_a_ring(producer)
        (path,) = files(running)
        assert path.stat().st_mode & 0o777 == 0o600
        # what was sent last stands there
        assert sent[-1] in path.read_bytes()
        assert running.status()["positions"]["rings"] == 1
    assert received(running) == sent
    assert rings_left(running) == []
    running.stop()


def test_who_does_not_want_a_ring_has_none(running: Broker) -> None:
    with Producer(running.produce, ring=False) as producer:
        sent = send(producer, 0) + send(producer, 1)
        assert files(running) == [] and not producer._core._ring.is_held
    assert received(running) == sent
    running.stop()


@pytest.mark.parametrize(("option", "rings"), [("--ring", 1), ("--no-ring", 0)])
def test_the_command_takes_a_ring_unless_it_is_told_not_to(
    running: Broker, option: str, rings: int
) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "produce", "rings", "--queue", "0"]
    with subprocess.Popen(
        [*command, "--endpoint", running.produce, option],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        sent: list[bytes] = []
        for number in range(3):
            sent += bodies(number)
            process.stdin.write(b"\n".join([*bodies(number), b""]))
            process.stdin.flush()
            # it waits for more, and has sent what there was
            await_bytes(running, len(sent) * BODY_BYTES)
        assert len(files(running)) == rings
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    assert received(running) == sent
    running.stop()


def test_asyncio_s_producer_takes_a_ring_too(running: Broker) -> None:
    sent: list[bytes] = []

    async def work() -> None:
        async with aio.Producer(running.produce) as producer:
            deadline, number = time.monotonic() + WAIT_S, 0
            while not producer._core._ring.is_held or number < 2:
                assert time.monotonic() < deadline, "no ring comes"
                sent.extend(bodies(number))
                futures = [producer.send("rings", body, queue=0) for body in bodies(number)]
                await asyncio.gather(*futures)
                number += 1
            assert len(files(running)) == 1

    asyncio.run(asyncio.wait_for(work(), 2 * WAIT_S))
    assert received(running) == sent
    running.stop()


def test_over_the_socket_file_it_is_the_same(running: Broker) -> None:
    with Producer(running.status()["endpoints"]["produce_ipc"]) as producer:
        sent = send_through_a_ring(producer)
    assert received(running) == sent
    running.stop()


def test_a_writer_that_is_killed_is_followed_by_one_that_makes_another_ring(
    running: Broker,
) -> None:
    sent = []
    with Producer(running.produce) as producer:
        sent += send_through_a_ring(producer)
        (first,) = files(running)
        for number in range(100, 104):
            some = bodies(number)
            for n, body in enumerate(some):
                producer.send("rings", body, queue=0)
                if n == len(some) // 2:
                    running.strike("writer", signal.SIGKILL)
            producer.flush(WAIT_S)
            sent += some
        sent += send_through_a_ring(producer, 200)
        (last,) = files(running)
        assert first != last
    assert received(running) == sent, "each once, in order"
    assert rings_left(running) == []
    running.stop()


def test_where_shared_memory_is_full_frames_go_through_the_socket(tmp_path: Path) -> None:
    running = Broker(tmp_path, {}, environment={VARIABLE: "ring.made=error:ENOSPCx1000000"})
    try:
        running.start()
        with Producer(running.produce) as producer:
            sent = send(producer, 0) + send(producer, 1)
            assert not producer._core._ring.is_held and files(running) == []
        assert received(running) == sent
        assert " exited with " not in running.output()
        running.stop()
    finally:
        running.clear()


def test_a_broker_that_stops_leaves_nothing_where_a_producer_holds_a_ring(
    running: Broker, tmp_path: Path
) -> None:
    before = Baseline(tmp_path)
    producer = Producer(running.produce, timeout_ms=60_000)
    try:
        send_through_a_ring(producer)
        assert len(files(running)) == 1
        running.stop()  # raises when anything stays
    finally:
        producer._disconnect()
    assert not [each for each in before.leaked() if "ring" in each]


def test_a_broker_that_was_killed_leaves_its_rings_until_the_next_start(broker: Brokers) -> None:
    running = broker()
    running.start()
    with Producer(running.produce, timeout_ms=60_000) as producer:
        send_through_a_ring(producer)
        directory = Path(running.status()["run_directory"])
        running.kill()
        assert len(ring_files(directory)) == 1
        running.start()
        assert not directory.exists()
    running.stop()


def test_a_ring_that_is_left_is_a_leak(tmp_path: Path) -> None:
    before = Baseline(tmp_path)
    store = tmp_path / "store"
    store.mkdir()  # a run whose store is gone is for anybody to remove
    directory = Path("/dev/shm") / f"penstock-{tmp_path.stat().st_ino:016x}"
    directory.mkdir()
    try:
        (directory / "store").write_text(str(store.resolve()))
        handle = make_ring(ring_path(directory, 1), bytes(32))
        found: list[Any] = before.leaked()
        assert sorted(each.split()[2] for each in found) == ["descriptor", "ring", "run"], found
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    os.close(handle)
    assert before.leaked() == []
