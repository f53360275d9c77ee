"""Frames whose records are in the log already, staged: they are stored as if they had come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.offsets_record import NONE, begin_of, move_of
from penstock.shared.messaging.staged_records import Records, decode_records, encode_records
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC, STAGING_TOPIC
from penstock.shared.wire.messages import Appended, QueueRun, Refused, Route, encode

HOST = pack_host("127.0.0.1", 10911)
OWN = QueueRun(OFFSETS_TOPIC, 0, 1)
PART_BYTES = 10_000  # less than a message may have
OUTPUTS = [("orders", 0, 2), ("orders", 3, 1)]


def record(topic: str, body: bytes, key: str, queue: int = 0) -> bytes:
    raw = encode_properties({"UNIQ_KEY": key})
    return encode_record(Record(topic, body, raw, queue, born_host=HOST))


def outputs(name: str) -> bytes:
    numbers = itertools.count()
    return b"".join(
        record(topic, f"{name}{number}".encode(), f"{name}-{number}", queue)
        for topic, queue, count in OUTPUTS
        for number in itertools.islice(numbers, count)
    )


def block(name: str, **changed: Any) -> bytes:
    """What a task stages."""
    made = Records(Shape(), OUTPUTS, memoryview(outputs(name)))
    return encode_records(made._replace(**changed))


class Bench:
    """A log whose flusher works when it is told to, and a producer."""

    def __init__(self, pipeline: Callable[..., Any], client: Callable[..., Any], work: Any) -> None:
        self.broker = pipeline()
        self.broker.allocate(4)
        self._client, self._work = client, work
        self.others = [self.broker.start(each) for each in (Committer, Flusher, Reput)]
        self.start()
        for number, topic in enumerate((OFFSETS_TOPIC, STAGING_TOPIC)):
            self.producer.ask(encode(Route(number, topic, True)))

    def start(self) -> None:
        self.writer = self.broker.start(Writer)
        self.producer = self._client(self.broker, self.writer)
        self.producer.hello(0)  # from where a copy can lie

    def stage(self, *bodies: bytes, topic: str = STAGING_TOPIC) -> tuple[int, ...]:
        """Store messages; their log offsets."""
        found = []
        for number, body in enumerate(bodies):
            frame = [QueueRun(topic, 1, 1)], record(topic, body, f"part-{number}", 1)
            (answer,) = self.producer.append_runs(*frame)
            found.append(answer.runs[0].physical_offset)
        return tuple(found)

    def flush(self) -> None:
        self.broker.positions.initialise("flush_wanted", self.broker.positions["wrote"])
        self._work(*self.others)
        assert self.broker.positions["flushed"] == self.broker.positions["wrote"]

    def staged(self, *bodies: bytes) -> tuple[int, ...]:
        """Messages of the staging topic that are on disk."""
        places = self.stage(*bodies)
        self.flush()
        return places

    def send(self, places: Sequence[int], *, retry: bool = False, count: int = 3) -> Any:
        """The answer to a frame that names these, and moves an offset of its own."""
        move, properties = move_of("g", {"in": {0: (NONE, 1)}})
        last = encode_properties(properties | {"UNIQ_KEY": "move"})
        begin, properties = begin_of("g", count + 2)
        first = encode_properties(properties | {"UNIQ_KEY": "begin"})
        payload = b"".join(
            encode_record(Record(OFFSETS_TOPIC, body, raw, born_host=HOST))
            for body, raw in ((begin, first), (move, last))
        )
        staged = tuple(places)
        (answer,) = self.producer.append_runs([OWN, OWN], payload, retry=retry, staged=staged)
        return answer

    def refused(self, places: Sequence[int], **fields: Any) -> str:
        wrote = self.broker.positions["wrote"]
        answer = self.send(places, **fields)
        assert isinstance(answer, Refused), answer
        assert self.broker.positions["wrote"] == wrote, "nothing of it is stored"
        self.producer.hello(0)  # a frame of several runs ends its session
        return answer.status

    def bodies(self, topic: str, queue: int) -> list[bytes]:
        self.flush()
        return [bytes(each.body) for each in self.broker.stored(topic, queue)]


@pytest.fixture
def bench(
    pipeline: Callable[..., Any], client: Callable[..., Any], work: Callable[..., None]
) -> Bench:
    return Bench(pipeline, client, work)


@pytest.mark.parametrize("parts", [1, 3])
def test_what_a_frame_names_is_stored_between_its_first_and_its_last_record(
    bench: Bench, parts: int
) -> None:
    raw = block("a")
    cut = [len(raw) * part // parts for part in range(parts + 1)]
    places = bench.staged(*(raw[start:stop] for start, stop in itertools.pairwise(cut)))
    answer = bench.send(places)
    assert isinstance(answer, Appended)
    assert [run.first for run in answer.runs] == [0, 1, 3, 4], "of the whole frame"
    assert [run.queue_offset for run in answer.runs] == [0, 0, 0, 1]
    assert bench.bodies("orders", 0) == [b"a0", b"a1"]
    assert bench.bodies("orders", 3) == [b"a2"]
    assert len(bench.bodies(OFFSETS_TOPIC, 0)) == 2
    bench.refused(places)  # the offset has moved


def test_what_is_not_on_disk_yet_is_not_staged(bench: Bench) -> None:
    """After a power failure the frame would name what is not there, or something else."""
    places = bench.stage(block("a"))
    assert bench.refused(places) == "PULL_OFFSET_MOVED"
    bench.flush()
    assert isinstance(bench.send(places), Appended)


def test_a_frame_that_is_sent_again_to_another_writer_is_stored_once(bench: Bench) -> None:
    places = bench.staged(block("a"))
    assert isinstance(bench.send(places), Appended)
    wrote = bench.broker.positions["wrote"]
    bench.broker.crash(bench.writer)
    bench.start()
    assert isinstance(bench.send(places, retry=True), Appended)
    assert bench.broker.positions["wrote"] == wrote


def test_what_is_no_staged_message_is_taken_for_expired(bench: Bench) -> None:
    (good,) = bench.staged(block("a"))
    (other,) = bench.stage(block("b"), topic="orders")
    bench.flush()
    wrote = bench.broker.positions["wrote"]
    for place in (other, good + 1, good + 200, wrote - 1, wrote, wrote + (1 << 16), 1 << 61):
        assert bench.refused([place]) == "PULL_OFFSET_MOVED"
        assert bench.refused([good, place]) == "PULL_OFFSET_MOVED"
    bench.broker.positions.initialise("log_start", good + 1)
    assert bench.refused([good]) == "PULL_OFFSET_MOVED"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\x95\x08\xc2\x90\xc4\x00" + b"\x91" * 9000,  # lists in lists after the last field
        b"\x94\x08\xc2\xdd\xff\xff\xff\xff",  # a list of 4 billion runs
        encode_records(Records(Shape(20), OUTPUTS, memoryview(outputs("a")))),
        block("a", runs=[("orders", 0, 2), ("orders", 3, 0)]),
        block("a", runs=[("orders", 0, 2), ("orders", 3, 2)]),
        block("a", runs=OUTPUTS[:1]),
        block("a", runs=[("orders", 0, 1)] * 5000),
        block("a", payload=memoryview(outputs("a")[:-1])),
        block("a", payload=memoryview(outputs("a").replace(b"a1", b"b1"))),
    ],
)
def test_staged_records_are_looked_at_as_any_that_come(bench: Bench, raw: bytes) -> None:
    pieces = [raw[at : at + PART_BYTES] for at in range(0, len(raw), PART_BYTES)]
    assert bench.refused(bench.staged(*pieces or [b""])) == "MESSAGE_ILLEGAL"


def test_a_frame_names_what_it_has_said_in_its_first_record(bench: Bench) -> None:
    places = bench.staged(block("a"))
    assert bench.refused(places, count=4) == "MESSAGE_ILLEGAL"
    assert bench.refused([*places] * 2) == "MESSAGE_ILLEGAL", "two blocks are not one"
    for runs in ([OWN], [OWN, OWN, OWN]):
        (answer,) = bench.producer.append_runs(runs, b"", staged=places)
        assert answer.status == "MESSAGE_ILLEGAL"
        bench.producer.hello(0)


def test_staged_records_come_back_as_views_of_their_bytes() -> None:
    raw = block("a")
    found = decode_records(memoryview(raw))
    assert (found.shape, list(found.runs), found.total) == (Shape(), OUTPUTS, 3)
    assert found.payload.obj is raw and found.payload == outputs("a")


@pytest.mark.parametrize("runs", [[("orders", -1, 2)], [("orders", 0, 1 << 62)], [("orders", 0)]])
def test_numbers_that_cannot_be_are_refused(runs: Any) -> None:
    with pytest.raises(InvalidMessage, match="cannot be read"):
        decode_records(encode_records(Records(Shape(), runs, memoryview(b""))))
