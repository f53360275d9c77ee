"""The official Java client against the gateway, and the same orders against a real broker.

What the client says of both is the same: statuses, queues, offsets, bodies, redelivery counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.shared.process.broker_status import read_status
from tests.interop.gateway.programs import PROGRAMS, official_python

pytestmark = pytest.mark.takes(125)

TOPIC, QUEUES, GROUP = "orders", 4, "billing"
IDLE_MS, WAIT_S = 60_000, 60
OF_A_RUN = ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "CONSUME_START_TIME")
PLAIN, BATCH, OF_KINDS = 40, 9, 24
TRACES = "RMQ_SYS_TRACE_TOPIC"
# what the clients of a line can: how bodies are compressed, and what else
COMPRESSIONS = {"5.3": ("LZ4", "ZSTD", "ZLIB"), "4.9": ("ZLIB",)}
TIMED = {"5.3": True, "4.9": False}
CLIENTS = {"5.3": "Java 5.3.3", "4.9": "Java 4.9.8"}
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
# what a producer says at once, and what one is to say that is asked; a broker may ask of what it
# was told just now, so who has rolled back says so again
OUTCOMES = [
    (first, later)
    for first in (COMMIT, ROLLBACK, UNKNOWN)
    for later in (COMMIT, ROLLBACK)
    if (first, later) != (ROLLBACK, COMMIT)
]
COMMITTED = [
    n
    for n, (first, later) in enumerate(OUTCOMES * 2)
    if COMMIT in (first, later if first == UNKNOWN else first)
]
CHECKS = [n for n, (first, _) in enumerate(OUTCOMES * 2) if first == UNKNOWN]


def with_gateway(penstock: Callable[..., Any], place: Any, **more: object) -> Any:
    """A broker that the client takes for RocketMQ's, by the ports of its place."""
    return penstock(
        place,
        produce_port=0,
        gateway_enable=True,
        gateway_port=place.port,
        gateway_name_server_port=place.name_server_port,
        broker_name="interop",
        cluster_name="interop",
        transaction_check_interval_ms=500,
        transaction_time_out_ms=500,
        **more,
    )


def message(body: bytes, **more: Any) -> dict[str, Any]:
    return {"body": b64encode(body).decode(), **more}


def _told(row: dict[str, Any]) -> tuple[int, list[tuple[str, str]]]:
    """How often a message has come, and its properties. Ids and times are each run's own."""
    found = row["properties"].items()
    return row["times"], sorted((k, "" if k in OF_A_RUN else v) for k, v in found)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


class Program:
    """What a line's client is told to do with one broker; its topics and groups are its own."""

    def __init__(self, client: Any, place: Any, line: str) -> None:
        self.client, self.place, self.line = client, place, line
        self.topic = self.named(TOPIC)
        self.said: dict[str, Any] = {}

    def named(self, what: str) -> str:
        return f"{what}-{self.line.replace('.', '-')}"

    def wanted(self) -> list[dict[str, Any]]:
        """Messages of every kind that a send to a queue can be."""
        found = [
            {"queue": n % QUEUES}
            | message(
                b"%d" % n,
                tags="AB"[n % 2],
                keys=[f"k{n}"],
                flag=n,
                properties={"n": str(n)} | ({"fail": "1"} if n == 8 else {}),
            )
            for n in range(PLAIN)
        ]
        found += [
            {"queue": 1, "compression": kind} | message(kind.encode() * 2000)
            for kind in COMPRESSIONS[self.line]
        ]
        items = [{"topic": self.topic} | message(b"batch-%d" % n) for n in range(BATCH)]
        found.append({"queue": 2, "items": items})
        found.append({"queue": 3} | message(b"late", delay_level=1))
        if TIMED[self.line]:
            found.append({"queue": 0} | message(b"timed", delay_ms=1500))
        return [{"topic": self.topic} | each for each in found]

    def consume(self, group: str, until: int, **order: Any) -> list[dict[str, Any]]:
        out = self.place.file("consumed.jsonl")
        usual = {"topics": {self.topic: "*"}, "idle_ms": IDLE_MS, "level": 1}
        group = self.named(group)
        self.client.ask("consume", group=group, until=until, out=out, **usual | order)
        return lines(out)

    def answers(self, op: str, asked: list[dict[str, Any]]) -> list[Any]:
        """What the client finds for each of these."""
        file, out = self.place.file("asked.jsonl"), self.place.file("found.jsonl")
        file.write_text("".join(json.dumps(each) + "\n" for each in asked))
        self.client.ask(op, **{"queries" if op == "query" else "ids": file}, out=out)
        return lines(out)

    def run(self) -> dict[str, Any]:
        """All that the client says: by feature, and what else is to be the same."""
        self.client.open(self.place)
        self.client.ask("create", topic=self.topic, queues=QUEUES)
        receipts = self.send()
        self.send_otherwise()
        self.push(receipts)
        self.push_otherwise()
        self.bury()
        self.ask_for_reply()
        self.keep_apart()
        self.pull()
        self.query(receipts)
        self.transact()
        self.client.ask("close")
        return self.said

    def send(self) -> list[dict[str, Any]]:
        """To chosen queues; the receipts."""
        rows = self.send_lines(self.wanted())
        alone = PLAIN + len(COMPRESSIONS[self.line])
        # sends that are on their way together are stored in any order, by both
        self.said["receipts"] = sorted((row["line"], row["status"], row["queue"]) for row in rows)
        self.said["places"] = sorted(
            (row["queue"], row["queue_offset"])
            for row in rows
            if row["line"] < alone and row["queue"] != 2  # where the batch is
        )
        self.said["hosts"] = {row["message_id"][:16] for row in rows}
        return rows

    def send_otherwise(self) -> None:
        """Without a queue, by selectors, in batches; and a trace, which is found by its key."""
        topic = self.named("kinds")
        self.client.ask("create", topic=topic, queues=QUEUES)
        self.said |= self.client.ask("kinds", topic=topic)
        rows = self.consume("of-kinds", OF_KINDS, topics={topic: "*"})
        bodies = sorted(row["body"] for row in rows)
        self.said["one-way"] = [body for body in bodies if body.startswith("oneway")]
        self.said["kinds"] = bodies
        key = self.client.ask("trace", topic=topic)
        query = {"topic": TRACES, "key": key, "max": 32, "begin": 0, "end": 1 << 62}
        until = time.monotonic() + WAIT_S
        found: list[str] = []
        while not found:  # it is sent beside the message, and the first one makes its topic
            assert time.monotonic() < until, "no trace came"
            time.sleep(0.05)
            if self.client.ask("brokers", topic=TRACES):
                (found,) = self.answers("query", [query])
        self.said["trace"] = len(found)

    def push(self, receipts: list[dict[str, Any]]) -> None:
        # a group's topic of retries is known to a client that starts when it is there
        self.consume(GROUP, 0)
        rows = self.consume(GROUP, self.total)
        assert len(receipts) - 1 + BATCH == self.total
        self.said["push"] = sorted(
            (row["topic"], row["queue"], row["body"], row["times"], row["succeeded"])
            for row in rows
        )
        bodies = [row["body"] for row in rows]
        compressed = [body for body in bodies if len(body) >= 6000]
        self.said["compressed"] = sorted((body[:4], len(body)) for body in compressed)
        self.said["delay level"] = bodies.count("late")
        self.said["timed"] = bodies.count("timed") if TIMED[self.line] else None
        again = sorted((row["body"], *_told(row)) for row in rows if row["times"])
        self.said["redelivery"] = again
        ask = self.client.ask
        self.said["committed"] = ask("committed", group=self.named(GROUP), topic=self.topic)
        queues = [[self.topic, queue] for queue in range(QUEUES)]
        self.said["offsets"] = ask("offsets", queues=queues)

    @property
    def total(self) -> int:
        """Messages of the topic, each item of the batch one."""
        return len(self.wanted()) - 1 + BATCH

    def push_otherwise(self) -> None:
        said, topic = self.said, self.topic
        rows = self.consume("tagged", PLAIN // 2, topics={topic: "B || C"})
        said["tags"] = sorted((row["queue"], row["body"]) for row in rows)
        rows = self.consume("in-order", self.total, orderly=True)
        in_order: dict[int, list[tuple[int, int]]] = {}
        for row in rows:
            in_order.setdefault(row["queue"], []).append((row["offset"], row["times"]))
        assert all(found == sorted(found) for found in in_order.values())
        said["push in order"] = sorted((row["body"], row["times"]) for row in rows)
        # who broadcasts drops what fails, and gets all of the rest
        rows = self.consume("everyone", self.total - 1, broadcasting=True)
        said["broadcasting"] = sorted((row["body"], row["times"], row["succeeded"]) for row in rows)
        chosen = {topic: "n BETWEEN 10 AND 12 OR TAGS = 'B' AND n >= 38"}
        rows = self.consume("by-sql", 4, topics=chosen, sql=True)
        said["SQL92"] = sorted((row["queue"], row["body"]) for row in rows)

    def bury(self) -> None:
        """Messages that fail too often, in a group that consumes in order and in one that does
        not: their dead letters, with what the way has made of their properties."""
        letters = []
        for kind, orderly in (("ordered", True), ("unordered", False)):
            topic, group = self.named(f"buried-{kind}"), f"diggers-{kind}"
            self.client.ask("create", topic=topic, queues=1)
            order = {"topics": {topic: "*"}, "orderly": orderly, "max_reconsume_times": 1}
            self.consume(group, 0, **order)  # as in `push`
            self.send_lines(
                [{"topic": topic, "queue": 0} | message(b"x", properties={"fail": "2"})]
            )
            rows = self.consume(group, 1, calls=2, **order)
            assert [row["times"] for row in rows] == [0, 1]
            grave = f"%DLQ%{self.named(group)}"
            until = time.monotonic() + WAIT_S
            while not self.client.ask("brokers", topic=grave):
                assert time.monotonic() < until, f"{grave} is not there"
                time.sleep(0.05)
            (row,) = self.consume(f"mourners-{kind}", 1, topics={grave: "*"})
            letters.append((row["topic"], *_told(row)))
        self.said["dead letter"] = letters

    def send_lines(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send these; the receipts."""
        orders, receipts = self.place.file("send.jsonl"), self.place.file("sent.jsonl")
        orders.write_text("".join(json.dumps(each) + "\n" for each in messages))
        done = self.client.ask("send", messages=orders, receipts=receipts)
        assert done == {"acknowledged": len(messages)}
        return lines(receipts)

    def ask_for_reply(self) -> None:
        topic = self.named("questions")
        self.client.ask("create", topic=topic, queues=1)
        self.said["request-reply"] = self.client.ask("request", topic=topic)

    def keep_apart(self) -> None:
        """In a namespace, as who has an access key."""
        namespace, topic = f"MQ_INST_{self.line.replace('.', '_')}", "spaced"
        self.client.ask("create", topic=f"{namespace}%{topic}", queues=1)
        order = {"namespace": namespace, "topic": topic, "group": "spaced-readers"}
        self.said["namespace, access key"] = self.client.ask("spaced", **order)

    def pull(self) -> None:
        found = self.client.ask(
            "assigned", group=self.named("itself"), topic=self.topic, until=30, at_ms=0,
            queues=[2, 3],
        )  # fmt: skip
        # which message is at an offset is as it came: see the receipts
        self.said["pull"] = sorted(row[:2] for row in found["read"]), found["places"]
        order = {"group": self.named("subscribed"), "topic": self.topic, "until": self.total}
        rows = self.client.ask("subscribed", **order)
        self.said["lite pull, subscribed"] = sorted(body for _, _, body in rows)

    def query(self, receipts: list[dict[str, Any]]) -> None:
        """The lines of the messages that are found by their keys and by their ids."""
        numbers = {row["message_id"]: row["line"] for row in receipts}
        third = next(row for row in receipts if row["line"] == 3)
        times = {"begin": 0, "end": (1 << 62), "topic": self.topic}
        asked: list[dict[str, Any]] = [
            {"key": "k3", "max": 32},
            {"key": "k39", "max": 1},
            {"key": "none", "max": 32},
            {"key": third["unique_key"], "max": 32, "unique": True},
        ]
        found = self.answers("query", [each | times for each in asked])
        *by_key, by_unique_key = [[numbers[each] for each in ids] for ids in found]
        (row,) = self.answers("view", [{"topic": self.topic, "id": third["message_id"]}])
        assert row["message_id"] == third["message_id"]
        self.said |= {"by key": by_key, "by unique key": by_unique_key, "by id": row["keys"]}

    def transact(self) -> None:
        """Which messages of transactions are seen in the end; producers were asked of the rest."""
        topic = self.named("halves")
        self.client.ask("create", topic=topic, queues=1)
        halves, receipts = self.place.file("halves.jsonl"), self.place.file("ended.jsonl")
        wanted = [
            {"topic": topic, "outcome": first, **message(b"%d" % n, properties={"check": later})}
            for n, (first, later) in enumerate(OUTCOMES * 2)
        ]
        halves.write_text("".join(json.dumps(each) + "\n" for each in wanted))
        assert self.client.ask("transact", messages=halves, receipts=receipts) == len(wanted)
        numbers = {row["unique_key"]: row["line"] for row in lines(receipts)}
        order = {"topic": topic, "until": len(CHECKS), "timeout_ms": 60_000}
        asked = self.client.ask("answer_checks", **order)
        until = len(COMMITTED)
        seen = self.consume("halves-readers", until, topics={topic: "*"}, settle_ms=500)
        # a commit that a producer said and that was lost is asked for, too
        assert {numbers[each] for each in asked} >= {*CHECKS}
        self.said["transaction"] = sorted(int(row["body"]) for row in seen)


@pytest.mark.parametrize("line", CLIENTS)
def test_the_java_client_says_the_same_of_the_gateway_and_of_a_real_broker(
    line: str,
    both: tuple[Any, Any],
    java: Callable[..., Any],
    verdicts: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    programs = [Program(java(place, line), place, line) for place in both]
    with ThreadPoolExecutor(2) as at_once:  # most of what they do is to wait
        ours, theirs = at_once.map(Program.run, programs)
    for said, place in zip((ours, theirs), both, strict=True):
        assert said.pop("hosts") == {f"7F000001{place.port:08X}"}
    # a real broker asks again before its mark is written, and commits what it is told twice
    theirs["transaction"] = sorted({*theirs["transaction"]})
    assert ours["transaction"] == COMMITTED
    for name in theirs:
        assert ours[name] == theirs[name], name
    verdicts(CLIENTS[line], ours, theirs)
    record_property("messages", programs[0].total + OF_KINDS)


CERTIFICATES = Path(__file__).parents[2] / "actors" / "gateway" / "connecting" / "tls"
SECURED = {
    "tls_server_cert_path": str(CERTIFICATES / "certificate.pem"),
    "tls_server_key_path": str(CERTIFICATES / "key.pem"),
    "tls_server_mode": "enforcing",
}


@pytest.mark.parametrize(
    ("options", "settings", "more"),
    [
        ("-Dtls.enable=true -Dtls.client.authServer=false", SECURED, {}),
        ("-Drocketmq.serialize.type=ROCKETMQ", {}, {}),
        ("", {}, {"assigned": True}),
    ],
    ids=["TLS", "binary header", "queues that the broker divides"],
)
def test_the_java_client_sends_and_consumes_in_ways_that_are_off_otherwise(
    place: Any,
    penstock: Callable[..., Any],
    java: Callable[..., Any],
    options: str,
    settings: dict[str, object],
    more: dict[str, object],
) -> None:
    with_gateway(penstock, place, **settings)
    client = java(place, options=options)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    if more:  # it asks for messages by POP first, is refused, and goes on pulling
        words = ["setConsumeMode", "-b", f"127.0.0.1:{place.port}", "-t", TOPIC, "-g", GROUP]
        words += ["-m", "POP", "-q", "1", "-n", place.name_server]
        assert "not yet by POP" in client.ask("mqadmin", words=words)
    orders, receipts = place.file("send.jsonl"), place.file("sent.jsonl")
    wanted = [{"topic": TOPIC, "queue": n % QUEUES} | message(b"%d" % n) for n in range(PLAIN)]
    orders.write_text("".join(json.dumps(each) + "\n" for each in wanted))
    done = client.ask("send", messages=orders, receipts=receipts)
    assert done == {"acknowledged": PLAIN}
    out, order = place.file("consumed.jsonl"), {"group": GROUP, "topics": {TOPIC: "*"}}
    client.ask("consume", until=PLAIN, idle_ms=IDLE_MS, level=1, out=out, **order, **more)
    assert sorted(int(row["body"]) for row in lines(out)) == [*range(PLAIN)]
    client.ask("close")


@contextmanager
def python_member(place: Any) -> Iterator[Path]:
    """A member by the wheel for Python; what it gets is in this file."""
    command = [official_python()[0], str(PROGRAMS / "python_member.py")]
    got, home = place.file("python.txt"), place.directory / "python-home"
    home.mkdir()  # the library writes there
    with got.open("w") as out, place.file("python-errors.txt").open("w") as errors:
        running = subprocess.Popen(
            [*command, place.name_server, TOPIC, GROUP],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
        )
    assert running.stdin is not None
    try:
        yield got
        running.stdin.close()
        running.wait(WAIT_S)  # it gives its queues back
    finally:
        running.kill()
        running.wait()
        running.stdin.close()


def test_members_of_java_python_and_penstocks_own_share_the_queues_of_a_group(
    place: Any, penstock: Callable[..., Any], client: Any
) -> None:
    with_gateway(penstock, place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    number = 0
    with Producer(store=place.store) as producer:

        def send_to_all() -> None:
            nonlocal number
            for queue in range(QUEUES):
                producer.send(TOPIC, b"%d" % number, queue=queue).result(WAIT_S)
                number += 1

        out, until = place.file("consumed.jsonl"), time.monotonic() + 2 * WAIT_S
        order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
        client.begin("consume", until=1 << 30, idle_ms=15_000, **order)
        send_to_all()
        await_lines(out, QUEUES)
        with python_member(place) as got:
            while not got.read_text():
                assert time.monotonic() < until, "Python's member has no queue yet"
                send_to_all()
                time.sleep(0.1)
            mine: list[int] = []
            own = GroupConsumer(store=place.store, group=GROUP, topics=TOPIC, start="first")
            with own:
                while len(mine) < QUEUES:
                    assert time.monotonic() < until, mine
                    send_to_all()
                    for message in own.poll(0.2):
                        mine.append(int(message.body))
                        message.ack()
                # and by now each has some of the queues, and goes on with them
                since = number
                while not (
                    any(each >= since for each in mine)
                    and any(each >= since for each in _of_java(out))
                    and any(each >= since for each in _of_python(got))
                ):
                    assert time.monotonic() < until, (since, mine[-3:], _of_python(got)[-3:])
                    send_to_all()
                    for message in own.poll(0.2):
                        mine.append(int(message.body))
                        message.ack()
            client.finish()
    assert {*mine, *_of_java(out), *_of_python(got)} == set(range(number))
    assert len(mine) == len(set(mine)), "nobody else had its queues"


def _of_java(out: Path) -> list[int]:
    return [int(row["body"]) for row in lines(out)]


def _of_python(got: Path) -> list[int]:
    return [int(line) for line in got.read_text().splitlines()]


def await_lines(file: Path, count: int) -> None:
    until = time.monotonic() + WAIT_S
    while not file.exists() or len(lines(file)) < count:
        assert time.monotonic() < until, file.read_text() if file.exists() else "nothing"
        time.sleep(0.05)


def test_javas_consumer_goes_on_when_the_gateway_is_killed(
    place: Any, penstock: Callable[..., Any], client: Any
) -> None:
    with_gateway(penstock, place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    out = place.file("consumed.jsonl")
    with Producer(store=place.store) as producer:
        for number in range(QUEUES):
            producer.send(TOPIC, b"before", queue=number).result(WAIT_S)
        order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
        client.begin("consume", until=3 * QUEUES, idle_ms=IDLE_MS, **order)
        await_lines(out, QUEUES)
        for turn in (2, 3):
            (pid,) = (
                each["pid"]
                for each in read_status(place.store)["actors"]
                if each["name"] == "gateway"
            )
            os.kill(pid, signal.SIGKILL)
            for number in range(QUEUES):
                producer.send(TOPIC, b"after", queue=number).result(WAIT_S)
            await_lines(out, turn * QUEUES)
    client.finish()
    places = {(row["queue"], row["offset"]) for row in lines(out)}
    assert places == {(queue, offset) for queue in range(QUEUES) for offset in range(3)}
