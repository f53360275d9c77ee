"""Rules of the producer core that no accident is needed for: what it asks, sends, and gives up."""

from __future__ import annotations

from threading import Condition
from typing import Any

import pytest

from penstock.client.core.sending.busy_broker import CONNECT_MS, PROBE_MS
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import Frame, SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.routes import ASK_AGAIN_MS
from penstock.shared.errors import (
    BrokerTimeout,
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
    WrongStore,
)
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.formats.message_id import key_origin
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal

NOW = 1_700_000_000_123
IP = bytes([127, 0, 0, 1])


def new_core(ack: str = "") -> ProducerCore:
    packer = Packer(Encoder(IP, key_origin(IP, NOW)), FrameRing(False))
    return ProducerCore("tcp://x:1", Condition(), 5000, ack, packer)


def sent(core: ProducerCore, now_ms: int) -> list[Any]:
    return [
        messages.decode_produce_request(bytes(parts[0])) for parts in list(core.outgoing(now_ms))
    ]


def hear(core: ProducerCore, answer: messages.ProduceAnswer, now_ms: int) -> None:
    core.received([encode(answer)], now_ms)


def open_session(core: ProducerCore, now_ms: int, max_message_bytes: int = 1 << 20) -> None:
    (hello,) = sent(core, now_ms)
    assert isinstance(hello, messages.Hello)
    limits = max_message_bytes, 1 << 22, 1
    hear(core, messages.Welcome(hello.producer, hello.session, 1, 0, *limits), now_ms)


def refuse(core: ProducerCore, append: messages.Append, error: PenstockError, now_ms: int) -> None:
    hear(core, refusal(error, append.seq, append.session), now_ms)


@pytest.fixture
def core() -> ProducerCore:
    """With an open session at 1000 ms, and a topic of two queues."""
    core = new_core()
    open_session(core, 1000)
    hear(core, messages.Routed(core.routes.number(), "a", 2), 1000)
    return core


def send(core: ProducerCore, topic: str = "a", queue: int | None = 0, ack: str = "") -> SendFuture:
    return core.send(topic, BatchMessage(b"x"), None, queue, ack, True, NOW)


@pytest.mark.parametrize(("ack", "means"), [("", "written"), ("durable", "durable")])
def test_a_message_is_acknowledged_as_its_producer_wants_unless_it_says_so_itself(
    ack: str, means: str
) -> None:
    core = new_core("written")
    open_session(core, 0)
    hear(core, messages.Routed(1, "a", 2), 0)
    send(core, ack=ack)
    core.send_batch("a", [b"x"], None, 0, ack, True, NOW)
    core.open_frame(ack)
    core.intake.take("a", b"x", None, None, None, 0, ack, NOW)
    assert [append.ack for append in sent(core, 0)] == [means, means]


def test_a_batch_with_a_key_goes_where_its_key_says_once_the_queues_are_known(
    core: ProducerCore,
) -> None:
    keys = [f"k{number}" for number in range(20)]
    futures = [core.send_batch("new", [b"x", b"y"], key, None, "", True, NOW) for key in keys]
    (asked,) = sent(core, 1000)
    hear(core, messages.Routed(asked.request, "new", 9), 1000)
    found = [future.run.queue_id for future in futures if future.run is not None]
    assert found == [shard_queue(key, 9) for key in keys]


def test_a_message_that_the_broker_turns_out_not_to_take_fails_when_that_is_known() -> None:
    core = new_core()
    large = core.send("a", BatchMessage(b"x" * 11), None, 0, "", True, NOW)
    small = core.send("a", BatchMessage(b"x" * 10), None, 0, "", True, NOW)
    open_session(core, 0, max_message_bytes=10)
    (asked,) = sent(core, 0)
    hear(core, messages.Routed(asked.request, "a", 2), 0)
    assert isinstance(large.exception(0), InvalidMessage) and not small.done()
    assert [len(append.runs) for append in sent(core, 0)] == [1]


def test_a_broker_of_another_store_is_left_soon_for_the_right_one() -> None:
    core = new_core()
    future = send(core)
    core.tick(1000)
    (hello,) = sent(core, 1000)
    hear(core, refusal(WrongStore("another store"), hello.next_seq, hello.session), 1000)
    assert core.routes.aim.away and core.wait_ms(1000) == CONNECT_MS
    core.tick(6001)
    assert isinstance(future.exception(0), WrongStore)


def test_a_question_without_an_answer_is_looked_after_and_an_answer_is_not(
    core: ProducerCore,
) -> None:
    assert core.wait_ms(1000) == 1000
    send(core, "new")
    (asked,) = sent(core, 40_000)[-1:]
    assert core.wait_ms(40_000) == PROBE_MS
    core.tick(40_000 + ASK_AGAIN_MS + 1)
    (again,) = [each for each in sent(core, 40_501) if each.topic == "new"]
    assert again.create and again.request != asked.request
    hear(core, messages.Routed(again.request, "new", 1), 41_000)
    core.tick(42_000)
    routes = [each for each in sent(core, 42_000) if isinstance(each, messages.Route)]
    assert routes == []


def test_a_topic_is_not_asked_for_again_as_soon_as_it_is_known() -> None:
    core = new_core()
    open_session(core, 40_000)
    send(core)
    (asked,) = sent(core, 40_000)
    hear(core, messages.Routed(asked.request, "a", 2), 40_100)
    core.tick(40_200)
    assert [type(each) for each in sent(core, 40_200)] == [messages.Append]


def test_a_topic_that_is_gone_is_asked_for_again_by_its_next_message(core: ProducerCore) -> None:
    first = send(core)
    (append,) = sent(core, 1000)
    refuse(core, append, TopicNotFound("there is no topic of this name", "a"), 1000)
    assert isinstance(first.exception(0), TopicNotFound)
    second = send(core)
    (asked,) = sent(core, 1000)
    assert isinstance(asked, messages.Route) and asked.create and not second.done()


def test_all_messages_of_a_batch_count_as_lost(core: ProducerCore) -> None:
    core.send_batch("new", [b"x", b"y", b"z"], None, None, "", True, NOW)
    (asked,) = sent(core, 1000)
    hear(core, refusal(TopicNotFound("there is no topic of this name"), asked.request), 1000)
    lost = core.failures.take()
    assert lost is not None and lost.topics == {"new": 3}


def test_a_message_that_is_sent_again_has_no_more_time_than_before(core: ProducerCore) -> None:
    future = send(core)
    (append,) = sent(core, 1000)
    hear(core, messages.OutOfStep(append.producer, append.session, append.seq), 4000)
    open_session(core, 4000)
    (again,) = sent(core, 4000)
    assert isinstance(again, messages.Append) and again.retry
    core.tick(6000)
    assert not future.done()
    core.tick(6101)
    assert isinstance(future.exception(0), BrokerTimeout)
    assert "may be stored" in str(future.exception(0))


def test_what_is_stored_together_or_not_at_all_is_not_tried_in_parts(core: ProducerCore) -> None:
    frame = Frame("")
    frame.whole = True
    futures = [SendFuture(core.sender, number) for number in (1, 2)]
    for queue, future in enumerate(futures):
        frame.put("a", queue, b"x", 500, future, True)
    core.outbox.put_frame(frame)
    core.intake.count(2, frame.size)
    (append,) = sent(core, 1000)
    refuse(core, append, QueueNotFound("the topic has no such queue", 1), 1000)
    for future in futures:
        assert isinstance(future.exception(0), QueueNotFound)
    assert core.intake.unsettled == core.intake.waiting_bytes == 0
    assert [type(each) for each in sent(core, 1000)] == [messages.Hello]
