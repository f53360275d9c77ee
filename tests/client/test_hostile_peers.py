"""Whatever a peer sends, it gets a typed refusal or is dropped; everybody else goes on.

The `broker` fixture fails when an actor has failed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
import zmq

from penstock.client import Consumer, Producer
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    MAX_RUNS,
    Append,
    Describe,
    Hello,
    Pull,
    QueueRun,
    Refused,
    Route,
    encode,
)

WAIT_S = 60
PRODUCERS = count(4711)
Peer = Callable[[str], "RawPeer"]


class RawPeer:
    """A DEALER socket that sends what it likes."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self.producer = next(PRODUCERS)

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def answer(self) -> Any:
        """The next answer of the produce or the consume endpoint."""
        assert self.socket.poll(WAIT_S * 1000), "no answer"
        header = self.socket.recv_multipart()[0]
        try:
            return messages.decode_produce_answer(header)
        except messages.ProtocolError:
            return messages.decode_consume_answer(header)

    def refusal(self) -> Refused:
        answer = self.answer()
        assert isinstance(answer, Refused), answer
        assert answer.status and answer.what
        return answer


@pytest.fixture
def peer() -> Iterator[Peer]:
    context: zmq.Context[Any] = zmq.Context()
    peers: list[RawPeer] = []

    def connect(endpoint: str) -> RawPeer:
        peers.append(RawPeer(context, endpoint))
        return peers[-1]

    yield connect
    for each in peers:
        each.socket.close()
    context.term()


@pytest.fixture
def good(broker: Any) -> Iterator[Callable[[], None]]:
    """A producer and a consumer that were there before, and must still be served."""
    with Producer(broker.produce) as producer, Consumer(broker.consume, "good") as consumer:
        sent = 0

        def check() -> None:
            nonlocal sent
            receipt = producer.send("good", b"%d" % sent, queue=0).result(WAIT_S)
            seen = [m.queue_offset for m in consumer.poll(WAIT_S)]
            while receipt.queue_offset not in seen:
                batch = consumer.poll(WAIT_S)
                assert batch
                seen += [m.queue_offset for m in batch]
            sent += 1

        check()
        yield check
        check()


def record(topic: str = "raw", queue_id: int = 0, body: bytes = b"x", key: str = "K") -> bytes:
    properties = encode_properties({"UNIQ_KEY": key})
    return encode_record(Record(topic, body, properties, queue_id=queue_id))


def append(
    seq: int, topic: str = "raw", queue_id: int = 0, count: int = 1, **changes: Any
) -> bytes:
    """A frame's header, of one run unless `changes` has `runs`."""
    usual = Append(1, 1, seq, (QueueRun(topic, queue_id, count),), "", False)
    return encode(msgspec.structs.replace(usual, **changes))


@pytest.fixture
def session(broker: Any, peer: Peer) -> RawPeer:
    """A peer whose next frame is number 1, to a topic that exists."""
    raw = peer(broker.produce)
    raw.send(encode(Route(1, "raw", True)))
    assert isinstance(raw.answer(), messages.Routed)
    raw.send(encode(Hello(raw.producer, 1, 1, 0)))
    assert isinstance(raw.answer(), messages.Welcome)
    return raw


# --- the produce endpoint ---


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"hello",),
        (b"\xff" * 100,),
        (b"\x91" * 50_000,),
        (encode(Pull(1, "t", {}, 0, 1, 0)),),
        (encode(messages.Routed(1, "t", 1)),),
        (append(1, runs=()), b""),
        (append(1, runs=(QueueRun("raw", 0, 1),) * (MAX_RUNS + 1)), b""),
        (append(1),),
        (append(1), b"", b""),
        (encode(Hello(2**61, 1, 1, 0))[:-1],),
    ],
)
@pytest.mark.parametrize("endpoint", ["produce", "consume"])
def test_what_is_no_request_is_refused_and_the_peer_may_go_on(
    broker: Any, peer: Peer, good: Callable[[], None], endpoint: str, parts: tuple[bytes, ...]
) -> None:
    raw = peer(getattr(broker, endpoint))
    raw.send(*parts)
    if endpoint == "consume" and b"Pull" in parts[0]:
        assert isinstance(raw.answer(), messages.Pulled)
    else:
        # a request of the other endpoint is told where it belongs
        misdirected = endpoint == ("produce" if b"Pull" in parts[0] else "consume")
        whole = parts in ((encode(Pull(1, "t", {}, 0, 1, 0)),), (append(1),))
        status = "CONNECT_FAILED" if misdirected and whole else "MESSAGE_ILLEGAL"
        assert raw.refusal().status == status
    good()
    question = Route(9, "good", False) if endpoint == "produce" else Describe(9, "good", -1)
    raw.send(encode(question))
    assert raw.answer().request == 9


@pytest.mark.parametrize(
    ("changes", "payload", "status"),
    [
        ({}, b"", "MESSAGE_ILLEGAL"),
        ({}, b"x" * 200, "MESSAGE_ILLEGAL"),
        ({}, record()[:-1], "MESSAGE_ILLEGAL"),
        ({}, record() + b"\0", "MESSAGE_ILLEGAL"),
        ({}, record(queue_id=1), "MESSAGE_ILLEGAL"),
        ({}, record(topic="other"), "MESSAGE_ILLEGAL"),
        ({}, record()[:88] + b"!" + record()[89:], "MESSAGE_ILLEGAL"),
        ({"count": 2}, record(), "MESSAGE_ILLEGAL"),
        ({"count": 0}, b"", "MESSAGE_ILLEGAL"),
        ({"ack": "never"}, record(), "INVALID_ARGUMENT"),
        ({"queue_id": 99}, record(queue_id=99), "QUEUE_NOT_EXIST"),
        ({"queue_id": -1}, record(queue_id=-1), "QUEUE_NOT_EXIST"),
        ({"topic": "nowhere"}, record(topic="nowhere"), "TOPIC_NOT_EXIST"),
        ({"topic": "../../x"}, record(topic="../../x"), "TOPIC_NOT_EXIST"),
        ({"topic": "TBW102"}, record(topic="TBW102"), "TOPIC_NOT_EXIST"),
        ({}, record(body=b"x" * 65_537), "MESSAGE_ILLEGAL"),
        ({}, b"x" * ((1 << 20) + 1), "MESSAGE_ILLEGAL"),
        ({"count": 20}, record(body=b"x" * 60_000) * 20, "MESSAGE_ILLEGAL"),
    ],
)
def test_a_wrong_frame_is_refused_by_its_number_and_the_next_is_taken(
    session: RawPeer,
    good: Callable[[], None],
    changes: dict[str, Any],
    payload: bytes,
    status: str,
) -> None:
    producer = session.producer
    session.send(append(1, producer=producer, **changes), payload)
    refused = session.refusal()
    assert (refused.request, refused.session, refused.status) == (1, 1, status)
    good()
    session.send(append(2, producer=producer), record())
    answer = session.answer()
    assert isinstance(answer, messages.Appended) and answer.seq == 2


def test_a_frame_that_is_far_too_large_ends_its_connection_and_no_other(
    broker: Any, peer: Peer, good: Callable[[], None]
) -> None:
    raw = peer(broker.produce)
    monitor = raw.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    raw.send(append(1), b"x" * (5 << 20))
    assert monitor.poll(WAIT_S * 1000), "it stays connected"
    raw.socket.disable_monitor()
    monitor.close()
    good()


@pytest.mark.parametrize("endpoint", ["produce", "consume"])
def test_a_message_of_very_many_parts_ends_its_connection_and_no_other(
    broker: Any, peer: Peer, good: Callable[[], None], endpoint: str
) -> None:
    raw = peer(getattr(broker, endpoint))
    monitor = raw.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    raw.send(*[b""] * 300_000)
    assert monitor.poll(WAIT_S * 1000), "it stays connected"
    raw.socket.disable_monitor()
    monitor.close()
    good()


def test_frames_out_of_order_or_of_a_session_nobody_opened_are_out_of_step(
    session: RawPeer, good: Callable[[], None]
) -> None:
    producer = session.producer
    for header in (
        append(2, producer=producer),
        append(1, producer=producer, session=2),
        append(1, producer=999_999),
    ):
        session.send(header, record())
        assert isinstance(session.answer(), messages.OutOfStep)
    good()
    session.send(append(1, producer=producer), record())
    assert isinstance(session.answer(), messages.Appended)


@pytest.mark.parametrize("stored_after", [1, 7, 50, 2**62 - 1])
def test_a_retry_that_names_any_offset_harms_nobody(
    broker: Any, peer: Peer, good: Callable[[], None], stored_after: int
) -> None:
    raw = peer(broker.produce)
    raw.send(encode(Route(1, "raw", True)))
    raw.answer()
    producer = raw.producer
    raw.send(encode(Hello(producer, 1, 1, stored_after)))
    assert isinstance(raw.answer(), messages.Welcome)
    raw.send(append(1, producer=producer, retry=True), record(key=f"R{stored_after}"))
    # refused, unless somebody else's retry has had the log looked through already
    assert isinstance(raw.answer(), Refused | messages.Appended)
    good()
    # an honest retry finds its way after that
    raw.send(encode(Hello(producer, 2, 1, 0)))
    raw.answer()
    for session, seq in ((2, 1), (2, 2)):
        header = append(seq, producer=producer, session=session, retry=True)
        raw.send(header, record(key=f"H{stored_after}"))
    one, two = raw.answer(), raw.answer()
    assert isinstance(one, messages.Appended) and one.runs == two.runs, "stored once"


# --- the consume endpoint ---


@pytest.mark.parametrize(
    "question",
    [
        Pull(5, "../x", {0: 0}, 0, 1, 0),
        Pull(5, "good", {0: -1}, 0, 1, 0),
        Pull(5, "good", {-1: 0}, 0, 1, 0),
        Describe(5, "a b", -1),
    ],
)
def test_a_wrong_question_is_refused_by_its_number(
    broker: Any, peer: Peer, good: Callable[[], None], question: Pull | Describe
) -> None:
    raw = peer(broker.consume)
    raw.send(encode(question))
    refused = raw.refusal()
    assert (refused.request, refused.status) == (5, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "pull",
    [
        Pull(5, "good", {0: 2**62, 1: 2**63}, 0, 1, 0),
        Pull(5, "good", {0: 0}, -5, -1, -1),
        Pull(5, "good", {0: 0}, 2**63, 2**63, -(2**63)),
        Pull(5, "nowhere", {0: 0}, 0, 1, 0),
        Pull(5, "good", {}, 0, 0, 0),
    ],
)
def test_a_strange_pull_is_answered(
    broker: Any, peer: Peer, good: Callable[[], None], pull: Pull
) -> None:
    raw = peer(broker.consume)
    raw.send(encode(pull))
    answer = raw.answer()
    assert isinstance(answer, messages.Pulled) and answer.request == 5


def test_a_pull_of_a_queue_that_there_is_not_is_refused(
    broker: Any, peer: Peer, good: Callable[[], None]
) -> None:
    raw = peer(broker.consume)
    raw.send(encode(Pull(5, "good", {0: 0, 77: 0}, 0, 1, 0)))
    refused = raw.refusal()
    assert (refused.request, refused.status) == (5, "QUEUE_NOT_EXIST")


@pytest.mark.parametrize("at_ms", [-(2**63), -2, 0, 2**63, 2**64 - 1])
def test_any_time_can_be_asked_for(
    broker: Any, peer: Peer, good: Callable[[], None], at_ms: int
) -> None:
    raw = peer(broker.consume)
    raw.send(encode(Describe(5, "good", at_ms)))
    answer = raw.answer()
    assert isinstance(answer, messages.Described) and answer.exists


def test_a_flood_of_anything_leaves_the_others_served(
    broker: Any, peer: Peer, good: Callable[[], None]
) -> None:
    random = Random(1)
    seeds = [append(1), encode(Hello(1, 2, 3, 4)), encode(Pull(5, "good", {0: 0}, 0, 1, 0))]
    for endpoint in (broker.produce, broker.consume):
        raw = peer(endpoint)
        for _ in range(400):
            header = bytearray(random.choice(seeds))
            for _ in range(random.randrange(4)):
                header[random.randrange(len(header))] ^= 1 << random.randrange(8)
            payload = bytearray(record())
            payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
            raw.send(bytes(header), *([bytes(payload)] * random.randrange(3)))
            while raw.socket.poll(0):
                raw.socket.recv_multipart()
        good()
