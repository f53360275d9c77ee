"""What the transactions actor does at its limits: of requests, of frames, of memory and of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.transactions import endings, follower, requests
from penstock.actors.transactions.actor import SOON_MS
from penstock.shared.clock import ManualClock
from penstock.shared.messaging.half import committed, parse_op
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.store.transaction_progress import load_transaction_progress
from penstock.shared.wire.messages import Refused

Scenes = Callable[..., Any]
INTERVAL_MS = 10_000_000


def heard(broker: Any, count: int) -> None:
    """Wait until this many half messages are ending; of the actors this one alone works."""
    broker.until(lambda: len(broker.actor._endings) == count, "what was told", alone=True)


def test_who_ends_one_too_many_at_once_is_told_to_say_it_again(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for their half message count, and those that wait for the writer."""
    broker = scene()
    first, second = broker.half(), broker.half()
    broker.dispatched()
    producer, others = broker.producer(), [broker.producer() for _ in range(2)]
    for each in (producer, *others):
        each.register()
    reput = broker.others.pop()
    early = broker.half()
    monkeypatch.setattr(requests, "MAX_WAITING", 2)
    producer.tell(early, "commit")
    broker.until(lambda: broker.actor._requests._early, "the one that is early", alone=True)
    producer.tell(first, "commit")
    heard(broker, 1)
    others[0].tell(second, "commit")
    broker.until(lambda: others[0]._take() or others[0]._answers, "a refusal", alone=True)
    (refused,) = others[0]._answers
    assert isinstance(refused, Refused) and refused.status == "SYSTEM_BUSY"
    assert refused.retry_after_ms == requests.BUSY_RETRY_MS
    assert producer.answer().outcome == "commit"
    assert others[1].end(second, "rollback").outcome == "rollback", "there is room again"
    broker.others.append(reput)
    assert producer.answer().outcome == "commit"


def test_what_would_begin_at_the_logs_end_is_not_waited_for(scene: Scenes) -> None:
    broker = scene()
    half, producer = broker.half(), broker.producer()
    broker.dispatched()
    half.offset, half.position = half.offset + 1, broker.broker.positions["wrote"]
    assert isinstance(producer.end(half, "commit"), Refused)


def test_of_what_is_committed_the_last_places_are_remembered_and_others_found(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_PLACES", 2)
    broker, answers = scene(), {}
    halves = [broker.half(b"%d" % number) for number in range(4)]
    producer = broker.producer()
    for half, outcome in zip(halves, ("commit", "commit", "rollback", "commit"), strict=True):
        answers[half] = producer.end(half, outcome)
    assert [*broker.actor._requests._places] == [halves[1].offset, halves[3].offset]
    broker.dispatched()
    for half, answer in answers.items():
        again = producer.end(half, "rollback")
        assert (again.outcome, again.physical_offset) == (answer.outcome, answer.physical_offset)


@pytest.mark.parametrize(
    ("most", "copies", "less_bytes", "frames"),
    [(3, 7, 0, [3, 3, 1]), (256, 2, 0, [2, 2, 2, 1]), (256, 2, 1, [1] * 7)],
)
def test_a_frame_has_as_many_as_its_limits_have_room_for(
    scene: Scenes,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    copies: int,
    less_bytes: int,
    frames: list[int],
) -> None:
    monkeypatch.setattr(endings, "MAX_IN_FLIGHT", 0)
    broker = scene()
    halves = [broker.half(b"12345") for _ in range(7)]
    broker.dispatched()
    copy = committed(broker.queue(HALF_TOPIC)[0])
    size = len(copy.body) + len(copy.properties)
    monkeypatch.setattr(endings, "MOST_AT_ONCE", most)
    monkeypatch.setattr(endings, "FRAME_BYTES", copies * size - less_bytes)
    producer = broker.producer()
    for half in halves:
        producer.tell(half, "commit")
    heard(broker, 7)
    assert not broker.actor.drained(), "they wait for a frame"
    monkeypatch.setattr(endings, "MAX_IN_FLIGHT", 2)
    broker.actor.work()
    assert len(broker.actor._sender) == 2, "the others wait for an answer to one of these"
    assert {producer.answer().outcome for _ in halves} == {"commit"}
    broker.dispatched()
    assert [len(parse_op(each.body)) for each in broker.queue(OP_TOPIC)] == frames
    assert broker.actor.drained()


def test_progress_is_saved_at_its_time_and_not_before(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "SAVE_MS", INTERVAL_MS)
    broker = scene(transaction_check_interval_ms=10 * INTERVAL_MS)
    clock, file, at_ms = broker.broker.clock, broker.broker.paths.transactions, 0
    for number in range(1, 4):
        assert broker.producer().end(broker.half(), "rollback").outcome == "rollback"
        broker.dispatched()
        at_ms += INTERVAL_MS
        clock.advance(at_ms - 1 - clock.monotonic_ms())
        broker.actor.work()
        saved = load_transaction_progress(file)
        assert (saved.half if saved else 0) == number - 1
        clock.advance(1)
        broker.actor.work()
        saved = load_transaction_progress(file)
        assert saved is not None and saved.half == number
    assert clock.monotonic_ms() == ManualClock().monotonic_ms() + 3 * INTERVAL_MS


def test_a_file_that_cannot_be_written_is_told_of_once_until_it_can(
    scene: Scenes, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = scene()
    file, told = broker.broker.paths.transactions, 0
    for _ in range(2):
        file.unlink(missing_ok=True)
        file.mkdir(parents=True)
        assert broker.producer().end(broker.half(), "rollback").outcome == "rollback"
        broker.dispatched()
        for _ in range(3):
            broker.pass_time(follower.SAVE_MS)
            told += capfd.readouterr().err.count("cannot be written")
            assert told == 1
        file.rmdir()
        broker.pass_time(follower.SAVE_MS)
        broker.until(lambda: load_transaction_progress(file), "the saved progress")
        told = 0


def test_it_sleeps_until_a_check_is_due_and_hardly_while_somebody_waits(scene: Scenes) -> None:
    broker = scene(transaction_check_interval_ms=INTERVAL_MS)
    broker.crash()
    clock, actor = broker.broker.clock, broker.actor
    actor.work()  # it has greeted the writer, which has not answered
    listened = broker.broker.stage_of(actor)._listened
    assert actor.idle_ms() == SOON_MS, "it does not know yet what is stored"
    assert actor._writer in listened and actor._socket not in listened
    producer = broker.producer()
    producer.register()
    broker.until(lambda: not len(actor._sender), "the writer's answers")
    assert actor.idle_ms() == min(QUIET_TICK_MS, actor._inlet.idle_ms) > SOON_MS
    assert actor._socket in listened
    reput = broker.others.pop()
    producer.tell(broker.half(), "commit")
    broker.until(lambda: actor._requests._early, "the one that is early", alone=True)
    assert actor.idle_ms() == SOON_MS, "nobody is notified when it has come to its queue"
    broker.others.append(reput)
    producer.answer()
    broker.until(lambda: not len(actor._sender), "the writer's answer")
    clock.advance(actor._checks.wait_ms() - 3)
    actor.work()
    assert actor.idle_ms() == 3


def test_while_it_stops_it_asks_nobody_and_takes_no_request(scene: Scenes) -> None:
    broker = scene(transaction_check_interval_ms=INTERVAL_MS, transaction_time_out_ms=1)
    half, producer = broker.half(), broker.producer()
    broker.dispatched()
    producer.register()
    (peer,) = broker.actor._producers._groups["shop"]
    stage, clock = broker.broker.stage_of(broker.actor), broker.broker.clock
    clock.advance(INTERVAL_MS - clock.monotonic_ms())
    broker.actor._producers.register("shop", peer, clock.monotonic_ms())
    stage.stopping = True
    producer.tell(half, "commit")
    for _ in range(20):
        broker.turn()
    assert broker.broker.positions["transaction_checks"] == 0 and broker.actor.drained()
    stage.stopping = False
    assert producer.answer().outcome == "commit"
