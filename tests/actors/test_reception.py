"""The receptions of both endpoints tell whoever asks who is there, and send on whoever is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from penstock.shared.memory.run_directory import find_store
from penstock.shared.process.find_broker import find_running
from penstock.shared.wire import messages
from penstock.shared.wire.group_messages import decode_group_answer
from penstock.shared.wire.introduction import PROTOCOL, Greet, decode_greeted, encode
from penstock.shared.wire.messages import (
    CreateTopic,
    Describe,
    Hello,
    ListTopics,
    Pull,
    Query,
    QueryById,
    Refused,
    Route,
)

ANOTHER_RUN = "f" * 16
OF_PRODUCERS = [
    Hello(1, 1, 1, 0, ANOTHER_RUN),
    Route(7, "made-nowhere", True, ANOTHER_RUN),
    CreateTopic(7, "made-nowhere", 1, ANOTHER_RUN),
    ListTopics(7, ANOTHER_RUN),
]
OF_CONSUMERS = [
    Pull(7, "t", {}, 0, 1, 0, run=ANOTHER_RUN),
    Describe(7, "t", -1, ANOTHER_RUN),
    Query(7, "t", "k", 1, 0, 1, False, ANOTHER_RUN),
    QueryById(7, "7F00000100002A9F0000000000000000", ANOTHER_RUN),
]
Ask = Callable[[str, bytes], bytes]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Send a header to an endpoint; the header of the answer."""
    context: zmq.Context[Any] = zmq.Context()

    def once(endpoint: str, header: bytes) -> bytes:
        with context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(endpoint)
            peer.send(header)
            assert peer.poll(60_000), "no answer"
            return bytes(peer.recv_multipart()[0])

    yield once
    context.term()


@pytest.mark.parametrize("protocol", [0, PROTOCOL, PROTOCOL + 1, 1 << 60])
def test_greet_is_answered_whatever_the_client_speaks(broker: Any, ask: Ask, protocol: int) -> None:
    for endpoint, serves in ((broker.produce, "producers"), (broker.consume, "consumers")):
        found = decode_greeted(ask(endpoint, encode(Greet(protocol))))
        assert found is not None
        assert (found.protocol, found.serves) == (PROTOCOL, serves)
        assert (found.produce, found.consume) == (broker.produce, broker.consume)
        assert find_store(found.run_id) == broker.store.resolve()


@pytest.mark.parametrize("request_", OF_PRODUCERS, ids=lambda each: type(each).__name__)
def test_a_producers_request_for_another_run_is_refused(
    broker: Any, ask: Ask, request_: messages.ProduceRequest
) -> None:
    answer = messages.decode_produce_answer(ask(broker.produce, messages.encode(request_)))
    assert isinstance(answer, Refused) and answer.status == "STORE_MISMATCH"
    assert str(broker.store) in answer.value
    listed = messages.decode_produce_answer(ask(broker.produce, messages.encode(ListTopics(1))))
    assert isinstance(listed, messages.TopicList) and "made-nowhere" not in listed.topics


@pytest.mark.parametrize("request_", OF_CONSUMERS, ids=lambda each: type(each).__name__)
def test_a_consumers_request_for_another_run_is_refused(
    broker: Any, ask: Ask, request_: messages.ConsumeRequest
) -> None:
    answer = messages.decode_consume_answer(ask(broker.consume, messages.encode(request_)))
    assert isinstance(answer, Refused) and answer.status == "STORE_MISMATCH"


def test_requests_that_name_this_run_or_none_are_served(broker: Any, ask: Ask) -> None:
    run_id = broker.status()["run_directory"].rpartition("-")[2]
    for run in ("", run_id):
        header = messages.encode(ListTopics(1, run))
        assert isinstance(
            messages.decode_produce_answer(ask(broker.produce, header)), messages.TopicList
        )
        header = messages.encode(Describe(1, "t", -1, run))
        assert isinstance(
            messages.decode_consume_answer(ask(broker.consume, header)), messages.Described
        )


def test_a_client_from_before_runs_were_named_is_served(broker: Any, ask: Ask) -> None:
    import msgspec

    old = msgspec.msgpack.encode(["Hello", 11, 1, 1, 0])
    assert isinstance(messages.decode_produce_answer(ask(broker.produce, old)), messages.Welcome)


def test_a_request_at_the_wrong_endpoint_is_told_the_right_one(broker: Any, ask: Ask) -> None:
    for endpoint, header, right in (
        (broker.produce, messages.encode(Describe(1, "t", -1)), broker.consume),
        (broker.consume, messages.encode(Hello(1, 1, 1, 0)), broker.produce),
    ):
        answer = messages.decode_consume_answer(ask(endpoint, header))
        assert isinstance(answer, Refused) and answer.status == "CONNECT_FAILED"
        assert right in answer.hint


@pytest.mark.parametrize("header", [b"", b"\xc1", b"nonsense", encode(Greet(PROTOCOL))[:-1]])
def test_what_is_no_request_is_refused_without_the_number_of_any(
    broker: Any, ask: Ask, header: bytes
) -> None:
    """A client would take it for the answer to the request of that number."""
    for endpoint, decode in (
        (broker.produce, messages.decode_produce_answer),
        (broker.consume, messages.decode_consume_answer),
        (find_running(broker.store).endpoints.group, decode_group_answer),
    ):
        answer = decode(ask(endpoint, header))
        assert isinstance(answer, Refused) and answer.request == 0, endpoint
        assert answer.status == "MESSAGE_ILLEGAL"
