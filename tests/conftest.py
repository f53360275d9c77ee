"""Fixtures for the whole suite. Helpers are fixtures, because test modules import nothing here."""

from __future__ import annotations

import gc
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from forked_starts import Forks
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from memory_files import MemoryFiles

from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.formats.record_outline import entry_tags_code, outline
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.positions import create_positions
from penstock.shared.memory.queue_table import QueueTable, create_queue_table
from penstock.shared.memory.run_directory import (
    Endpoints,
    Run,
    boot_id,
    read_run,
    remove_run_directory,
)
from penstock.shared.memory.transient_store_pool import create_pool
from penstock.shared.process.broker_status import read_status
from penstock.shared.recovery.cut_queues import recover_queues
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

# A shell starts what runs in the background with SIGINT ignored, and nohup with SIGHUP; brokers
# would inherit that, and they are to be stopped by both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# pytest takes longer to compile a test file than to import it, and each worker imports all of them:
# what one worker has compiled is kept for the others, as `make` keeps the product's.
sys.dont_write_bytecode = False
# What is collected stays: to look for garbage in it would take a third of the time of collecting.
gc.disable()


def pytest_collection_finish() -> None:
    """Now tests run, and make garbage."""
    gc.freeze()
    gc.enable()


# In these folders commands are forks of a process that has imported everything. In bench/, which
# measures, and where they are few, they start as a user's do.
FORKED = (
    *("actors", "chaos", "cli", "client", "dataframes", "golden"),
    *("maintenance", "shared", "spark"),
)
forks = Forks()
# In these, files are in memory.
IN_MEMORY = ("maintenance", "shared")
memory_files = MemoryFiles()


def pytest_configure() -> None:
    forks.install()


def pytest_unconfigure() -> None:
    forks.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    is_start = item.get_closest_marker("true_starts") is not None
    # `make coverage` measures what it starts
    forks.is_wanted = (
        folder in FORKED and not is_start and "COVERAGE_PROCESS_CONFIG" not in os.environ
    )
    memory_files.use(_places_of(item.config), folder in IN_MEMORY)


def _places_of(config: pytest.Config) -> pytest.TempPathFactory:
    factory: pytest.TempPathFactory = vars(config)["_tmp_path_factory"]
    return factory


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    cache = getattr(session.config, "cache", None)  # `-p no:cacheprovider` takes it away
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("penstock/ended", int(exitstatus))  # for .ci/again
    memory_files.close(_places_of(session.config), failed=exitstatus != 0)


# With this archive (tests/spark/class_archive.py) every Spark that tests start takes half the time.
# None of its JVMs lives long enough to gain from a better compiler.
CLASSES = Path(sys.prefix, "spark.jsa")
if CLASSES.exists():
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:SharedArchiveFile={CLASSES} {quick}"

# A test means the broker that it names, and no other that runs on this machine or is saved.
os.environ["PENSTOCK_CONTEXT"] = "none"
os.environ.pop("PENSTOCK_ENDPOINT", None)

STORED_MS = 1700000001456
# only what hangs takes that long, however busy the machine
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
StoreBuilder = Callable[..., Path]
RecordMaker = Callable[..., Record]
RunMaker = Callable[..., Run]

# the same examples each time: a failure here is a failure everywhere
settings.register_profile(
    "penstock",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("penstock")
# Hypothesis also draws constants from the modules that a process has loaded, which depend on the
# tests that the worker has run before. Older versions do not do that.
if hasattr(providers, "_get_local_constants"):
    vars(providers)["_get_local_constants"] = lambda: providers._local_constants


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many test files run at once with `-n auto`: many tests wait for a disk or a clock, so it
    takes two more than there are cores to keep those busy."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What one worker runs as a unit: a file, as its tests may share a broker; and all files of
    Spark together, as a session costs a JVM of 400 MiB and seconds to start. Only the cluster's
    file is its own unit: it does not use that session, and takes as long as half of the others."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            of_session = file.startswith("tests/spark/") and not file.endswith("/test_cluster.py")
            return "spark" if of_session else file

    # the order is that of `pytest_collection_modifyitems`
    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files begin first, so that none runs alone in the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_takes_s, reverse=True)


def _takes_s(item: pytest.Item) -> float:
    marks = [mark.args[0] for mark in item.iter_markers("takes")]
    return max(marks, default=0)


@pytest.fixture
def own_clock() -> Callable[..., float]:
    """A process's own time in seconds: own_clock(pid), or own_clock() for this process.

    It stands still while threads of the process wait for a CPU that others have. So it measures
    what the process did and waited for, whatever else the machine is doing.
    """
    # of ended threads, too: else the time that they waited would count as the process's own again
    waited_ns: dict[Path, int] = {}

    def clock(pid: int | None = None) -> float:
        threads = Path(f"/proc/{pid or os.getpid()}/task")
        for thread in threads.glob("*/schedstat"):
            with suppress(OSError):  # it has just ended
                waited_ns[thread] = int(thread.read_text().split()[1])
        waited = sum(ns for thread, ns in waited_ns.items() if thread.is_relative_to(threads))
        return time.monotonic() - waited / 1e9

    return clock


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets and runs, whose paths must be short; `tmp_path` need not be."""
    with tempfile.TemporaryDirectory(prefix="test-") as place:
        yield Path(place)


@pytest.fixture
def make_record() -> RecordMaker:
    """A record with the fields of the golden vectors, changed by keyword."""

    def make(**changes: object) -> Record:
        golden = Record(
            topic="orders",
            body=b"hello world",
            born_timestamp_ms=1700000000123,
            born_host=bytes([10, 1, 2, 3]) + (54321).to_bytes(4, "big"),
            store_host=bytes([192, 168, 7, 9]) + (10911).to_bytes(4, "big"),
        )
        return msgspec.structs.replace(golden, **changes)

    return make


@pytest.fixture
def store_builder(tmp_path: Path) -> StoreBuilder:
    """Write a store directory as RocketMQ would for these records; returns its root.

    Each record gets its queue's next offset, its place in the log and, where it has none, a store
    time. `first_offsets` lets queues begin later than at 0, `base` the log.
    """

    def build(
        records: Iterable[Record],
        *,
        segment_bytes: int = 4096,
        queue_segment_bytes: int = 1000,
        base: int = 0,
        first_offsets: dict[tuple[str, int], int] | None = None,
        queues: bool = True,
        checkpoint: bool = True,
        unclean: bool = False,
    ) -> Path:
        paths = StorePaths(tmp_path / "store")
        for directory in (paths.commit_log, paths.consume_queue):
            directory.mkdir(parents=True)
        log, entries, newest_ms = _lay_out(records, segment_bytes, base, first_offsets or {})
        _write_segments(paths.commit_log, log, base, segment_bytes)
        for (topic, queue_id), (first, rows) in entries.items() if queues else ():
            at = first * ENTRY.size
            lead = at - at % queue_segment_bytes
            blanks = ENTRY.pack(0, 0x7FFFFFFF, 0) * ((at - lead) // ENTRY.size)
            raw = bytearray(blanks + b"".join(rows))
            _write_segments(paths.queue(topic, queue_id), raw, lead, queue_segment_bytes)
        if checkpoint:
            page = encode_checkpoint(Checkpoint(newest_ms, newest_ms, newest_ms))
            paths.checkpoint.write_bytes(page)
        paths.lock.write_bytes(b"lock")
        if unclean:
            paths.abort.write_bytes(b"4711")
        return paths.root

    return build


def _lay_out(
    records: Iterable[Record],
    segment_bytes: int,
    base: int,
    first_offsets: dict[tuple[str, int], int],
) -> tuple[bytearray, dict[tuple[str, int], tuple[int, list[bytes]]], int]:
    """The log's bytes, each queue's first offset and entries, and the newest store time."""
    log = bytearray()
    entries: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
    newest_ms = 0
    for number, record in enumerate(records):
        key = (record.topic, record.queue_id)
        left = segment_bytes - len(log) % segment_bytes
        if len(encode_record(record)) + BLANK.size > left:
            log += BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
        first = first_offsets.get(key, 0)
        stored = record.store_timestamp_ms or STORED_MS + number
        raw = encode_record(
            msgspec.structs.replace(
                record,
                queue_offset=first + len(entries[key][1]) if key in entries else first,
                physical_offset=base + len(log),
                store_timestamp_ms=stored,
            )
        )
        fields = outline(memoryview(raw))
        if fields.is_queued:
            entry = ENTRY.pack(base + len(log), len(raw), entry_tags_code(fields))
            entries.setdefault(key, (first, []))[1].append(entry)
        log += raw
        newest_ms = max(newest_ms, stored)
    return log, entries, newest_ms


def _write_segments(directory: Path, raw: bytearray, base: int, size: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(raw), size):
        whole = bytes(raw[at : at + size]).ljust(size, b"\0")
        (directory / segment_name(base + at)).write_bytes(whole)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., Config]:
    """A configuration for a store in the test's directory: small files, changed by keyword."""

    def make(**changes: object) -> Config:
        small = Config(
            store_path_root_dir=str(tmp_path / "store"),
            mapped_file_size_commit_log_bytes=4096,
            mapped_file_size_consume_queue_bytes=1000,
            transient_store_pool_bytes=8192,
            max_queues=64,
            produce_port=0,
            consume_port=0,
            group_port=0,
            transaction_port=0,
            gateway_enable=False,
            monitor_port=0,
        )
        return msgspec.structs.replace(small, **changes)

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    """The shared memory of a run that has no processes, in the test's directory."""

    def make(config: Config) -> Run:
        directory = tmp_path / f"penstock-{len(list(tmp_path.glob('penstock-*'))):016x}"
        directory.mkdir()
        run = Run(
            run_id=directory.name.removeprefix("penstock-"),
            boot_id=boot_id(),
            directory=str(directory),
            supervisor_pid=os.getpid(),
            started_ms=STORED_MS,
            endpoints=Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "ipc://p", "ipc://c"),
            pool_enabled=config.transient_store_pool_enable,
        )
        create_positions(run.positions)
        create_queue_table(run.queues, config.max_queues)
        if run.pool_enabled:
            create_pool(run.pool, config.transient_store_pool_bytes)
        return run

    return make


class Broker:
    """`penstock up` in a process of its own, on any free ports."""

    def __init__(self, place: Path, configuration: str) -> None:
        self.store = place / "store"
        file = place / "broker.toml"
        file.write_text(configuration)
        self.said = place / "stderr"
        arguments = ["up", "--config", str(file), "--store", str(self.store)]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", *arguments],
                stdout=subprocess.PIPE,
                stderr=said,
            )
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _await_ready(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_TIMEOUT_S), f"not ready:\n{self.said.read_text()}"
        self.ready = self.process.stdout.readline().decode()
        assert self.ready.startswith("ready "), f"{self.ready!r}\n{self.said.read_text()}"
        words = dict(word.split("=", 1) for word in self.ready.split()[1:])
        self.produce, self.consume = words["produce"], words["consume"]
        self.monitor = words.get("monitor", "")

    def stop(self) -> int:
        self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            run = read_run(StorePaths(self.store))
            if run is not None:
                remove_run_directory(run)  # still there only after a stop that was not in order
        return code

    def status(self) -> dict[str, Any]:
        return read_status(self.store)

    def kill(self) -> None:
        """SIGKILL: the actors go with it."""
        self.process.kill()
        self.process.wait()


# small files, so that tests meet their boundaries
BROKER = {
    "produce_port": 0,
    "consume_port": 0,
    "group_port": 0,
    "transaction_port": 0,
    "gateway_enable": "false",
    "monitor_enable": "false",
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20_000,
    "max_message_size_bytes": 65_536,
    "transient_store_pool_bytes": 8 << 20,
}


@contextmanager
def _running_broker(place: Path, settings: dict[str, object]) -> Iterator[Broker]:
    """A broker that must stop in good order, and whose actors must not fail, whatever is sent."""
    # a setting that is None keeps its default
    given = {key: value for key, value in (BROKER | settings).items() if value is not None}
    running = Broker(place, "\n".join(f"{key} = {value}" for key, value in given.items()))
    try:
        yield running
    finally:
        code = running.stop()
    said = running.said.read_text()
    assert code == 0 and "the store is clean" in said, said
    assert "starting another" not in said and "replacing it" not in said, said


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for all tests of a module, which use topics of their own."""
    with _running_broker(tmp_path_factory.mktemp("broker"), {}) as running:
        yield running


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The same with a monitor, at any free port."""
    settings: dict[str, object] = {"monitor_enable": "true", "monitor_port": 0}
    with _running_broker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture
def broker_in() -> Iterator[Callable[..., Broker]]:
    """Start a broker on `store` in a directory, again and again; the test says how it ends."""
    brokers: list[Broker] = []

    def start(place: Path, **settings: object) -> Broker:
        lines = [f"{key} = {value}" for key, value in (BROKER | settings).items()]
        brokers.append(Broker(place, "\n".join(lines)))
        return brokers[-1]

    yield start
    for running in brokers:
        running.stop()


def _start_brokers(places: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    with ExitStack() as brokers:

        def start(place: Path | None = None, **settings: object) -> Broker:
            place = place or places.mktemp("broker")
            return brokers.enter_context(_running_broker(place, settings))

        yield start


@pytest.fixture
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """Start a broker for one test, with settings of its own, as TOML has them.

    Its store is `place`/store, which may be there already; a new place unless one is given.
    """
    yield from _start_brokers(tmp_path_factory)


@pytest.fixture(scope="module")
def start_shared_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Broker]]:
    """As `start_broker`, for what all tests of a module share."""
    yield from _start_brokers(tmp_path_factory)


# --- a stopped store, and the ways to look at it ---

SEGMENT = 4096
RECORD = Kind.RECORD


class StoppedStore(NamedTuple):
    """A store directory, and the ways to look at it."""

    paths: StorePaths
    config: Config

    def recover(self, last_run: Run | None = None) -> Recovered:
        with StoreSurvey(self.paths, self.config) as survey:
            return recover_store(survey, last_run)

    def recover_queues(
        self, good_to: int | None, table: QueueTable, config: Config | None = None
    ) -> int:
        with StoreSurvey(self.paths, config or self.config) as survey:
            return recover_queues(survey, good_to, table)

    def contents(self) -> dict[str, bytes]:
        """Every file, by path, except the marker that a start has begun."""
        return {
            str(path.relative_to(self.paths.root)): path.read_bytes()
            for path in sorted(self.paths.root.rglob("*"))
            if path.is_file() and path != self.paths.starting
        }

    def log(self) -> bytearray:
        return bytearray(
            b"".join(path.read_bytes() for path in sorted(self.paths.commit_log.iterdir()))
        )

    def write_log(self, raw: bytes | bytearray) -> None:
        for number, path in enumerate(sorted(self.paths.commit_log.iterdir())):
            path.write_bytes(raw[number * SEGMENT : (number + 1) * SEGMENT])

    def starts(self) -> list[int]:
        """Where records begin, and where the last one ends."""
        with StoreDirectory(self.paths.root) as store:
            steps = [(at, size) for at, found, size, _, _ in store.scan_log() if found is RECORD]
        return [*(at for at, _ in steps), sum(steps[-1])]


@pytest.fixture
def stopped_store(
    store_builder: Callable[..., Path], make_config: Callable[..., Config]
) -> Callable[..., StoppedStore]:
    def make(records: list[Record], **layout: object) -> StoppedStore:
        paths = StorePaths(store_builder(records, segment_bytes=SEGMENT, **layout))
        paths.staging.mkdir(parents=True)
        return StoppedStore(paths, make_config())

    return make


@pytest.fixture
def twelve(make_record: Callable[..., Record]) -> list[Record]:
    """Records of two queues that fill a segment and begin another."""
    return [
        make_record(queue_id=number % 2, body=bytes([65 + number]) * 400) for number in range(12)
    ]


@pytest.fixture
def as_stopped() -> Callable[[StorePaths, Config], StoppedStore]:
    """Any directory as a stopped store."""
    return StoppedStore


@pytest.fixture
def wreckable(
    store_builder: Callable[..., Path],
    twelve: list[Record],
    as_stopped: Callable[..., StoppedStore],
) -> Callable[[Path], StoppedStore]:
    """An unclean store in a directory of its own, each time the same."""
    template = store_builder(twelve, segment_bytes=SEGMENT, unclean=True)

    def make(place: Path) -> StoppedStore:
        paths = StorePaths(shutil.copytree(template, place / "store"))
        paths.staging.mkdir(parents=True)
        small = Config(
            store_path_root_dir=str(paths.root),
            mapped_file_size_commit_log_bytes=SEGMENT,
            mapped_file_size_consume_queue_bytes=1000,
            max_hash_slot_num=20,
            max_index_num=50,
        )
        return StoppedStore(paths, small)

    return make
