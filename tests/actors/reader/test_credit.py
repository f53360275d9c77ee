"""A pull with credit is held again after each short answer: lone messages cost few questions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.reader import Reader
from penstock.actors.reader.held_pulls import MAX_WAIT_MS
from penstock.actors.reput import Reput
from penstock.client.core.message import split_records
from penstock.shared.log.found_records import LEAST_DIRECT_BYTES
from penstock.shared.process.doorbells import LAZY_MS
from penstock.shared.wire.messages import Pull, Pulled, decode_consume_answer, encode

ANSWER_S, WAIT_MS = 60, 5000


class Consumer:
    """One by hand that has read three queues, each of one message, to their ends."""

    def __init__(self, pipeline: Callable[..., Any], work: Callable[..., None]) -> None:
        self.broker = pipeline(flush_disk_type="async")
        self._others = self.broker.start(Committer), self.broker.start(Reput)
        self._work = work
        for queue_id in range(3):
            self.broker.append(queue_id=queue_id, size=1)
        self.catch_up()
        self.reader = self.broker.start(Reader)
        self.reader.work()  # what lies below its first look it leaves to the queues
        self.socket = self.broker.client(self.broker.run.endpoints.consume)
        self._request = 0

    def catch_up(self) -> None:
        """The queues get what is in the log."""
        self.broker.clock.advance(LAZY_MS)  # their bells are lazy
        self._work(*self._others)
        assert self.broker.positions["queued"] == self.broker.positions["wrote"]

    def ask(
        self,
        credit: int,
        wait_ms: int = WAIT_MS,
        cursors: dict[int, int] | None = None,
        max_bytes: int = 1 << 20,
        socket: Any = None,
    ) -> None:
        """Send a pull, from the queues' ends; the reader has it, and has answered if it can."""
        self._request += 1
        at = {0: 1, 1: 1, 2: 1} if cursors is None else cursors
        asked = self._request, "orders", at, 3, max_bytes, wait_ms, None, True, "", credit
        socket = socket or self.socket
        self.broker.ask(self.reader, socket, encode(Pull(*asked)), answers=0)
        self._drive(lambda: self._request in [pull.request for pull in self.held] or socket.poll(1))

    def _drive(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + ANSWER_S
        while not condition():
            assert time.monotonic() < until, "it does not come about"
            self.reader.work()

    @property
    def held(self) -> list[Pull]:
        return [each.pull for each in self.reader._plain.waiting()]

    def next(self) -> tuple[Pulled, list[tuple[int, int]]]:
        """The next answer: of its messages queue and offset."""
        self._drive(lambda: self.socket.poll(1))
        header, payload = self.socket.recv_multipart()
        answer = decode_consume_answer(header)
        assert isinstance(answer, Pulled) and answer.request == self._request, answer
        records = split_records(memoryview(payload))
        return answer, [(each.queue_id, each.queue_offset) for each in records]

    def says_nothing(self) -> bool:
        """Whether the reader, which has looked, leaves the pull where it is."""
        before = self.held
        while self.reader.work():
            pass
        return self.held == before != []


@pytest.fixture
def consumer(pipeline: Callable[..., Any], work: Callable[..., None]) -> Consumer:
    return Consumer(pipeline, work)


def test_a_pull_is_answered_as_often_as_it_has_credit_each_time_from_where_it_was(
    consumer: Consumer,
) -> None:
    consumer.ask(credit=3)
    for number, queue_id in enumerate((0, 2, 0)):
        assert consumer.broker.positions["waiting_pulls"] == 1
        consumer.broker.append(queue_id=queue_id, size=10)
        answer, found = consumer.next()
        offset = 2 if number == 2 else 1
        assert found == [(queue_id, offset)] and answer.credit == 2 - number
        assert [(part.queue_id, part.offset) for part in answer.slices] == found
    assert consumer.held == [] and consumer.broker.positions["waiting_pulls"] == 0


def test_the_queues_get_what_it_was_given_and_it_is_given_nothing_twice(consumer: Consumer) -> None:
    consumer.ask(credit=9)
    consumer.broker.append(queue_id=1, size=10)
    assert consumer.next()[1] == [(1, 1)]
    consumer.catch_up()
    assert consumer.says_nothing()
    consumer.broker.append(queue_id=1, size=10)
    consumer.catch_up()
    assert consumer.next()[1] == [(1, 2)], "out of the queue this time"


def test_one_that_comes_when_there_is_something_is_answered_and_held(consumer: Consumer) -> None:
    consumer.broker.append(queue_id=1, size=10)
    consumer.ask(credit=2)
    answer, found = consumer.next()
    assert found == [(1, 1)] and answer.credit == 1
    assert consumer.held[0].cursors == {0: 1, 1: 2, 2: 1}


def test_its_time_begins_anew_with_each_answer(consumer: Consumer) -> None:
    consumer.ask(credit=9)
    consumer.broker.clock.advance(WAIT_MS - 1)
    consumer.broker.append(queue_id=1, size=10)
    assert consumer.next()[0].credit == 8
    consumer.broker.clock.advance(WAIT_MS - 1)
    assert consumer.says_nothing()
    consumer.broker.clock.advance(1)
    answer, found = consumer.next()
    assert found == [] and answer.credit == 0 and consumer.held == []


@pytest.mark.parametrize("wait_ms", [MAX_WAIT_MS, MAX_WAIT_MS + 1])
def test_nobody_is_held_for_longer_than_anybody(consumer: Consumer, wait_ms: int) -> None:
    consumer.ask(credit=9, wait_ms=wait_ms)
    consumer.broker.append(queue_id=1, size=10)
    assert consumer.next()[0].credit == 8
    consumer.broker.clock.advance(MAX_WAIT_MS)
    assert consumer.next()[0].credit == 0


def test_who_does_not_wait_is_not_held(consumer: Consumer) -> None:
    consumer.broker.append(queue_id=1, size=10)
    consumer.ask(credit=9, wait_ms=0)
    answer, found = consumer.next()
    assert found == [(1, 1)] and answer.credit == 0 and consumer.held == []


@pytest.mark.parametrize("is_short", [True, False])
def test_a_long_answer_ends_it_for_its_consumer_is_behind(
    consumer: Consumer, is_short: bool
) -> None:
    sizes = [LEAST_DIRECT_BYTES // 5 - (400 if is_short else 0)] * 5
    for size in sizes:
        consumer.broker.append(queue_id=1, size=size)
    consumer.catch_up()  # more than is read from the log's end
    consumer.ask(credit=9)
    assert consumer.next()[0].credit == (8 if is_short else 0)


def test_an_answer_that_has_not_all_ends_it(consumer: Consumer) -> None:
    for _ in range(2):
        consumer.broker.append(queue_id=1, size=100)
    consumer.ask(credit=9, max_bytes=1)
    answer, found = consumer.next()
    assert found == [(1, 1)] and answer.credit == 0


def test_a_queue_that_cannot_be_read_ends_it_for_its_consumer_leaves_that_out(
    consumer: Consumer,
) -> None:
    consumer.broker.append(queue_id=0, size=10)
    consumer.broker.append(queue_id=1, size=10)
    consumer.catch_up()
    (file,) = (consumer.broker.paths.consume_queue / "orders" / "1").iterdir()
    os.truncate(file, 10)
    consumer.ask(credit=9)
    answer, found = consumer.next()
    assert found == [(0, 1)] and [each.queue_id for each in answer.unreadable] == [1]
    assert answer.credit == 0 and consumer.held == []


def test_a_queue_that_is_new_ends_it_so_that_the_consumer_asks_for_it(consumer: Consumer) -> None:
    consumer.ask(credit=9)
    consumer.broker.append(queue_id=3, size=10)
    consumer.broker.append(queue_id=0, size=10)
    consumer.catch_up()
    answer, found = consumer.next()
    assert found == [(0, 1)] and answer.queue_ids == (0, 1, 2, 3) and answer.credit == 0


def test_where_a_cursor_has_to_move_nothing_waits_behind_the_answer(consumer: Consumer) -> None:
    consumer.ask(credit=9, cursors={0: 1, 1: 7, 2: 1})
    answer, _ = consumer.next()
    part = next(part for part in answer.slices if part.queue_id == 1)
    assert (part.offset, part.next_offset) == (7, 1) and answer.credit == 0
    assert consumer.held == []


def test_a_crowd_does_not_keep_out_those_who_ask_later(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was answered last has waited for the shortest time, not whoever came first."""
    others = [consumer.broker.client(consumer.broker.run.endpoints.consume) for _ in range(2)]
    for queue_id, socket in enumerate(others):
        consumer.ask(credit=9, cursors={queue_id: 1}, socket=socket)
    consumer.broker.append(queue_id=0, size=10)
    consumer.reader.work()
    assert others[0].poll(ANSWER_S * 1000)
    assert [list(pull.cursors) for pull in consumer.held] == [[1], [0]]
    monkeypatch.setattr("penstock.actors.reader.actor.MAX_HELD", 2)
    consumer.ask(credit=9)
    assert others[1].poll(ANSWER_S * 1000), "it had waited for longest"
    assert [list(pull.cursors) for pull in consumer.held] == [[0], [0, 1, 2]]
