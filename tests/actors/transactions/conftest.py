"""The actors that a transaction passes, in this process, driven until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.transactions import Transactions
from penstock.actors.writer import Writer
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.messaging.half import half_properties
from penstock.shared.messaging.system_topics import HALF_TOPIC
from penstock.shared.wire.messages import Append, Appended, CreateTopic, Hello, QueueRun, encode
from penstock.shared.wire.messages import decode_produce_answer as decode_produced
from penstock.shared.wire.transaction_messages import (
    CheckTransaction,
    EndTransaction,
    Registered,
    RegisterProducer,
    decode_transaction_answer,
)

HOST = pack_host("127.0.0.1", 4711)
# only a hang takes this long, whatever else the machine does
WAIT_S = 120


class Half:
    """A half message that a test has stored."""

    def __init__(self, key: str, offset: int, position: int) -> None:
        self.key, self.offset, self.position = key, offset, position


class Scene:
    """A broker whose actors are driven by `until`."""

    def __init__(self, pipeline: Any) -> None:
        self.broker = pipeline
        pipeline.allocate(8)
        self.writer = pipeline.start(Writer)
        self.others = [pipeline.start(each) for each in (Committer, Flusher, Reput)]
        self.actor = pipeline.start(Transactions)
        self._produce = pipeline.client(pipeline.run.endpoints.produce)
        self._session = self._seq = 0
        self._number = 0
        self.log: list[Any] = []
        self._tell(encode(CreateTopic(1, "orders", 4)))
        self._tell(encode(Hello(99, 1, 1, 0)))

    def turn(self) -> None:
        for actor in (self.writer, *self.others, *([self.actor] if self.actor else [])):
            actor.work()
        self.broker.clock.advance(1)

    def until(
        self, wanted: Callable[[], Any], why: str = "what is waited for", alone: bool = False
    ) -> Any:
        """`alone`: of the actors that of transactions works, and time stands still."""
        deadline = time.monotonic() + WAIT_S
        while not (found := wanted()):
            assert time.monotonic() < deadline, f"{why} does not come"
            if alone:
                self.actor.work()
            else:
                self.turn()
        return found

    def is_ready(self) -> None:
        """Wait until the actor knows what was stored before it began. It learns from the writer how
        far that is, so what is written meanwhile counts as well, and is waited for in its queue."""
        assert isinstance(self.producer().register(), Registered)

    def pass_time(self, ms: int) -> None:
        """Let the clock go on, and the actors see it. What is on its way arrives before that:
        sockets keep the machine's time, and what is late by it is not late by this clock."""
        if self.actor:
            self.until(lambda: not len(self.actor._sender), "the writer's answers")
        self.broker.clock.advance(ms)
        self.turn()

    def _tell(self, *parts: bytes) -> Any:
        self.until(lambda: self._produce.poll(0, 2) or True)
        self._produce.send_multipart(parts)
        self.until(lambda: self._produce.poll(0), "an answer of the writer")
        return decode_produced(self._produce.recv_multipart()[0])

    def put(self, *records: Record, ack: str = "durable") -> Appended:
        """Store these in one frame, by a producer."""
        self._seq += 1
        runs = tuple(QueueRun(each.topic, each.queue_id, 1) for each in records)
        header = Append(99, 1, self._seq, runs, ack, False)
        answer = self._tell(encode(header), b"".join(map(encode_record, records)))
        assert isinstance(answer, Appended), answer
        return answer

    def half(
        self, body: bytes = b"body", group: str = "shop", skew_ms: int = 0, **more: str
    ) -> Half:
        """Store a half message for orders/1, by a producer whose clock is this far ahead."""
        self._number += 1
        key = f"KEY{self._number:04d}"
        words = {"UNIQ_KEY": key} | half_properties("orders", 1, group) | more
        record = Record(
            HALF_TOPIC,
            body,
            with_prop_crc_room(
                encode_properties(words), self.broker.config.enabled_append_prop_crc
            ),
            born_host=HOST,
            born_timestamp_ms=self.broker.clock.now_ms() + skew_ms,
        )
        (run,) = self.put(record).runs
        return Half(key, run.queue_offset, run.physical_offset)

    def producer(self, group: str = "shop") -> Client:
        return Client(self, group)

    def queue(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All that stands in a queue by now."""
        found: list[Record] = self.broker.stored(topic, queue_id)
        return found

    def dispatched(self) -> None:
        """Wait until all that is written is in its queue."""
        positions = self.broker.positions
        self.until(lambda: positions["dispatched"] == positions["wrote"], "the reput")

    def crash(self) -> None:
        """The transactions actor is killed, and another one started."""
        self.broker.crash(self.actor)
        self.actor = None
        self.actor = self.broker.start(Transactions, generation=self.next_generation())

    def next_generation(self) -> int:
        self._session += 1
        return self._session


class Client:
    """A producer of transactions, by hand."""

    def __init__(self, scene: Scene, group: str) -> None:
        self._scene, self._group = scene, group
        self.socket = scene.broker.client(scene.broker.run.endpoints.transaction)
        self._number = 0
        self._answers: list[Any] = []
        self._questions: list[Any] = []

    def send(self, request: Any) -> None:
        self._scene.until(lambda: self.socket.poll(0, 2), "a connection")
        self.socket.send(encode(request))

    def register(self) -> Any:
        self._number += 1
        self.send(RegisterProducer(self._number, self._group, "me"))
        return self.answer()

    def tell(self, half: Half, outcome: str, **changes: Any) -> None:
        self._number += 1
        words = {
            "request": self._number,
            "group": self._group,
            "unique_key": half.key,
            "queue_offset": half.offset,
            "physical_offset": half.position,
            "outcome": outcome,
        }
        self.send(EndTransaction(**(words | changes)))

    def end(self, half: Half, outcome: str, **changes: Any) -> Any:
        self.tell(half, outcome, **changes)
        return self.answer()

    def answer(self) -> Any:
        """The next answer to what was said; questions may come between."""
        self._scene.until(lambda: self._take() or self._answers, "an answer")
        return self._answers.pop(0)

    def question(self) -> Any:
        """The next question, with its record."""
        self._scene.until(lambda: self._take() or self._questions, "a question")
        return self._questions.pop(0)

    def is_asked(self) -> bool:
        for _ in range(5):
            self._scene.turn()
        return self.has_question()

    def has_question(self) -> bool:
        """Whether one has come by now."""
        self._take()
        return bool(self._questions)

    def _take(self) -> None:
        while self.socket.poll(0):
            header, *rest = self.socket.recv_multipart()
            answer = decode_transaction_answer(header)
            if isinstance(answer, CheckTransaction):
                self._questions.append((answer, *rest))
            else:
                self._answers.append(answer)


@pytest.fixture
def scene(pipeline: Callable[..., Any]) -> Iterator[Callable[..., Scene]]:
    yield lambda **settings: Scene(pipeline(**settings))
