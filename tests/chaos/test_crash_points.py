"""Every named point in the product is reached by real brokers under load, and crashed at.

All points that a broker can pass in one way of running are armed at once, each to kill whoever
passes it, at a chance Nth time. What dies is replaced by its supervisor; where that dies itself, or
a start does, the test starts the broker again. In the end history and store are compared.

PENSTOCK_CHAOS_POINTS sets how often each point fires at least (1 without it), PENSTOCK_CHAOS_SEED
which moments. What has fired is printed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from penstock.chaos.broker import Broker
from penstock.chaos.history import check_acknowledged, check_order, digest, read_stored
from penstock.chaos.load import QUEUES, TOPIC, Follower, Load, read_all
from penstock.chaos.replay import check_store
from penstock.client.producer import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.faults import FIRED_VARIABLE, POINTS, VARIABLE
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.positions import Positions
from penstock.shared.record import decode_record
from penstock.shared.run_directory import read_run
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.verify import verify_store

TIMES = int(os.environ.get("PENSTOCK_CHAOS_POINTS", "1"))
TIMEOUT_S = 20 + 15 * TIMES
SEGMENT_BYTES = 256 << 10
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": SEGMENT_BYTES,
    "mapped_file_size_consume_queue_bytes": 20 * 200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    # no multiple of a segment, so that records lie across its end
    "transient_store_pool_bytes": (4 << 20) + (12 << 10),
    "flush_interval_consume_queue_ms": 50,
    "flush_consume_queue_thorough_interval_ms": 50,
}
EXPIRING: dict[str, object] = {
    "file_reserved_time_h": 0,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "delete_commit_log_files_interval_ms": 1,
    "delete_consume_queue_files_interval_ms": 1,
    "clean_resource_interval_ms": 50,
}
# what is written stays in the pool, unless somebody waits for the disk or half of it is full
LAZY: dict[str, object] = {
    "commit_commit_log_least_pages": 10_000,
    "commit_commit_log_thorough_interval_ms": 60_000,
}

BELLS = {"bell.lost", "bell.repeated"}
CLEANER = {name for name in POINTS if name.startswith("clean.")}
FROZEN_AT = {
    "write.before_publish",
    "commit.before_cursor",
    "flush.after_msync_before_cursor",
    "reput.after_record_before_cursor",
}
OFFLINE = {name for name in POINTS if name.startswith(("repair.", "rebuild."))}
SUPERVISOR = {
    name
    for name in POINTS
    if name.startswith(("file.", "recover.", "run.", "start.", "sup.", "shutdown."))
} | {"index.mid_repair"}
ACTORS = set(POINTS) - BELLS - CLEANER - OFFLINE - SUPERVISOR
POOL_ONLY = {"write.mid_record", "commit.mid_copy"}
# met in every cycle, so it need not be the first time; the others are met now and then
OFTEN = {
    name
    for name in ACTORS
    if name.startswith(("write.", "commit.", "flush.", "reput.", "ckpt."))
    and not name.endswith((".mid_record", ".end_of_file_blank", ".roll", ".new_cq_file"))
} - {"reput.new_queue", "flush.mid_index"}
LATEST = {"file.tmp_written": 3, "file.renamed": 3, "rebuild.before_swap": 2, "sup.after_spawn": 7}
# these make the states that a rare point needs: an index file without an item that counts
MAKERS = {"make.named": 12, "reput.after_index_before_cursor": 6}


class Armed:
    """Points that are armed, and what has fired."""

    def __init__(self, place: Path, points: set[str], dice: random.Random, action: str) -> None:
        self._points = points
        self._action = action
        self._dice = dice
        self._file = place / "fired"
        self._file.touch()

    @property
    def environment(self) -> dict[str, str]:
        words = []
        for name in sorted(self._points):
            first = self._dice.randint(1, 8 if name in OFTEN else LATEST.get(name, 1))
            times = TIMES * (MAKERS.get(name, 1) if self._action == "crash" else 1)
            words.append(f"{name}={self._action}@{first}x{times}")
        return {VARIABLE: " ".join(words), FIRED_VARIABLE: str(self._file)}

    def fired(self) -> list[tuple[str, int]]:
        """(point, process) in order."""
        rows = [line.split() for line in self._file.read_text().splitlines()]
        return [(name, int(pid)) for name, pid in rows]

    def missing(self) -> set[str]:
        """Points that have not fired often enough yet."""
        counts = Counter(name for name, _ in self.fired())
        return {name for name in self._points if counts[name] < TIMES}

    def await_all(self, broker: Broker) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.missing():
            assert time.monotonic() < deadline, f"not reached: {self.missing()}\n{broker.output()}"
            assert broker.process.poll() is None, broker.output()
            time.sleep(0.02)

    def show(self) -> None:
        counts = Counter(name for name, _ in self.fired())
        print(
            f"\n{sum(counts.values())} crashes:", *(f"{n} {c}" for n, c in sorted(counts.items()))
        )


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_POINTS={TIMES}")
    return random.Random(seed)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(armed: Armed | None, **settings: object) -> Broker:
        environment = None if armed is None else armed.environment
        made.append(Broker(tmp_path / f"{len(made)}", SMALL | settings, environment=environment))
        return made[-1]

    yield make
    for each in made:
        each.clear()


@pytest.fixture
def loads() -> Iterator[Callable[..., Load]]:
    """Start a producer; whatever the test does, it ends."""
    made: list[Load] = []

    def make(*words: str, **options: object) -> Load:
        made.append(Load(*words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.abandon()


@pytest.fixture
def followers() -> Iterator[Callable[[str], Follower]]:
    made: list[Follower] = []

    def make(endpoint: str) -> Follower:
        made.append(Follower(endpoint))
        return made[-1]

    yield make
    for each in made:
        each.abandon()


def _make_topic(broker: Broker) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        # each queue becomes known once, so there is one for each time that this is crashed at
        producer.create_topic("others", TIMES)
        for queue in range(TIMES):
            producer.send("others", b"other", queue=queue)


def _await_acked(load: Load, count: int) -> None:
    deadline = time.monotonic() + 30
    while load.count() < count:
        assert time.monotonic() < deadline, f"{load.count()} of {count} acknowledged"
        time.sleep(0.005)


def _finish_and_check(broker: Broker, sent: list[Load], follower: Follower) -> None:
    """Nothing is lost, twice, or disordered, for who followed either; and the store is whole."""
    for each in sent:
        each.finish()
        assert each.acked and not each.failed, each.failed[:1]
    broker.await_dispatched()
    stored = read_all(broker.consume)
    wrong = check_order(stored)
    for each in sent:
        wrong += check_acknowledged(each.acked, stored, f"messages of {each.name} are lost")
    assert wrong == []
    follower.await_counts({queue: len(bodies) for queue, bodies in stored.items()}, 30)
    follower.finish()
    assert follower.bodies == stored
    broker.stop()
    report = verify_store(broker.store)
    assert report.clean and report.problems == []


@pytest.mark.timeout(60 + 60 * TIMES)
@pytest.mark.parametrize(("flush", "pool"), [("sync", True), ("async", False)])
def test_an_actor_that_dies_at_any_point_costs_nothing(
    tmp_path: Path,
    brokers: Callable[..., Broker],
    loads: Callable[..., Load],
    followers: Callable[[str], Follower],
    dice: random.Random,
    flush: str,
    pool: bool,
) -> None:
    armed = Armed(tmp_path, ACTORS - (set() if pool else POOL_ONLY), dice, "crash")
    broker = brokers(armed, flush_disk_type=flush, transient_store_pool_enable=pool)
    broker.start()
    _make_topic(broker)
    follower = followers(broker.consume)
    sent = [loads(ack, broker.produce, ack=ack) for ack in ("durable", "written")]
    armed.await_all(broker)
    _finish_and_check(broker, sent, follower)
    armed.show()


@pytest.mark.timeout(60 + 60 * TIMES)
def test_a_cleaner_that_dies_at_any_point_deletes_what_has_expired_and_nothing_else(
    tmp_path: Path, brokers: Callable[..., Broker], loads: Callable[..., Load], dice: random.Random
) -> None:
    armed = Armed(tmp_path, CLEANER, dice, "crash")
    broker = brokers(armed, **EXPIRING)
    broker.start()
    _make_topic(broker)
    load = loads("p", broker.produce, rate=3000)
    armed.await_all(broker)
    load.finish()
    broker.await_dispatched()
    broker.stop()
    report = verify_store(broker.store)
    assert report.clean and report.problems == []
    with StoreDirectory(broker.store) as store:
        assert store.log_start > 0
        queues = [queue for queue in store.queues() if queue.topic == TOPIC]
        kept = {
            (queue.queue_id, queue.min_offset + number): digest(
                bytes(decode_record(store.read_log(int(row["offset"]), int(row["size"]))).body)
            )
            for queue in queues
            for number, row in enumerate(queue.entries(queue.min_offset, queue.max_offset))
        }
        begin = {queue.queue_id: queue.min_offset for queue in queues}
    expected = {
        (each.queue_id, each.queue_offset): each.digest
        for each in load.acked
        if each.queue_offset >= begin[each.queue_id]
    }
    assert kept == expected and load.failed == []
    armed.show()


def _tear(broker: Broker, dice: random.Random) -> bool:
    """Leave bytes behind the log's end, as a write that a crash cut off; whether there is room."""
    run = read_run(StorePaths(broker.store))
    assert run is not None
    positions = Positions(run.positions)
    wrote = positions["wrote"]
    positions.close()
    path = StorePaths(broker.store).commit_log / segment_name(wrote - wrote % SEGMENT_BYTES)
    if not path.exists() or wrote % SEGMENT_BYTES > SEGMENT_BYTES - 100:
        return False
    with path.open("r+b") as file:
        file.seek(wrote % SEGMENT_BYTES)
        file.write(dice.randbytes(30))
    return True


def _start_until_ready(broker: Broker) -> None:
    """Start again and again, until no point kills the start."""
    while True:
        broker.launch()
        try:
            broker.wait_ready()
            return
        except StoreUnavailable:
            assert broker.wait_end() == -SIGKILL, broker.output()
            _await_no_process(broker)


def _await_no_process(broker: Broker) -> None:
    deadline = time.monotonic() + 10
    while broker.processes():
        assert time.monotonic() < deadline, "actors die with the supervisor"
        time.sleep(0.01)


@pytest.mark.timeout(120 + 120 * TIMES)
def test_a_start_or_a_stop_that_dies_at_any_point_is_done_again(
    tmp_path: Path, brokers: Callable[..., Broker], loads: Callable[..., Load], dice: random.Random
) -> None:
    armed = Armed(tmp_path, SUPERVISOR, dice, "crash")
    broker = brokers(None, **LAZY)
    broker.start()
    _make_topic(broker)
    sent: list[Load] = []
    rounds = torn = 0
    while armed.missing():
        rounds += 1
        assert rounds < 6 + 6 * TIMES, f"not reached: {armed.missing()}\n{broker.output()}"
        sent.append(loads(f"d{rounds}", broker.produce, ack="durable"))
        _await_acked(sent[-1], 100)
        sent[-1].finish()
        sent.append(loads(f"w{rounds}", broker.produce, ack="written"))
        _await_acked(sent[-1], 600)
        sent[-1].abandon()
        if "sup.before_kill_old" in armed.missing() and broker.environment:
            broker.strike("reader", SIGSTOP)
            broker.process.wait(10)
        elif rounds % 2 == 0 or all(name.startswith("shutdown.") for name in armed.missing()):
            broker.process.terminate()
        else:
            broker.process.kill()
        broker.wait_end()
        _await_no_process(broker)
        if StorePaths(broker.store).abort.exists():
            torn += _tear(broker, dice)
        broker.environment = armed.environment
        _start_until_ready(broker)
    assert torn
    broker.stop()
    acked = [each for load in sent for each in load.acked]
    assert check_store(broker.store, broker.config, TOPIC, acked, []) == []
    armed.show()


@pytest.mark.timeout(60 + 60 * TIMES)
def test_an_actor_that_is_continued_when_its_successor_works_writes_nothing(
    tmp_path: Path,
    brokers: Callable[..., Broker],
    loads: Callable[..., Load],
    followers: Callable[[str], Follower],
    dice: random.Random,
) -> None:
    """It stands right in front of a store to its position: no look at its generation comes between.

    So there must be nobody to continue: it is gone before its successor is made.
    """
    armed = Armed(tmp_path, FROZEN_AT, dice, "stop")
    broker = brokers(armed)
    broker.start()
    _make_topic(broker)
    follower = followers(broker.consume)
    sent = [loads(name, broker.produce) for name in ("p1", "p2")]
    met: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while armed.missing() or len(met) < len(armed.fired()):
        assert time.monotonic() < deadline, f"not reached: {armed.missing()}"
        for _, pid in [row for row in armed.fired() if row[1] not in met]:
            while pid in broker.actors().values():
                assert time.monotonic() < deadline, "it is not replaced"
            with pytest.raises(ProcessLookupError):
                os.kill(pid, SIGCONT)
            met.add(pid)
    _finish_and_check(broker, sent, follower)
    armed.show()


def _damaged(broker: Broker) -> tuple[int, int]:
    """Damage a record in the middle of a stopped store's log, and leave a stray file; its place."""
    paths = StorePaths(broker.store)
    with StoreDirectory(broker.store) as store:
        (queue,) = [q for q in store.queues() if (q.topic, q.queue_id) == (TOPIC, 0)]
        middle = queue.max_offset // 2
        position = int(queue.entries(middle, middle + 1)[0]["offset"])
    at = position % SEGMENT_BYTES
    with (paths.commit_log / segment_name(position - at)).open("r+b") as file:
        file.seek(at)
        file.write(b"no record")
    (paths.queue(TOPIC, 1) / "stray").write_bytes(b"of nobody")
    return 0, middle


def _files(directory: Path) -> dict[str, bytes]:
    found = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.mark.timeout(60 + 60 * TIMES)
def test_a_repair_that_dies_at_any_point_is_done_again_with_the_same_result(
    tmp_path: Path, brokers: Callable[..., Broker], loads: Callable[..., Load], dice: random.Random
) -> None:
    armed = Armed(tmp_path, OFFLINE, dice, "crash")
    broker = brokers(None)
    broker.start()
    _make_topic(broker)
    load = loads("p", broker.produce)
    _await_acked(load, 600)
    load.finish()
    broker.await_dispatched()
    broker.stop()
    lost = _damaged(broker)
    damaged, undisturbed = tmp_path / "damaged", tmp_path / "undisturbed"
    for copy in (damaged, undisturbed):
        shutil.copytree(broker.store, copy)

    def repair(root: Path, environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", "penstock.cli.main", "store", "repair", str(root)]
        options = ["--apply", "--config", str(broker.store.parent / "broker.toml")]
        done = subprocess.run(
            [*command, *options], env={**os.environ, **environment}, capture_output=True, timeout=60
        )
        assert done.returncode in (0, -SIGKILL), done.stderr
        return done.returncode

    assert repair(undisturbed, {}) == 0
    environment = armed.environment
    while armed.missing():
        shutil.rmtree(broker.store)
        shutil.copytree(damaged, broker.store)
        before = len(armed.fired())
        while repair(broker.store, environment):
            pass
        assert len(armed.fired()) > before, f"not reached: {armed.missing()}"
        for part in ("commitlog", "consumequeue"):
            assert _files(broker.store / part) == _files(undisturbed / part)
    acked = [each for each in load.acked if (each.queue_id, each.queue_offset) != lost]
    assert len(acked) == len(load.acked) - 1
    broker.start()
    broker.stop()
    stored, wrong = read_stored(str(broker.store), TOPIC)
    assert wrong + check_acknowledged(acked, stored, "messages are lost") == []
    assert verify_store(broker.store).clean
    armed.show()
