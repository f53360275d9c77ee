"""How a broker ends, and what it refuses: stops, a second broker, damage, a full disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import PenstockError, SegmentUnavailable, StoreUnavailable
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import read_run

pytestmark = pytest.mark.takes(40)

TOPIC = "chaos"
QUEUES = 4
SEGMENT_BYTES = 1 << 20


def _await(condition: Callable[[], Any], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.005)


def _fill(broker: Any, messages: int, size: int = 300) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        for number in range(messages):
            body = f"fill/{number % QUEUES}/{number}/".encode() + bytes(size)
            producer.send(TOPIC, body, queue=number % QUEUES)


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_a_stop_under_load_is_clean_and_the_next_start_continues_the_offsets(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    read_all: Callable[..., Any],
    check_history: Callable[..., None],
    check_store: Callable[..., None],
    flush: str,
    pool: bool,
) -> None:
    running = broker(flush_disk_type=flush, transient_store_pool_enable=pool)
    loads: list[Any] = []
    for life in range(2):
        running.start()
        if not life:
            with Producer(running.produce) as producer:
                producer.create_topic(TOPIC, QUEUES)
        each = load(f"life{life}", running.produce, timeout_ms=2000)
        _await(lambda each=each: each.count() > 500, "500 acknowledgements")
        took = running.stop()
        assert took < 9, f"a stop took {took:.1f} s, as if an actor had to be killed"
        check_store(running)
        each.abandon()
        loads.append(each)
    running.start()
    stored = read_all(running.consume)
    # what was on its way when the broker stopped has no outcome
    check_history(loads, stored, all_acked=False)
    assert all(len(found) > 250 for found in stored.values())
    running.stop()


def test_an_interrupt_from_the_terminal_stops_in_order(
    broker: Callable[..., Any], check_store: Callable[..., None]
) -> None:
    running = broker()
    running.start(start_new_session=True)
    _fill(running, 100)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.wait_end() == 0, running.output()
    assert running.leftovers() == []
    assert "starting another" not in running.output()
    check_store(running)


@pytest.mark.parametrize(
    "actor",
    ["allocator", "writer", "committer", "flusher", "reput", "reader", "coordinator", "cleaner"],
)
def test_an_actor_that_is_told_to_end_does_so_in_order_and_is_replaced(
    broker: Callable[..., Any], actor: str
) -> None:
    running = broker()
    running.start()
    _fill(running, 100)
    before = running.actors()[actor]
    os.kill(before, signal.SIGTERM)
    _await(lambda: running.actors()[actor] not in (0, before), f"another {actor}")
    _fill(running, 100)
    assert f"{actor} (pid {before}) exited with 0; starting another" in running.output()
    running.stop()


@pytest.mark.parametrize("actor", ["writer", "committer", "reput", "flusher"])
def test_an_actor_killed_while_the_broker_stops_is_replaced_to_finish_its_work(
    broker: Callable[..., Any], check_store: Callable[..., None], actor: str
) -> None:
    running = broker()
    running.start()
    _fill(running, 500)
    victim = running.actors()[actor]
    running.process.send_signal(signal.SIGTERM)
    os.kill(victim, signal.SIGKILL)
    assert running.wait_end() == 0, running.output()
    assert f"{actor} (pid {victim}) was killed by SIGKILL" in running.output()
    assert "the store is clean" in running.output()
    assert running.leftovers() == []
    check_store(running)


def test_a_second_broker_on_the_store_is_refused(broker: Callable[..., Any]) -> None:
    running = broker()
    running.start()
    second = _up(running)
    assert second.returncode == 1
    assert "STORE_LOCKED" in second.stderr and "a broker runs on this store" in second.stderr
    assert "Traceback" not in second.stderr
    _fill(running, 10)
    running.stop()


def _up(broker: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """A start that is to fail."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "up"]
        + ["--config", str(broker.file), "--store", str(broker.store)],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind(
    broker: Callable[..., Any],
) -> None:
    running, other = broker(), broker()
    running.start()
    port = int(running.produce.rpartition(":")[2])
    other.configure({"produce_port": port})
    refused = _up(other)
    assert refused.returncode == 2 and f":{port}" in refused.stderr, refused.stderr
    assert other.shared_memory() == []
    running.stop()


def test_a_torn_tail_is_cut(
    broker: Callable[..., Any], read_all: Callable[..., Any], check_store: Callable[..., None]
) -> None:
    """Half a record at the end of the log, as a power failure leaves it."""
    running = broker()
    running.start()
    _fill(running, 400)
    running.await_dispatched()
    before = read_all(running.consume)
    end = running.status()["positions"]["wrote"]
    running.kill()
    paths = StorePaths(running.store)
    log = paths.commit_log / segment_name(end - end % SEGMENT_BYTES)
    record = (paths.commit_log / segment_name(0)).read_bytes()[:200]
    torn = bytearray(record)
    torn[28:36] = end.to_bytes(8, "big")
    running.clear()
    _write(log, end % SEGMENT_BYTES, bytes(torn))
    running.start()
    assert f"log ends at {end}" in running.output()
    assert " 0 torn bytes" not in running.output()
    assert read_all(running.consume) == before
    running.stop()
    check_store(running)


# --- a full disk ---


def test_a_segment_that_cannot_be_made_is_a_typed_error_and_no_crash(
    broker: Callable[..., Any], read_all: Callable[..., Any]
) -> None:
    """The limit is lifted at the end, as if somebody had made room: the broker goes on."""
    running = broker(mapped_file_size_commit_log_bytes=8 << 20)
    running.start()
    _fill(running, 10)
    actors = running.actors()
    limit = (4 << 20, resource.RLIM_INFINITY)
    resource.prlimit(actors["allocator"], resource.RLIMIT_FSIZE, limit)
    errors = []
    acknowledged = 10
    with Producer(running.produce) as producer:
        while not errors:
            futures = [producer.send(TOPIC, bytes(60_000), queue=0) for _ in range(40)]
            found = [future.exception(30) for future in futures]
            errors += [error for error in found if error]
            acknowledged += sum(error is None for error in found)
        assert all(isinstance(error, SegmentUnavailable) for error in errors), errors
        assert "File too large" in str(errors[0])
        assert running.actors() == actors, running.output()
        none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(actors["allocator"], resource.RLIMIT_FSIZE, none)
        began = time.monotonic()
        while producer.send(TOPIC, b"again/0/0/", queue=0).exception(30):
            assert time.monotonic() - began < 20, "goes on soon after there is room"
    running.await_dispatched()
    assert sum(map(len, read_all(running.consume).values())) == acknowledged + 1
    running.stop()


FULL_DISK = """\
set -e
mount -t tmpfs -o size=12m none "$0"
exec "$@"
"""


def _in_a_small_file_system(mount: Path) -> tuple[str, ...]:
    """A command prefix: what follows sees a 12 MiB file system at this place."""
    wrap = ("unshare", "-Urm", "sh", "-c", FULL_DISK, str(mount))
    try:
        tried = subprocess.run([*wrap, "true"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if tried.returncode:
        pytest.skip(f"no user namespaces here: {tried.stderr.decode().strip()}")
    return wrap


def test_a_full_disk_is_a_typed_error_and_no_crash_loop(
    broker: Callable[..., Any], tmp_path: Path
) -> None:
    """Producers are refused, consumers read on, and messages acknowledged before are there."""
    mount = tmp_path / "broker-0" / "store"
    wrap = _in_a_small_file_system(tmp_path)
    running = broker(wrap=(*wrap[:-1], str(mount)))
    mount.mkdir()
    running.launch()
    running.read_ready_line()
    errors: list[PenstockError] = []
    acknowledged = 0
    with Producer(running.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        while len(errors) < 40:
            futures = [producer.send(TOPIC, bytes(30_000), queue=n % QUEUES) for n in range(40)]
            found = [future.exception(30) for future in futures]
            errors += [error for error in found if error]
            acknowledged += sum(error is None for error in found)
        assert acknowledged > 40
        assert all(isinstance(error, SegmentUnavailable) for error in errors), errors
        assert "No space left" in str(errors[0]), errors[0]
        # the rest that no segment fits in goes too; then nothing at all can be written
        rest = Path(f"/proc/{running.process.pid}/root{mount}") / "rest"
        _fill_up(rest)
        with pytest.raises(StoreUnavailable, match="No space left"):
            producer.create_topic("another", 1)
        rest.unlink()
        assert producer.create_topic("another", 1) == 1
    _await(lambda: len(_bodies(running)) == acknowledged, "all acknowledged can be read")
    said = running.output()
    assert "starting another" not in said and "Traceback" not in said, said
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_end() == 0
    assert "the store is clean" in running.output()


def _fill_up(file: Path) -> None:
    with file.open("wb", buffering=0) as filling:
        try:
            while filling.write(bytes(4096)):
                continue
        except OSError as error:
            assert error.errno == errno.ENOSPC


def _bodies(broker: Any) -> list[bytes]:
    with Consumer(broker.consume, TOPIC, follow=False) as consumer:
        return [bytes(message.body) for message in consumer]


def test_consume_queues_that_cannot_grow_do_so_when_there_is_room_again(
    broker: Callable[..., Any], check_store: Callable[..., None]
) -> None:
    """Consumers see nothing new meanwhile; producers do not notice, and nothing crashes."""
    running = broker(mapped_file_size_consume_queue_bytes=20 * 150)
    running.start()
    _fill(running, 100)
    running.await_dispatched()
    reput = running.actors()["reput"]
    resource.prlimit(reput, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    _fill(running, 900)
    _await(lambda: running.status()["positions"]["dispatch_error"] == errno.EFBIG, "the error")
    assert 100 <= len(_bodies(running)) < 1000
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(reput, resource.RLIMIT_FSIZE, none)
    _await(lambda: len(_bodies(running)) == 1000, "all can be read")
    assert running.actors()["reput"] == reput
    assert running.status()["positions"]["dispatch_error"] == 0
    running.stop()
    check_store(running)


# --- an actor that fails by itself ---


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_an_actor_that_crashes_again_and_again_ends_the_broker_with_a_reason(
    broker: Callable[..., Any], number: signal.Signals
) -> None:
    running = broker()
    running.start()
    _fill(running, 50)

    run = read_run(StorePaths(running.store))
    assert run is not None
    positions = Positions(run.positions)
    crashed = 0
    while running.process.poll() is None:
        life = positions.life("reput")
        if life.generation != crashed and life.pid:
            os.kill(life.pid, number)
            crashed = life.generation
        time.sleep(0.005)
    positions.close()
    assert running.wait_end() == 1
    said = running.output()
    assert "actors have failed 5 times in 60 s" in said, said
    assert f"reput was killed by {number.name}" in said and "Traceback" not in said
    assert running.processes() == []
    assert StorePaths(running.store).abort.exists()
    running.start()  # somebody has looked into it
    running.stop()


def test_a_queue_file_that_is_cut_under_its_window_ends_the_broker_and_a_repair_brings_all_back(
    broker: Callable[..., Any], check_store: Callable[..., None]
) -> None:
    """A store into it is a SIGBUS. Its successor finds the file short and puts nothing."""
    running = broker(mapped_file_size_consume_queue_bytes=20 * 1000)
    running.start()
    _fill(running, 2000)
    running.await_dispatched()
    path = StorePaths(running.store).queue(TOPIC, 0) / segment_name(0)
    os.truncate(path, 4096)
    _fill(running, 4)
    assert running.wait_end() == 1
    said = running.output()
    assert "was killed by SIGBUS" in said, said
    assert f"{path} has 4096" in said and "Traceback" not in said
    assert "actors have failed 5 times in 60 s" in said and said.count("starting another") <= 5
    with pytest.raises(PenstockError):
        running.start()
    assert running.wait_end() == 5, "a damaged store"
    assert path.name in running.output()[len(said) :]
    subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "store", "repair", str(running.store)]
        + ["--apply", "--config", str(running.file)],
        check=True,
        capture_output=True,
    )
    running.start()
    assert len(_bodies(running)) == 2004
    running.stop()
    check_store(running)


def test_two_hundred_replacements_leak_nothing(broker: Callable[..., Any]) -> None:
    """Files and memory of the supervisor stay what they were; so do the files of the store."""
    running = broker()
    running.start()
    _fill(running, 100)
    supervisor = Path(f"/proc/{running.process.pid}")

    def replace_all() -> None:
        before = running.actors()
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        _await(
            lambda: all(
                actor["pid"] not in (0, before[actor["name"]]) and actor["state"] == "running"
                for actor in running.status()["actors"]
            ),
            "all are replaced",
        )

    def footprint() -> tuple[int, int, list[str]]:
        status = (supervisor / "status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0])
        shared = os.listdir(running.status()["run_directory"])
        return len(os.listdir(supervisor / "fd")), resident, sorted(shared)

    for _ in range(4):
        replace_all()
    files, resident, shared = footprint()
    for _ in range(30):
        replace_all()
    now = footprint()
    assert (now[0], now[2]) == (files, shared)
    assert now[1] < resident * 1.05 + 512, "the supervisor has grown"
    _fill(running, 100)
    running.stop()
