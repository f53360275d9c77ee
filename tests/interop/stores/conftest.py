"""Messages to be sent, sent ones, and how what both sides say of them is compared.

A message to be sent is a dictionary, as rocketmq/java/.../Sending.java describes it. Messages that
are stored are compared as rows: the dictionaries that `penstock store inspect -o json` prints, by
(topic, queue, offset).
"""

from __future__ import annotations

import json
import random
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cli.printing.records import row
from penstock.client.core.message import Message
from penstock.client.core.sending.encoding import BatchMessage
from penstock.client.reading.consumer import Consumer
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer, SendFuture
from penstock.maintenance.verify.check import verify_store
from penstock.shared.errors import PenstockError
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.index_chains import ITEM_DTYPE
from penstock.shared.formats.index_layout import Geometry, decode_header
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SYS_COMPRESSED
from penstock.shared.index.directory import index_files
from penstock.shared.layout import StorePaths
from penstock.shared.log.scan import Step
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.shared.store.directory import StoreDirectory

Key = tuple[str, int, int]  # topic, queue, offset
Item = tuple[int, int]  # of an index file: hash of topic and key, offset in the log
Rows = dict[Key, dict[str, Any]]
ToSend = dict[str, Any]
Place = Any  # this and the next are those of the conftest above
Penstock = Any


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
def make_batches() -> Callable[..., list[ToSend]]:
    """Batches of 10 messages: make_batches(count, seed). Their topic `batched` has 2 queues."""

    def make(count: int, seed: int) -> list[ToSend]:
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
def make_compressible() -> Callable[..., list[ToSend]]:
    """Bodies above 4 KiB, to be compressed in each of three ways: make_compressible(count, seed).

    Their topic `compressed` has one queue.
    """

    def make(count: int, seed: int) -> list[ToSend]:
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
def make_wanted() -> Callable[..., list[ToSend]]:
    """Ordinary messages: make_wanted(topic, queues, count, seed).

    Bodies of 1 byte to 20 KiB; tags, one key or several, properties, or none of them.
    """

    def make(topic: str, queues: int, count: int, seed: int) -> list[ToSend]:
        dice = random.Random(seed)
        made = []
        for number in range(count):
            size = dice.randrange(5000, 20_000) if number % 500 == 7 else dice.randrange(1, 500)
            wanted: ToSend = {
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


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@dataclass
class Sides:
    """Everything that both sides can be asked about a store, and how their words are compared."""

    client: Any

    @staticmethod
    def full_index_file(place: Place) -> Path | None:
        """The newest index file that the checkpoint vouches for: a start after a crash keeps it."""
        paths = StorePaths(place.store)
        full_ms = load_checkpoint(paths.checkpoint).index_timestamp_ms
        kept = [
            path
            for path in index_files(paths.index)
            if decode_header(path.read_bytes()).end_timestamp_ms <= full_ms
        ]
        return kept[-1] if full_ms and kept else None

    def await_full_index_file(self, place: Place) -> None:
        deadline = time.monotonic() + 60
        while self.full_index_file(place) is None:
            assert time.monotonic() < deadline, "no index file is full and on disk"
            time.sleep(0.01)

    def indexed_again(self, place: Place, geometry: Geometry) -> set[Item]:
        """What RocketMQ will index a second time when it starts after a crash.

        It skips what lies before the last record of the newest file it keeps, but not that record;
        the file may have had room for some of its keys only.
        """
        path = self.full_index_file(place)
        if path is None:
            return set()
        raw = path.read_bytes()
        header = decode_header(raw)
        count = header.next_item - 1
        items = np.frombuffer(raw, ITEM_DTYPE, count, geometry.item_at(1))
        last = items[items["offset"] == header.end_offset]
        return {(int(each["hash"]), int(each["offset"])) for each in last}

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

    def send(self, place: Place, wanted: list[ToSend]) -> Rows:
        """Send through the official producers; what is known of each message."""
        self.begin_sending(place, wanted)
        outcome, known = self.end_sending(place, wanted)
        assert outcome == {"acknowledged": len(wanted)}
        return known

    def begin_sending(self, place: Place, wanted: list[ToSend]) -> None:
        messages = place.file("messages.jsonl")
        messages.write_text("".join(json.dumps(each) + "\n" for each in wanted))
        self.receipts = place.file("receipts.jsonl")
        self.receipts.touch()
        self.client.begin("send", messages=messages, receipts=self.receipts)

    def end_sending(self, place: Place, wanted: list[ToSend]) -> tuple[dict[str, Any], Rows]:
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
        """Until about this many messages of those on their way are acknowledged."""
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
            return [of(step) for step in store.scan_log() if step[1] is Kind.RECORD]

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
    def opened_by_classes(place: Place, line: str, sizes: Sequence[int] | None = None) -> Rows:
        """What the store classes of 5.3 or 4.9 serve from a copy of the store."""
        opened, *rows = place.ask_classes(line, "ReadStore", sizes)
        assert opened["load"] is True
        return _keyed(rows)

    @staticmethod
    def found_by_classes(
        place: Place, queries: list[dict[str, Any]], sizes: Sequence[int] | None = None
    ) -> list[list[int]]:
        """The log offsets that the store classes of 5.3 find by key in a copy of the store."""
        asked = place.file("queries.jsonl")
        asked.write_text("".join(json.dumps(query) + "\n" for query in queries))
        found: list[list[int]] = place.ask_classes("5.3", "QueryStore", sizes, asked)
        return found

    @staticmethod
    def verify(place: Place) -> None:
        """Our checker finds nothing wrong in a stopped store."""
        report = verify_store(place.store)
        assert report.ok and report.problem_count == 0, report.problems[:5]


class Sent:
    """Messages on their way through our producers, and what came of each."""

    def __init__(self, broker: Penstock, wanted: list[ToSend], ack: str) -> None:
        ways = {each.get("compression") for each in wanted}
        self._producers = {
            way: Producer(broker.produce, ack=ack, compression=way and way.lower()) for way in ways
        }
        self._futures: list[tuple[ToSend, SendFuture]] = []
        self._failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._send, args=(wanted,))
        self._thread.start()

    def _send(self, wanted: list[ToSend]) -> None:
        try:
            for each in wanted:
                producer = self._producers[each.get("compression")]
                send = _send_batch if "items" in each else _send_one
                self._futures.append((each, send(producer, each)))
        except PenstockError as failure:
            self._failure = failure

    def await_acknowledged(self, count: int) -> None:
        """Until this many of the first messages have their acknowledgement."""
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
            if future.done() and future.exception(0) is None:
                receipt = future.result(0)
                place = receipt.queue_id, receipt.queue_offset
                known += _known_items(each, place, (receipt.message_id, receipt.unique_key))
        return _keyed(known)


def _send_one(producer: Producer, wanted: ToSend) -> SendFuture:
    return producer.send(
        wanted["topic"],
        b64decode(wanted["body"]),
        tags=wanted.get("tags"),
        keys=" ".join(wanted.get("keys", [])) or None,
        queue=wanted["queue"],
        properties=wanted.get("properties"),
        flag=wanted.get("flag", 0),
    )


def _send_batch(producer: Producer, wanted: ToSend) -> SendFuture:
    items = [
        BatchMessage(b64decode(item["body"]), tags=item["tags"], keys=" ".join(item["keys"]))
        for item in wanted["items"]
    ]
    return producer.send_batch(wanted["topic"], items, queue=wanted["queue"])


def _known_items(
    wanted: ToSend, place: tuple[int, int], ids: tuple[str, str]
) -> list[dict[str, Any]]:
    """What is known of a message, or of each of a batch: its ids are joined by commas."""
    queue, offset = place
    items = zip(wanted.get("items", [wanted]), *(each.split(",") for each in ids), strict=True)
    return [
        _known(item, queue, offset + number, message_id, unique_key)
        for number, (item, message_id, unique_key) in enumerate(items)
    ]


def _known(
    wanted: ToSend, queue: int, offset: int, message_id: str, unique_key: str
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
    """Send messages to Penstock's broker: produce(broker, wanted, ack="durable")."""

    def start(broker: Penstock, wanted: list[ToSend], ack: str = "") -> Sent:
        return Sent(broker, wanted, ack)

    return start


@pytest.fixture
def sides(client: Any) -> Sides:
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
