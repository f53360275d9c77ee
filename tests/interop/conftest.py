"""Real RocketMQ brokers, the official client, and Penstock brokers, all on the same directories.

`place` is a store directory with the ports of whoever serves it. `rocketmq` starts RocketMQ's name
server and broker on it, `penstock` a broker of ours; `client` is RocketMQ's own client. Each
runs in a JVM that ends with its stdin, so none outlives the tests. Messages are compared as
rows: the dictionaries that `penstock store inspect -o json` prints, by (topic, queue, offset).
"""

from __future__ import annotations

import json
import random
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.cli.store_records import row
from penstock.client.consumer import Consumer
from penstock.client.encoding import BatchMessage
from penstock.client.message import Message
from penstock.client.producer import Producer, SendFuture
from penstock.client.query import MessageQuery
from penstock.shared.consume_queue import SCHEDULE_TOPIC
from penstock.shared.errors import PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.log_scan import Step
from penstock.shared.record import SYS_COMPRESSED, Found, decode_record
from penstock.shared.run_directory import read_run, remove_run_directory
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.verify import verify_store

HERE = Path(__file__).parent
RUN_53 = HERE / "rocketmq" / "run.sh"
RUN_49 = HERE.parent / "golden" / "maker" / "run.sh"
BROKER_NAME = "interop"
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 240
# what both sides must be told alike: no file says it
LOG_BYTES = 4 << 20
QUEUE_BYTES = 20 * 1000
SLOTS, ITEMS = 5000, 20_000
SIZES = (LOG_BYTES, QUEUE_BYTES, SLOTS, ITEMS)

Key = tuple[str, int, int]  # topic, queue, offset
Rows = dict[Key, dict[str, Any]]
Wanted = dict[str, Any]  # a message to be sent, as rocketmq/java/.../Sending.java describes it


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
    """The Java programs, built once; Maven asks its repository when it has not all of it yet."""
    subprocess.run([RUN_53, "--build"], check=True, timeout=600, stdin=subprocess.DEVNULL)


class Jvm:
    """A Java program that takes orders on stdin, answers in lines, and ends with its stdin."""

    def __init__(self, said: Path, *arguments: str) -> None:
        self.said = said
        with said.open("ab") as stderr:
            self.process = subprocess.Popen(
                [RUN_53, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
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

    def file(self, name: str) -> Path:
        """A new file's path, each time another one."""
        self.files.append(self.directory / f"{len(self.files):03}-{name}")
        return self.files[-1]


def _free_ports() -> tuple[int, int]:
    """A port that is free together with its neighbours, which RocketMQ also takes, and one more."""
    while True:
        first = random.SystemRandom().randrange(20_000, 30_000)
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
    # RM    shutil.rmtree(made.directory, ignore_errors=True)  # these are large


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


class Client:
    """RocketMQ's client; what it is asked for and answers is in rocketmq/java/.../Client.java."""

    def __init__(self, said: Path) -> None:
        self._jvm = Jvm(said, "penstock.interop.Client")

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
        self.ask("open", name_server=place.name_server, broker=BROKER_NAME)

    def end(self) -> None:
        self._jvm.kill()


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    running = Client(place.file("client.txt"))
    yield running
    running.end()


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
        }
        arguments = ["up", "--store", str(place.store)]
        for key, value in (known | settings).items():
            arguments += ["--set", f"{key}={str(value).lower()}"]
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
    """Start a broker of ours: penstock(place, flush_disk_type="async", ...)."""
    started: list[Penstock] = []

    def start(place: Place, **settings: object) -> Penstock:
        started.append(Penstock(place, settings))
        started[-1].await_ready()
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.forget_memory()


def _of(found: dict[str, Any]) -> Key:
    return found["topic"], found["queue_id"], found["queue_offset"]


def _shown(message: Message) -> dict[str, Any]:
    """A row as the official consumer shows a message: with its body decompressed."""
    shown = row(decode_record(message.record), with_body=False)
    shown["sys_flag"] &= ~SYS_COMPRESSED
    shown["body_size"] = len(message.body)
    shown["body_sha256"] = sha256(message.body).hexdigest()
    return shown


def _keyed(rows: Iterable[dict[str, Any]]) -> Rows:
    keyed: Rows = {}
    for each in rows:
        assert _of(each) not in keyed, f"{_of(each)} is there twice"
        keyed[_of(each)] = each
    return keyed


def _run_class(place: Place, line: str, name: str, sizes: Sequence[int], *files: Path) -> list[Any]:
    """What a class of the golden stores' maker prints about a copy of the store."""
    copy = place.file(f"copy-{line}")
    shutil.copytree(place.store, copy)
    run = [RUN_53, f"penstock.golden.{name}"] if line == "5.3" else [RUN_49, line, name]
    command = [str(word) for word in (*run, copy, *files, *sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S)
    shutil.rmtree(copy)
    assert done.returncode == 0, f"{done.stdout[:300]}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@dataclass
class Sides:
    """Everything that both sides can be asked about a store, and how their words are compared."""

    client: Client

    def pulled(self, place: Place, queues: Iterable[tuple[str, int]]) -> Rows:
        """What the official consumer gets out of these queues."""
        out = place.file("pulled.jsonl")
        count = self.client.ask("pull", queues=list(queues), out=out)
        rows = _keyed(_lines(out))
        assert len(rows) == count
        return rows

    def viewed(self, place: Place, rows: Rows) -> Rows:
        """What the official client gets for the ids of these rows."""
        ids, out = place.file("ids.jsonl"), place.file("viewed.jsonl")
        with ids.open("w") as file:
            for each in rows.values():
                file.write(json.dumps({"topic": each["topic"], "id": each["message_id"]}) + "\n")
        self.client.ask("view", ids=ids, out=out)
        return _keyed(_lines(out))

    def queried(self, place: Place, queries: list[dict[str, Any]]) -> list[list[str]]:
        """The ids that the official client finds for each of these queries by key."""
        asked, out = place.file("queries.jsonl"), place.file("found.jsonl")
        asked.write_text("".join(json.dumps(query) + "\n" for query in queries))
        self.client.ask("query", queries=asked, out=out)
        return _lines(out)

    def send(self, place: Place, wanted: list[Wanted]) -> Rows:
        """Send through the official producers; what is known of each message."""
        self.begin_sending(place, wanted)
        outcome, known = self.end_sending(place, wanted)
        assert outcome == {"acknowledged": len(wanted)}
        return known

    def begin_sending(self, place: Place, wanted: list[Wanted]) -> None:
        messages = place.file("messages.jsonl")
        messages.write_text("".join(json.dumps(each) + "\n" for each in wanted))
        self.receipts = place.file("receipts.jsonl")
        self.receipts.touch()
        self.client.begin("send", messages=messages, receipts=self.receipts)

    def end_sending(self, place: Place, wanted: list[Wanted]) -> tuple[dict[str, Any], Rows]:
        """The outcome in all, and what is known of each message that was acknowledged."""
        outcome = self.client.finish()
        known = []
        for receipt in _lines(self.receipts):
            assert receipt["status"] == "SEND_OK"
            of = wanted[receipt["line"]]
            place = receipt["queue"], receipt["queue_offset"]
            ids = receipt["message_id"], receipt["unique_key"]
            for item in _known_items(of, place, ids):
                if "items" in of:
                    # the broker appends the whole batch's properties to each item's, and with
                    # them one UNIQ_KEY for all, which hides the item's own
                    del item["properties"]["UNIQ_KEY"]
                known.append(item)
        return outcome, _keyed(known)

    def await_receipts(self, count: int) -> None:
        """Until about so many messages of those on their way are acknowledged."""
        deadline = time.monotonic() + 60
        while self.receipts.read_bytes().count(b"\n") < count:
            assert time.monotonic() < deadline, "the broker does not answer"
            time.sleep(0.01)

    def await_offset(self, topic: str, queue: int, offset: int) -> None:
        """Until the broker's queue reaches so far; what is delayed comes in its own time."""
        deadline = time.monotonic() + 60
        while self.client.ask("offsets", queues=[(topic, queue)])[0][3] < offset:
            assert time.monotonic() < deadline, f"{topic} {queue} does not reach {offset}"
            time.sleep(0.1)

    def stored(self, place: Place) -> Rows:
        """What our own tools find in the log of a store that nobody has open."""
        return _keyed(each for each in self.log(place) if self.is_queued(each))

    @staticmethod
    def log(place: Place) -> list[dict[str, Any]]:
        def of(step: Step) -> dict[str, Any]:
            return row(decode_record(step[3]), with_body=False)

        with StoreDirectory(place.store) as store:
            return [of(step) for step in store.scan_log() if step[1] is Found.RECORD]

    @staticmethod
    def is_queued(found: dict[str, Any]) -> bool:
        return found["sys_flag"] & 0xC in (0, 8)

    @staticmethod
    def create_topic(broker: Penstock, topic: str, queues: int) -> None:
        with Producer(broker.produce) as producer:
            producer.create_topic(topic, queues)

    @staticmethod
    def consumed(broker: Penstock, topics: Iterable[str]) -> Rows:
        """What our own consumer gets from a running broker."""
        rows = []
        for topic in topics:
            with Consumer(broker.consume, topic, follow=False) as consumer:
                rows += [_shown(each) for each in consumer]
        return _keyed(rows)

    @staticmethod
    def found(broker: Penstock, queries: list[dict[str, Any]]) -> list[list[str]]:
        """The ids that our client finds for each of these queries by key."""
        ids = []
        with MessageQuery(broker.consume) as query:
            for asked in queries:
                topic, key = asked["topic"], asked["key"]
                if asked["unique"]:
                    found = query.by_unique_key(topic, key)
                else:
                    found = query.by_key(topic, key, asked["max"])
                ids.append(sorted(each.message_id for each in found))
        return ids

    @staticmethod
    def found_by_id(broker: Penstock, ids: Iterable[str]) -> Rows:
        """What our client gets for these ids."""
        with MessageQuery(broker.consume) as query:
            return _keyed(_shown(query.by_id(each)) for each in ids)

    @staticmethod
    def as_consumers_see(pulled: Rows, stored: Rows) -> Rows:
        """What is stored, with bodies as the official consumer shows them: decompressed.

        Nothing else may differ, but for the flag that says the body is compressed.
        """
        seen = dict(stored)
        for key, shown in pulled.items():
            if stored[key]["sys_flag"] & SYS_COMPRESSED:
                body = {name: shown[name] for name in ("body_size", "body_sha256")}
                flags = stored[key]["sys_flag"] & ~SYS_COMPRESSED
                seen[key] = {**stored[key], **body, "sys_flag": flags}
            assert seen[key] == shown, key
        return seen

    @staticmethod
    def opened_by_classes(place: Place, line: str, sizes: Sequence[int] = SIZES) -> Rows:
        """What the store classes of 5.3 or 4.9 serve from a copy of the store."""
        opened, *rows = _run_class(place, line, "ReadStore", sizes)
        assert opened["load"] is True
        return _keyed(rows)

    @staticmethod
    def found_by_classes(
        place: Place, queries: list[dict[str, Any]], sizes: Sequence[int] = SIZES
    ) -> list[list[int]]:
        """The log offsets that the store classes of 5.3 find by key in a copy of the store."""
        asked = place.file("queries.jsonl")
        asked.write_text("".join(json.dumps(query) + "\n" for query in queries))
        return _run_class(place, "5.3", "QueryStore", sizes, asked)

    @staticmethod
    def verify(place: Place) -> None:
        """Our checker finds nothing wrong in a stopped store."""
        report = verify_store(place.store)
        assert report.ok and report.problem_count == 0, report.problems[:5]


@pytest.fixture
def sides(client: Client) -> Sides:
    return Sides(client)


@pytest.fixture
def same() -> Callable[[Rows, Rows], None]:
    """Two sides say the same of every message: same(ours, theirs)."""

    def compare(ours: Rows, theirs: Rows) -> None:
        missing = sorted(theirs.keys() - ours.keys())
        extra = sorted(ours.keys() - theirs.keys())
        different = [
            {
                name: (ours[key].get(name), theirs[key].get(name))
                for name in ours[key].keys() | theirs[key].keys()
                if ours[key].get(name) != theirs[key].get(name)
            }
            for key in ours.keys() & theirs.keys()
            if ours[key] != theirs[key]
        ]
        assert (len(missing), len(extra), len(different)) == (0, 0, 0), (
            f"missing {missing[:3]}, extra {extra[:3]}, different {different[:3]}"
        )

    return compare


@pytest.fixture
def sizes() -> tuple[int, int]:
    """Bytes of a commit log segment, and of one of a consume queue."""
    return LOG_BYTES, QUEUE_BYTES


@pytest.fixture
def make_queries() -> Callable[..., list[dict[str, Any]]]:
    """Random questions by key about stored messages: make_queries(rows, count, seed).

    Keys and unique keys that are there, some that are not, some of another topic; times around
    those of the store, now and then exactly a message's own.
    """

    def make(rows: Rows, count: int, seed: int) -> list[dict[str, Any]]:
        dice = random.Random(seed)
        found = [rows[key] for key in sorted(rows)]
        topics = sorted({row["topic"] for row in found})
        stored = sorted(row["store_timestamp_ms"] for row in found)
        queries = []
        for number in range(count):
            row = dice.choice(found)
            keys = [word for word in (row["keys"] or "").split(" ") if word] + ["absent"]
            key = dice.choice(keys)
            if number % 3 == 0 and row["unique_key"]:
                key = row["unique_key"]
            times = [dice.randrange(stored[0] - 3000, stored[-1] + 3000) for _ in range(2)]
            if number % 5 == 0:
                times[0] = row["store_timestamp_ms"]
            if number % 7 == 0:
                times = [0, stored[-1] + 3_600_000]
            queries.append(
                {
                    "topic": row["topic"] if number % 11 else dice.choice(topics),
                    "key": key,
                    "max_num": dice.choice([1, 2, 5, 32, 64, 1000]),
                    "begin_ms": min(times),
                    "end_ms": max(times),
                }
            )
        return queries

    return make


@pytest.fixture
def make_batches() -> Callable[..., list[Wanted]]:
    """Batches of 10 messages: make_batches(count, seed). Their topic `batched` has 2 queues."""

    def make(count: int, seed: int) -> list[Wanted]:
        dice = random.Random(seed)
        return [
            {
                "topic": "batched",
                "queue": number % 2,
                "items": [
                    {
                        "topic": "batched",
                        "body": b64encode(dice.randbytes(1 + number % 100)).decode(),
                        "tags": f"Tag{item}",
                        "keys": [f"batch-{seed}-{number}", f"item-{seed}-{number}-{item}"],
                    }
                    for item in range(10)
                ],
            }
            for number in range(count)
        ]

    return make


@pytest.fixture
def make_compressible() -> Callable[..., list[Wanted]]:
    """Bodies above 4 KiB, to be compressed in each of three ways: make_compressible(count, seed).

    Their topic `compressed` has one queue.
    """

    def make(count: int, seed: int) -> list[Wanted]:
        dice = random.Random(seed)
        return [
            {
                "topic": "compressed",
                "queue": 0,
                "body": b64encode(dice.randbytes(40) * dice.randrange(110, 900)).decode(),
                "compression": ("ZLIB", "LZ4", "ZSTD")[number % 3],
            }
            for number in range(count)
        ]

    return make


@pytest.fixture
def by_key() -> Callable[[Rows], tuple[list[dict[str, Any]], list[list[str]]]]:
    """A question for each unique key and each other key there is, and the ids it must find."""

    def make(rows: Rows) -> tuple[list[dict[str, Any]], list[list[str]]]:
        found: dict[tuple[str, str, bool], list[str]] = {}
        for each in rows.values():
            words = [(word, False) for word in (each["keys"] or "").split()]
            for key, unique in ((each["unique_key"], True), *words):
                found.setdefault((each["topic"], key, unique), []).append(each["message_id"])
        queries = [
            {"topic": topic, "key": key, "unique": unique, "max": 64, "begin": 0, "end": 2**62}
            for topic, key, unique in found
        ]
        return queries, [sorted(ids) for ids in found.values()]

    return make


@pytest.fixture
def make_wanted() -> Callable[..., list[Wanted]]:
    """Ordinary messages: make_wanted(topic, queues, count, seed).

    Bodies of 1 byte to 20 KiB; tags, one key or several, properties, or none of them.
    """

    def make(topic: str, queues: int, count: int, seed: int) -> list[Wanted]:
        dice = random.Random(seed)
        made = []
        for number in range(count):
            size = dice.randrange(5000, 20_000) if number % 500 == 7 else dice.randrange(1, 500)
            wanted: Wanted = {
                "topic": topic,
                "queue": dice.randrange(queues),
                "body": b64encode(dice.randbytes(size)).decode(),
                "flag": dice.randrange(-(2**31), 2**31) if number % 5 == 0 else 0,
            }
            if number % 3:
                tags = ["TagA", "TagB", "中文标签", "🚀😀", "polygenelubricants"]
                wanted["tags"] = dice.choice(tags)
            if number % 4:
                wanted["keys"] = [f"{topic}-{seed}-{number}", f"shared-{seed}-{number // 20}"]
                del wanted["keys"][number % 4 :]
            if number % 7 == 0:
                wanted["properties"] = {
                    "region": "Zürich",
                    "number": str(number),
                    "two words": "a b",
                }
            made.append(wanted)
        return made

    return make


class Sent:
    """Messages on their way through our producers, and what came of each."""

    def __init__(self, broker: Penstock, wanted: list[Wanted], ack: str) -> None:
        ways = {each.get("compression") for each in wanted}
        self._producers = {
            way: Producer(broker.produce, ack=ack, compression=way and way.lower()) for way in ways
        }
        self._futures: list[tuple[Wanted, SendFuture]] = []
        self._failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._send, args=(wanted,))
        self._thread.start()

    def _send(self, wanted: list[Wanted]) -> None:
        try:
            for each in wanted:
                producer = self._producers[each.get("compression")]
                send = _send_batch if "items" in each else _send_one
                self._futures.append((each, send(producer, each)))
        except PenstockError as failure:
            self._failure = failure

    def await_acknowledged(self, count: int) -> None:
        """Until so many of the first messages have their acknowledgement."""
        deadline = time.monotonic() + 60
        while len(self._futures) <= count:
            assert time.monotonic() < deadline and self._failure is None, self._failure
            time.sleep(0.001)
        for _, future in self._futures[:count]:
            future.result(60)

    def finish(self) -> Rows:
        """All were acknowledged: what is known of each message."""
        self._thread.join()
        assert self._failure is None, self._failure
        for producer in self._producers.values():
            producer.close()
        return self._acknowledged()

    def abandon(self) -> Rows:
        """The broker is gone: what is known of each message that was acknowledged."""
        for producer in self._producers.values():
            producer._disconnect()
        self._thread.join()
        return self._acknowledged()

    def _acknowledged(self) -> Rows:
        known: list[dict[str, Any]] = []
        for each, future in self._futures:
            if future.exception(0) is None:
                receipt = future.result(0)
                place = receipt.queue_id, receipt.queue_offset
                known += _known_items(each, place, (receipt.message_id, receipt.unique_key))
        return _keyed(known)


def _send_one(producer: Producer, wanted: Wanted) -> SendFuture:
    return producer.send(
        wanted["topic"],
        b64decode(wanted["body"]),
        tags=wanted.get("tags"),
        keys=" ".join(wanted.get("keys", [])) or None,
        queue=wanted["queue"],
        properties=wanted.get("properties"),
        flag=wanted.get("flag", 0),
    )


def _send_batch(producer: Producer, wanted: Wanted) -> SendFuture:
    items = [
        BatchMessage(b64decode(item["body"]), tags=item["tags"], keys=" ".join(item["keys"]))
        for item in wanted["items"]
    ]
    return producer.send_batch(wanted["topic"], items, queue=wanted["queue"])


def _known_items(
    wanted: Wanted, place: tuple[int, int], ids: tuple[str, str]
) -> list[dict[str, Any]]:
    """What is known of a message, or of each of a batch: its ids are joined by commas."""
    queue, offset = place
    items = zip(wanted.get("items", [wanted]), *(each.split(",") for each in ids), strict=True)
    return [
        _known(item, queue, offset + number, message_id, unique_key)
        for number, (item, message_id, unique_key) in enumerate(items)
    ]


def _known(
    wanted: Wanted, queue: int, offset: int, message_id: str, unique_key: str
) -> dict[str, Any]:
    """The fields of a row that sender and receipt decide; the broker may add properties."""
    body = b64decode(wanted["body"])
    properties = {"UNIQ_KEY": unique_key, **wanted.get("properties", {})}
    if "tags" in wanted:
        properties["TAGS"] = wanted["tags"]
    if "keys" in wanted:
        properties["KEYS"] = " ".join(wanted["keys"])
    topic, level = wanted["topic"], wanted.get("delay_level", 0)
    if level:
        topic, queue = SCHEDULE_TOPIC, level - 1  # where it waits, and where the receipt points
    return {
        "topic": topic,
        "queue_id": queue,
        "queue_offset": offset,
        "message_id": message_id,
        "flag": wanted.get("flag", 0),
        "body_size": len(body),
        "body_sha256": sha256(body).hexdigest(),
        "properties": properties,
    }


@pytest.fixture
def produce() -> Callable[..., Sent]:
    """Send messages to a broker of ours: produce(broker, wanted, ack="durable")."""

    def start(broker: Penstock, wanted: list[Wanted], ack: str = "") -> Sent:
        return Sent(broker, wanted, ack)

    return start


@pytest.fixture
def holds() -> Callable[[Rows, Rows], None]:
    """Each message known to a sender is there as it was sent: holds(found, known)."""

    def check(found: Rows, known: Rows) -> None:
        for key, wanted in known.items():
            assert key in found, f"{key} was acknowledged and is not there"
            there = found[key]
            assert wanted["properties"].items() <= there["properties"].items(), key
            rest = {name: value for name, value in wanted.items() if name != "properties"}
            assert rest == {name: there[name] for name in rest}, key

    return check
