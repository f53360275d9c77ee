"""Brokers as real processes, and load whose history is kept to be compared with what is stored.

`broker` makes brokers; each goes away at the end of its test, which fails when a process or shared
memory stays behind. `load` makes producers that send numbered messages and remember what was
acknowledged; `follow` makes consumers that remember what they saw.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.shared.broker_status import read_status
from penstock.shared.errors import PenstockError
from penstock.shared.index_file import Geometry
from penstock.shared.index_files import index_files
from penstock.shared.index_recovery import rebuild_index
from penstock.shared.layout import StorePaths
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.verify import verify_store

TOPIC = "chaos"
QUEUES = 4
INDEX = Geometry(slots=2000, items=4000)
READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 40
# small files, so that every boundary is met often
SETTINGS: dict[str, object] = {
    "produce_port": 0,
    "consume_port": 0,
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20 * 1000,
    "max_message_size_bytes": 64 << 10,
    "transient_store_pool_bytes": 8 << 20,
    "max_hash_slot_num": INDEX.slots,
    "max_index_num": INDEX.items,
}


class Broker:
    """`penstock up` on a store, in a process of its own."""

    def __init__(self, place: Path, settings: dict[str, object], wrap: tuple[str, ...]) -> None:
        self.store = place / "store"
        self.said = place / "stderr"
        self.run_directories: set[Path] = set()
        self._config = place / "broker.toml"
        self._mark = uuid.uuid4().hex
        self._wrap = wrap
        self.configure(settings)

    def configure(self, settings: dict[str, object]) -> None:
        lines = [f"{key} = {_toml(value)}" for key, value in (SETTINGS | settings).items()]
        self._config.write_text("\n".join(lines) + "\n")

    def launch(self, **options: Any) -> None:
        """Start the process and do not wait for it."""
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [*self._wrap, sys.executable, "-m", "penstock.cli.main", "up"]
                + ["--config", str(self._config), "--store", str(self.store)],
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, "PENSTOCK_CHAOS_MARK": self._mark},
                **options,
            )

    def start(self, **options: Any) -> float:
        """Start, and wait for the line that says it serves; the seconds that took."""
        began = time.monotonic()
        self.launch(**options)
        self.wait_ready()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        self.read_ready_line()
        self.run_directories.add(Path(self.status()["run_directory"]))

    def read_ready_line(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_TIMEOUT_S), f"not ready in time:\n{self.output()}"
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), f"{line!r}\n{self.output()}"
        found = dict(word.split("=", 1) for word in line.split()[1:])
        self.produce, self.consume = found["produce"], found["consume"]

    def status(self) -> dict[str, Any]:
        return read_status(self.store)

    def actors(self) -> dict[str, int]:
        """Name -> pid of the actors; 0 for one that is down right now."""
        return {actor["name"]: actor["pid"] for actor in self.status()["actors"]}

    def await_dispatched(self) -> None:
        """Wait until consumers can see everything that is stored."""
        deadline = time.monotonic() + 30
        while True:
            positions = self.status()["positions"]
            if positions["dispatched"] == positions["wrote"]:
                return
            assert time.monotonic() < deadline, positions
            time.sleep(0.01)

    def output(self) -> str:
        return self.said.read_text()

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Stop in order; the seconds that took. The store is clean then, and nothing stays."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.wait_end()
        took = time.monotonic() - began
        assert code == 0 and "the store is clean" in self.output(), f"{code}\n{self.output()}"
        assert self.leftovers() == []
        assert not StorePaths(self.store).abort.exists()
        return took

    def wait_end(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait(STOP_TIMEOUT_S)
        self.process.stdout.close()
        return code

    def kill(self) -> float:
        """kill -9 the supervisor; the seconds until all its actors were gone."""
        began = time.monotonic()
        self.process.kill()
        self.wait_end()
        while self.processes():
            assert time.monotonic() - began < 10, f"actors outlive the supervisor:\n{self.output()}"
        return time.monotonic() - began

    def processes(self) -> list[int]:
        """Living processes that this broker started, whoever their parent is now."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark in (entry / "environ").read_text():
                    found.append(int(entry.name))
            except (OSError, UnicodeDecodeError):
                continue  # gone, or not ours
        return found

    def shared_memory(self) -> list[Path]:
        """Run directories of this store, whether its run.json names them or not."""
        return [
            path.parent
            for path in Path("/dev/shm").glob("penstock-*/store")
            if path.read_text() == str(self.store.resolve())
        ]

    def leftovers(self) -> list[str]:
        """Processes and shared memory that are still there."""
        paths = [str(path) for path in {*self.run_directories, *self.shared_memory()}]
        paths = [path for path in paths if os.path.exists(path)]
        return [f"process {pid}" for pid in self.processes()] + paths

    def clear(self) -> None:
        """Whatever the test did: leave nothing."""
        if hasattr(self, "process"):
            self.process.kill()
            self.wait_end()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for path in self.run_directories | set(self.shared_memory()):
            shutil.rmtree(path, ignore_errors=True)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Make a broker that is not started yet: broker(flush_disk_type="async", ...)."""
    made: list[Broker] = []

    def make(wrap: tuple[str, ...] = (), **settings: object) -> Broker:
        place = tmp_path / f"broker-{len(made)}"
        place.mkdir()
        made.append(Broker(place, settings, wrap))
        return made[-1]

    yield make
    for each in made:
        each.clear()


class Load:
    """One producer with a thread that sends numbered messages to all queues in turn.

    Bodies are "<name>/<queue>/<number>/<filler>". `acked` has the queue offset of each message
    whose acknowledgement came, `failed` the error of each that had another outcome.
    """

    def __init__(self, name: str, endpoint: str, rate: int, ack: str, timeout_ms: int) -> None:
        self.name = name
        self.acked: dict[tuple[str, int, int], int] = {}
        self.failed: dict[tuple[str, int, int], PenstockError] = {}
        self.error: BaseException | None = None
        self._rate = rate
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._producer = Producer(endpoint, timeout_ms=timeout_ms, ack=ack)
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.wait(0.02):
                for _ in range(max(1, self._rate // 50)):
                    self._send(number % QUEUES, number)
                    number += 1
        except BaseException as error:
            self.error = error

    def _send(self, queue: int, number: int) -> None:
        size = (number * 7919) % 900
        if number % 97 == 0:
            size += 40_000
        body = f"{self.name}/{queue}/{number}/".encode() + bytes(size)
        future = self._producer.send(TOPIC, body, queue=queue, shard=None)
        key = (self.name, queue, number)
        future.add_done_callback(lambda done: self._settled(key, done))

    def _settled(self, key: tuple[str, int, int], future: Any) -> None:
        error = future.exception(0)
        with self._lock:
            if error is None:
                self.acked[key] = future.result(0).queue_offset
            else:
                self.failed[key] = error

    def count(self) -> int:
        with self._lock:
            return len(self.acked)

    def finish(self) -> None:
        """Stop sending and wait for every outcome."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(60)
        self._producer.close()
        assert self.error is None, self.error

    def abandon(self) -> None:
        """Stop sending, and wait for no outcome: the broker is gone."""
        self._stopping.set()
        self._thread.join()
        self._producer._disconnect()


@pytest.fixture
def load() -> Iterator[Callable[..., Load]]:
    """Start a producer: load("p1", broker.produce)."""
    made: list[Load] = []

    def make(
        name: str, endpoint: str, *, rate: int = 1500, ack: str = "", timeout_ms: int = 30_000
    ) -> Load:
        made.append(Load(name, endpoint, rate, ack, timeout_ms))
        return made[-1]

    yield make
    for each in made:
        each._stopping.set()
        each._thread.join()
        if not each._producer._closing:
            each._producer._disconnect()


class Follower:
    """A consumer with a thread that follows the topic; remembers what it saw, and when."""

    def __init__(self, endpoint: str) -> None:
        self.seen: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.error: BaseException | None = None
        self._news = threading.Condition()
        self._bodies: set[bytes] = set()
        self._stopping = False
        self._endpoint = endpoint
        self._thread = threading.Thread(target=self._run, name="follower")
        self._thread.start()

    def _run(self) -> None:
        try:
            with Consumer(self._endpoint, TOPIC) as consumer:
                while not self._stopping:
                    batch = consumer.poll(0.1)
                    with self._news:
                        for message in batch:
                            body = bytes(message.body)
                            self.seen[message.queue_id].append((message.queue_offset, body))
                            if body.startswith(b"probe"):
                                self._bodies.add(body)
                        self._news.notify_all()
        except BaseException as error:
            self.error = error

    def await_body(self, body: bytes, timeout: float) -> None:
        with self._news:
            assert self._news.wait_for(lambda: body in self._bodies or self.error, timeout), body
        assert self.error is None, self.error

    def await_counts(self, counts: dict[int, int], timeout: float) -> None:
        def there() -> bool:
            return all(len(self.seen[queue]) >= count for queue, count in counts.items())

        with self._news:
            assert self._news.wait_for(lambda: there() or self.error, timeout), {
                queue: (len(self.seen[queue]), count) for queue, count in counts.items()
            }

    def finish(self) -> None:
        self._stopping = True
        self._thread.join()
        assert self.error is None, self.error


@pytest.fixture
def follow() -> Iterator[Callable[[str], Follower]]:
    """Start a consumer that follows the topic: follow(broker.consume)."""
    made: list[Follower] = []

    def make(endpoint: str) -> Follower:
        made.append(Follower(endpoint))
        return made[-1]

    yield make
    for each in made:
        each._stopping = True
        each._thread.join()


Stored = dict[int, list[tuple[int, bytes]]]


@pytest.fixture
def read_all() -> Callable[[str], Stored]:
    """Everything the topic holds, read from the start: queue -> [(offset, body), ...]."""

    def read(endpoint: str) -> Stored:
        stored: Stored = defaultdict(list)
        with Consumer(endpoint, TOPIC, follow=False) as consumer:
            for message in consumer:
                stored[message.queue_id].append((message.queue_offset, bytes(message.body)))
        return stored

    return read


@pytest.fixture
def check_history() -> Callable[..., None]:
    """Hold what producers were told against what is stored: nothing lost, twice, or disordered.

    With `all_acked` no message may have had another outcome than an acknowledgement.
    """

    def check(loads: list[Load], stored: Stored, *, all_acked: bool = True) -> None:
        places: dict[tuple[str, int, int], int] = {}
        for queue, found in stored.items():
            assert [offset for offset, _ in found] == list(range(len(found))), f"queue {queue}"
            newest: dict[str, int] = {}
            for offset, body in found:
                name, of_queue, number = body.split(b"/")[:3]
                key = (name.decode(), int(of_queue), int(number))
                assert key not in places, f"{key} is stored at {places[key]} and at {offset}"
                assert key[1] == queue
                before = newest.get(key[0], -1)
                assert before < key[2], f"{key} stands behind number {before} in queue {queue}"
                newest[key[0]] = key[2]
                places[key] = offset
        for each in loads:
            assert each.acked, f"{each.name} had no message acknowledged"
            lost = [key for key in each.acked if key not in places]
            assert lost == [], f"{len(lost)} acknowledged messages are lost, first {lost[:3]}"
            moved = {key: (at, places[key]) for key, at in each.acked.items() if places[key] != at}
            assert moved == {}, "acknowledged with another offset"
            if all_acked:
                assert each.failed == {}, list(each.failed.items())[:3]

    return check


@pytest.fixture
def check_store(tmp_path: Path) -> Callable[[Broker], None]:
    """The checker of store directories finds nothing wrong in a stopped store.

    And its index is, byte for byte, the one that the log gives: each key is in it once.
    """

    def check(broker: Broker) -> None:
        report = verify_store(broker.store, index=INDEX)
        assert report.clean and report.problem_count == 0, report.problems
        assert not any("repeat a UNIQ_KEY" in note for note in report.notes), report.notes
        again = tmp_path / "rebuilt"
        again.mkdir()
        with StoreDirectory(broker.store) as store:
            rebuild_index(store, again / "index", again, INDEX, lambda: 0)
        kept, rebuilt = index_files(broker.store / "index"), index_files(again / "index")
        assert len(kept) == len(rebuilt)
        for ours, expected in zip(kept, rebuilt, strict=True):
            assert ours.read_bytes() == expected.read_bytes(), ours.name

    return check
