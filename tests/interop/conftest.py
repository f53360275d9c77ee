"""Real RocketMQ brokers, the official client, and Penstock brokers, all on the same directories.

`place` is a store directory with the ports of whoever serves it. `rocketmq` starts RocketMQ's name
server and broker on it, `penstock` Penstock's broker; `client` is RocketMQ's own client. Each Java
program ends with its stdin, so none outlives the tests. What is sent and how it is compared is in
stores/.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run, remove_run_directory

HERE = Path(__file__).parent
RUN = HERE / "rocketmq" / "run.sh"
# how the programs are run for a line of RocketMQ
LINES = {"5.3": [RUN], "4.9": [RUN, "--4.9"]}
BROKER_NAME = "interop"
START_TIMEOUT_S = 300
ANSWER_TIMEOUT_S = 300
# what both sides must be told alike: no file says it
LOG_BYTES = 4 << 20
QUEUE_BYTES = 20 * 1000
SLOTS, ITEMS = 5000, 20_000
SIZES = (LOG_BYTES, QUEUE_BYTES, SLOTS, ITEMS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many messages each test compared, and how long that took."""
    total = 0
    terminalreporter.section("messages, each the same on both sides")
    for report in terminalreporter.getreports("passed"):
        found = dict(report.user_properties).get("messages", 0) if report.when == "call" else 0
        if found:
            total += found
            name = report.nodeid.rpartition("/")[2]
            terminalreporter.write_line(f"{found:7} in {report.duration:5.1f} s  {name}")
    terminalreporter.write_line(f"{total:7} in all")


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """The Java programs, built once; Maven asks its repository when it has not all of it yet.

    Processes of tests build one after the other; there is nothing left to do for the second.
    """
    with RUN.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for run in LINES.values():
            subprocess.run([*run, "--build"], check=True, timeout=600, stdin=subprocess.DEVNULL)


class Jvm:
    """A Java program that takes orders on stdin, answers in lines, and ends with its stdin."""

    def __init__(self, said: Path, *arguments: str, line: str = "5.3", options: str = "") -> None:
        """`options` are for the JVM."""
        self.said = said
        with said.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*LINES[line], *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "JAVA_OPTIONS": options},
            )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line; a program that ends or is silent fails the test with what it said."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            heard = selector.select(timeout_s)
        line = self.process.stdout.readline() if heard else b""
        if not line:
            self.kill()
        assert line, f"no answer (exit {self.process.poll()}):\n{self.said.read_text()[-4000:]}"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return code


@dataclass
class Place:
    """A store directory, and the port its broker has whichever side runs it: ids name that port."""

    directory: Path
    port: int = 0
    name_server_port: int = 0
    ip: str = "127.0.0.1"
    files: list[Path] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def name_server(self) -> str:
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{self.name_server_port}"

    def ask_classes(
        self, line: str, name: str, sizes: Sequence[int] | None = None, *files: Path
    ) -> list[Any]:
        """What a class of the golden stores' maker prints about a copy of the store.

        `line` is 5.3 or 4.9, `sizes` are those of log and queue segments, slots and items.
        """
        copy = self.file(f"copy-{line}")
        shutil.copytree(self.store, copy)
        program = f"penstock.golden.{name}"
        command = [str(word) for word in (*LINES[line], program, copy, *files, *(sizes or SIZES))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S)
        shutil.rmtree(copy)
        assert done.returncode == 0, f"{done.stdout[:300]}\n{done.stderr[-3000:]}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    def file(self, name: str) -> Path:
        """A new file's path, each time another one."""
        self.files.append(self.directory / f"{len(self.files):03}-{name}")
        return self.files[-1]


def _blocks() -> Iterator[int]:
    """The first of each five ports of this process of tests, in an order that chance decides."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4
    start = 20_000 + 2_500 * worker
    blocks = list(range(start, start + 2_500, 5))
    random.SystemRandom().shuffle(blocks)
    yield from blocks


_BLOCKS = _blocks()


def _free_ports() -> tuple[int, int]:
    """A port that is free together with its neighbours, which RocketMQ also takes, and one more.

    None is given twice, and another process of tests looks among other ports: a broker takes its
    own only seconds later.
    """
    while True:
        first = next(_BLOCKS)
        sockets = [socket.socket() for _ in range(5)]
        try:
            for each, port in zip(sockets, range(first, first + 5), strict=True):
                each.bind(("127.0.0.1", port))
            return first + 2, first + 4
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, *_free_ports())
    yield made
    shutil.rmtree(made.directory)  # these are large


@pytest.fixture
def other_place(tmp_path: Path) -> Iterator[Place]:
    """For a second broker beside the one of `place`."""
    (tmp_path / "other").mkdir()
    made = Place(tmp_path / "other", *_free_ports())
    yield made
    shutil.rmtree(made.directory)


class RocketMQ:
    """RocketMQ's name server and broker on a place's store."""

    def __init__(self, place: Place, properties: dict[str, object]) -> None:
        self.place = place
        common = {"bindAddress": place.ip}
        name_server = common | {"listenPort": place.name_server_port}
        broker = common | {
            "brokerClusterName": "interop",
            "brokerName": BROKER_NAME,
            "brokerIP1": place.ip,
            "listenPort": place.port,
            "namesrvAddr": place.name_server,
            "storePathRootDir": place.store,
            "storePathCommitLog": place.store / "commitlog",
            "mappedFileSizeCommitLog": LOG_BYTES,
            "mappedFileSizeConsumeQueue": QUEUE_BYTES,
            "maxHashSlotNum": SLOTS,
            "maxIndexNum": ITEMS,
            # a busy machine is no reason to refuse a message
            "waitTimeMillsInSendQueue": 20_000,
            "osPageCacheBusyTimeOutMills": 20_000,
        }
        self._jvm = Jvm(
            place.file("rocketmq.txt"),
            "penstock.interop.Servers",
            str(self._file("nameserver", name_server)),
            str(self._file("broker", broker | properties)),
        )

    def _file(self, name: str, properties: dict[str, object]) -> Path:
        file = self.place.file(f"{name}.properties")
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return file

    def await_ready(self) -> None:
        assert self._jvm.hear(START_TIMEOUT_S) == {"ready": True}

    def stop(self) -> None:
        """Stop in order."""
        self._jvm.tell("stop")
        assert self._jvm.hear(START_TIMEOUT_S) == {"stopped": True}
        assert self._jvm.wait() == 0
        assert not StorePaths(self.place.store).abort.exists()

    def kill(self) -> None:
        """kill -9, in the middle of whatever it does."""
        if self._jvm.process.returncode is None:
            self._jvm.kill()


@pytest.fixture
def rocketmq() -> Iterator[Callable[..., RocketMQ]]:
    """Start a real broker: rocketmq(place, enabledAppendPropCRC="true", ...)."""
    started: list[RocketMQ] = []

    def start(place: Place, **properties: object) -> RocketMQ:
        started.append(RocketMQ(place, properties))
        started[-1].await_ready()
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Penstock with a gateway, and a real broker, for all tests of a file."""
    places = [Place(tmp_path_factory.mktemp(name), *_free_ports()) for name in ("ours", "theirs")]
    ours, theirs = places
    settings = {"gateway_enable": True, "gateway_port": ours.port, "broker_name": BROKER_NAME}
    settings |= {"gateway_name_server_port": ours.name_server_port, "produce_port": 0}
    settings |= {"cluster_name": BROKER_NAME, "transaction_check_interval_ms": 500}
    settings |= {"transaction_time_out_ms": 500}
    more = {"enablePropertyFilter": "true", "traceTopicEnable": "true"}
    more |= {"transactionCheckInterval": "1000", "transactionTimeOut": "4000"}
    running = Penstock(ours, settings), RocketMQ(theirs, dict[str, object](more))
    try:
        for each in running:
            each.await_ready()
        yield ours, theirs
    finally:
        for each in running:
            each.kill()
        running[0].forget_memory()
        for place in places:
            shutil.rmtree(place.directory)


class Client:
    """RocketMQ's client; what it is asked for and answers is in rocketmq/java/.../Client.java."""

    def __init__(self, said: Path, line: str = "5.3", options: str = "") -> None:
        self._jvm = Jvm(said, "penstock.interop.Client", line=line, options=options)

    def begin(self, op: str, **order: object) -> None:
        self._jvm.tell(json.dumps({"op": op, **order}, default=str))

    def finish(self) -> Any:
        answer = self._jvm.hear(ANSWER_TIMEOUT_S)
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def ask(self, op: str, **order: object) -> Any:
        self.begin(op, **order)
        return self.finish()

    def open(self, place: Place) -> None:
        offsets = place.directory / "client-offsets"
        self.ask("open", name_server=place.name_server, broker=BROKER_NAME, offsets=offsets)

    def end(self) -> None:
        self._jvm.kill()


@pytest.fixture
def java() -> Iterator[Callable[..., Client]]:
    """Start the official client of a line: java(place, "4.9")."""
    started: list[Client] = []

    def start(place: Place, line: str = "5.3", options: str = "") -> Client:
        started.append(Client(place.file("client.txt"), line, options))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def client(place: Place, java: Callable[..., Client]) -> Client:
    return java(place)


class Penstock:
    """`penstock up` on a place's store."""

    def __init__(self, place: Place, settings: dict[str, object]) -> None:
        self.place = place
        self.said = place.file("penstock.txt")
        known = {
            "mapped_file_size_commit_log_bytes": LOG_BYTES,
            "mapped_file_size_consume_queue_bytes": QUEUE_BYTES,
            "max_hash_slot_num": SLOTS,
            "max_index_num": ITEMS,
            "broker_ip": place.ip,
            "produce_port": place.port,
            "consume_port": 0,
            "group_port": 0,
            "transaction_port": 0,
            "gateway_enable": False,
            "monitor_enable": False,
        }
        arguments = ["up", "--store", str(place.store)]
        for key, value in (known | settings).items():
            word = value if isinstance(value, str) else str(value).lower()
            arguments += ["--set", f"{key}={word}"]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", *arguments],
                stdout=subprocess.PIPE,
                stderr=said,
            )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(START_TIMEOUT_S), f"not ready:\n{self.said.read_text()}"
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), f"{line!r}\n{self.said.read_text()}"
        words = dict(word.split("=", 1) for word in line.split()[1:])
        self.produce, self.consume = words["produce"], words["consume"]

    def stop(self) -> None:
        """Stop in order."""
        self.process.terminate()
        self._end()
        said = self.said.read_text()
        assert self.process.returncode == 0 and "the store is clean" in said, said
        assert not StorePaths(self.place.store).abort.exists()

    def kill(self) -> None:
        """kill -9 of the supervisor, so that nobody is replaced, and of all actors at once."""
        if self.process.returncode is None:
            actors = psutil.Process(self.process.pid).children(recursive=True)
            for each in (self.process, *actors):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self._end()
            psutil.wait_procs(actors, 30)

    def _end(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def forget_memory(self) -> None:
        """As if the machine had gone down: what was only in shared memory is no more."""
        run = read_run(StorePaths(self.place.store))
        if run is not None:
            remove_run_directory(run)


@pytest.fixture
def penstock() -> Iterator[Callable[..., Penstock]]:
    """Start Penstock's broker: penstock(place, flush_disk_type="async", ...)."""
    started: list[Penstock] = []

    def start(place: Place, **settings: object) -> Penstock:
        started.append(Penstock(place, settings))
        started[-1].await_ready()
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.forget_memory()


@pytest.fixture
def sizes() -> tuple[int, int]:
    """Bytes of a commit log segment, and of one of a consume queue."""
    return LOG_BYTES, QUEUE_BYTES
