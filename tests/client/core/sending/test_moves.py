"""Messages whose queue is refused: which of them go to another queue, and which never do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.queue_faults import QueueFaults
from penstock.shared.errors import QueueNotFound
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.wire.messages import Append, decode_produce_request


@pytest.fixture
def wire(make_wire: Callable[..., Any]) -> Any:
    """A wire with an open session; topic a has 4 queues, and the producer knows it."""
    wire = make_wire()
    wire.writer.queues["a"] = 4
    wire.send("a", None, 0, "", 1)
    wire.heal(8)
    return wire


def test_what_may_go_anywhere_goes_to_the_queues_that_are_left(wire: Any) -> None:
    wire.writer.queues["a"] = 2
    free = [wire.send("a", None, None, "", number) for number in range(40)]
    free += [wire.send_batch("a", None, "", [1, 2, 3]) for _ in range(8)]
    wire.heal(60)
    assert {future.result(0).queue_id for future in free} == {0, 1}
    assert len({each.key for each in wire.writer.log}) == len(wire.writer.log) == 1 + 40 + 24
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


def test_what_chose_its_queue_fails_and_never_moves(wire: Any) -> None:
    wire.writer.queues["a"] = 2
    named = wire.send("a", None, 3, "", 1)
    shard = next(f"k{number}" for number in range(99) if shard_queue(f"k{number}", 4) == 2)
    by_key = wire.send("a", shard, None, "", 1)
    batch = wire.send_batch("a", 3, "", [1, 2])
    wire.heal(60)
    for future in (named, by_key, batch):
        assert isinstance(future.exception(0), QueueNotFound)
    assert len(wire.writer.log) == 1
    later = wire.send("a", shard, None, "", 1)
    wire.heal(5)
    assert later.result(0).queue_id == shard_queue(shard, 2), "the refusal had the route asked for"


@pytest.mark.parametrize("queue", [3, None])
def test_what_chose_its_queue_before_any_was_known_never_moves(
    make_wire: Callable[..., Any], queue: int | None
) -> None:
    wire = make_wire()
    wire.writer.queues["a"] = 4
    shard = next(f"k{number}" for number in range(99) if shard_queue(f"k{number}", 4) == 3)
    future = wire.send("a", None if queue else shard, queue, "", 1)
    for _ in range(3):  # Hello, Route
        wire.pump(1000)
        wire.to_writer(wire.now, 1000)
        wire.to_producer(1000)
        wire.writer.queues["a"] = 2 if future.run is not None else 4
    assert future.run is not None
    wire.heal(60)
    assert isinstance(future.exception(0), QueueNotFound)


def test_what_may_be_stored_does_not_move(wire: Any) -> None:
    """Their first try is stored, and unanswered; then the queue of one is gone."""
    futures = [wire.send("a", None, None, "", 1) for _ in range(2)]
    wire.pump(1000)
    wire.to_writer(wire.now, 1000)
    first, last = sorted(wire.writer.log[1:], key=lambda stored: stored.queue_id)
    wire.cut(0)
    wire.writer.queues["a"] = last.queue_id  # which is the first that is not there
    wire.heal(60)
    outcomes = {future.unique_key: future.exception(0) for future in futures}
    assert outcomes[first.key] is None and isinstance(outcomes[last.key], QueueNotFound)
    assert len(wire.writer.log) == 3


def test_a_message_tries_so_many_queues_and_each_once(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that names queues and then refuses them all."""
    refused: list[int] = []
    receive = wire.writer.receive

    def refuse(peer: bytes, parts: tuple[bytes, ...]) -> None:
        request = decode_produce_request(parts[0])
        if isinstance(request, Append):
            refused.extend(run.queue_id for run in request.runs)
            wire.writer.queues["a"] = 0
            receive(peer, parts)
            wire.writer.queues["a"] = 4
        else:
            receive(peer, parts)

    monkeypatch.setattr(wire.writer, "receive", refuse)
    future = wire.send("a", None, None, "", 1)
    wire.heal(60)
    assert isinstance(future.exception(0), QueueNotFound)
    assert len(refused) == len(set(refused)) == 1 + 2, "RocketMQ's retryTimesWhenSendFailed"


@pytest.mark.parametrize("rests", [False, True])
def test_a_queue_that_was_refused_rests_where_that_is_asked_for(wire: Any, rests: bool) -> None:
    wire.core.moves.faults = QueueFaults() if rests else None
    wire.writer.queues["a"] = 3
    moved = [wire.send("a", None, None, "", 1) for _ in range(4)]
    wire.heal(20)
    assert {future.result(0).queue_id for future in moved} == {0, 1, 2}
    wire.writer.queues["a"] = 4  # and so the route that comes with the next question
    wire.core.routes.rotation.begin("a", 4)
    futures = [wire.send("a", None, None, "", 1) for _ in range(8)]
    wire.heal(20)
    used = {future.result(0).queue_id for future in futures}
    assert used == ({0, 1, 2} if rests else {0, 1, 2, 3})
    wire.now_ms += 10_000
    wire.heal(2)
    later = [wire.send("a", None, None, "", 1) for _ in range(8)]
    wire.heal(20)
    assert {future.result(0).queue_id for future in later} == {0, 1, 2, 3}


def test_slow_answers_have_their_queues_rest(wire: Any) -> None:
    wire.core.moves.faults = QueueFaults()
    slow = [wire.send("a", None, queue, "", 1) for queue in (1, 2)]
    wire.pump(1000)
    wire.to_writer(wire.now, 1000)
    wire.now_ms += 600  # a row of the table: two seconds
    wire.writer.flush()
    wire.to_producer(1000)
    assert all(future.done() for future in slow)
    soon = [wire.send("a", None, None, "", 1) for _ in range(8)]
    told = wire.send("a", None, 1, "", 1)
    wire.heal(5)
    assert {future.result(0).queue_id for future in soon} == {0, 3}
    assert told.result(0).queue_id == 1, "who names the queue gets it"
    wire.now_ms += 2000
    wire.heal(2)
    later = [wire.send("a", None, None, "", 1) for _ in range(8)]
    wire.heal(5)
    assert {future.result(0).queue_id for future in later} == {0, 1, 2, 3}


def test_a_queue_that_was_refused_rests_at_once(wire: Any) -> None:
    wire.core.moves.faults = QueueFaults()
    refused = wire.send("a", None, 3, "", 1)
    wire.pump(1000)
    wire.writer.queues["a"] = 3
    wire.to_writer(wire.now, 1000)
    wire.writer.queues["a"] = 4
    wire.to_producer(1000)
    assert isinstance(refused.exception(0), QueueNotFound)
    futures = [wire.send("a", None, None, "", 1) for _ in range(8)]
    wire.heal(20)
    assert {future.result(0).queue_id for future in futures} == {0, 1, 2}


def test_a_message_that_moves_is_acknowledged_as_it_was_to_be(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acks: list[str] = []
    receive = wire.writer.receive

    def note(peer: bytes, parts: tuple[bytes, ...]) -> None:
        request = decode_produce_request(parts[0])
        if isinstance(request, Append):
            acks.append(request.ack)
        receive(peer, parts)

    monkeypatch.setattr(wire.writer, "receive", note)
    wire.writer.queues["a"] = 1
    futures = [wire.send("a", None, None, "written", 1) for _ in range(4)]
    wire.heal(60)
    assert {future.result(0).queue_id for future in futures} == {0}
    assert set(acks) == {"written"} and len(acks) > 1


class History:
    """Sends of all kinds to a topic that loses and gets queues, with accidents."""

    def __init__(self, wire: Any, random: Random) -> None:
        self.wire, self.random = wire, random
        self.counts = {2}
        self.sent: list[tuple[SendFuture, str | None, int | None]] = []
        wire.core.moves.faults = QueueFaults() if random.random() < 0.5 else None

    def step(self) -> None:
        wire, random = self.wire, self.random
        luck = random.random()
        if luck < 0.4:
            shard = random.choice((None, None, "k1", "k2"))
            queue = None if shard else random.choice((None, None, 0, 1))
            ack = random.choice(("", "written"))
            with suppress(QueueNotFound):  # of what it knows of the topic by then
                self.sent.append((wire.send("a", shard, queue, ack, 10), shard, queue))
        elif luck < 0.45:
            self.sent.append((wire.send_batch("a", None, "", [1, 2]), None, None))
        elif luck < 0.55:
            count = random.randrange(1, 6)
            self.counts.add(count)
            wire.writer.queues["a"] = count
        elif luck < 0.6:
            wire.cut(random.choice((0, 1, 100)))
        elif luck < 0.63:
            wire.writer.busy_next = True
        elif luck < 0.66:
            wire.cut(0)
            wire.old.clear()
            wire.writer.begin()
        else:
            wire.connect()
            wire.now_ms += random.choice((1, 10, 150))
            wire.pump(random.choice((1000, 1)))
            wire.to_writer(wire.now, random.choice((0, 1, 100)))
            if random.random() < 0.5:
                wire.writer.flush()
            wire.to_producer(random.choice((0, 1, 100)))

    def check(self) -> None:
        wire = self.wire
        stored = {each.key: each for each in wire.writer.log}
        assert len(stored) == len(wire.writer.log), "nothing is stored twice"
        assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0
        orders: dict[tuple[str, int], list[str]] = {}
        for future, shard, queue in self.sent:
            keys = future.unique_key.split(",")
            error = future.exception(0)
            assert error is None or isinstance(error, QueueNotFound)
            for key in keys:
                assert error is not None or key in stored
                if (found := stored.get(key)) is None:
                    continue
                if queue is not None:
                    assert found.queue_id == queue
                if shard is not None:
                    queues = {shard_queue(shard, count) for count in self.counts}
                    assert found.queue_id in queues
                    orders.setdefault((shard, found.queue_id), []).append(key)
        places = {each.key: number for number, each in enumerate(wire.writer.log)}
        for order in orders.values():
            at = [places[key] for key in order]
            assert at == sorted(at), "of one key none stands before an earlier one"


def test_any_history_stores_each_once_in_a_queue_that_it_may_have(
    make_wire: Callable[[], Any],
) -> None:
    failed = moved = 0
    for seed in range(1000):
        history = History(make_wire(), Random(seed))
        for _ in range(60):
            history.step()
        history.wire.heal(80)
        try:
            history.check()
        except AssertionError as error:
            raise AssertionError(f"history {seed}") from error
        failed += sum(future.exception(0) is not None for future, *_ in history.sent)
        moved += len(history.sent)
    assert 0 < failed < moved / 4
