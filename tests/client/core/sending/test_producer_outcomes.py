"""What a producer core does with single answers, and after a silence of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.client.core.sending.producer_core import PAUSE_MS
from penstock.shared.errors import (
    FLUSH_DISK_TIMEOUT,
    PUT_OK,
    BrokerTimeout,
    FlushTimeout,
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    ProtocolError,
    QueueNotFound,
    TopicNotFound,
)
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal

# of the wire's writer: where the messages of a test begin
FIRST = 10_000


@pytest.fixture
def wire(make_wire: Callable[..., Any]) -> Any:
    """A wire with an open session and known routes, whose messages may wait for five seconds."""
    wire = make_wire(timeout_ms=5000)
    wire.send("a", None, 0, "", 1)
    wire.heal(8)
    assert wire.core.intake.unsettled == 0
    return wire


def sent(wire: Any) -> list[Any]:
    """The requests that leave now; nobody gets them."""
    return [
        messages.decode_produce_request(bytes(parts[0]))
        for parts in wire.core.outgoing(wire.now_ms)
    ]


def answer(wire: Any, append: messages.Append, status: str = PUT_OK) -> None:
    runs = tuple(messages.StoredRun(0, 1, FIRST) for _ in append.runs)
    said = append.producer, append.session, append.seq, runs, 7, bytes(8)
    wire.core.received([encode(messages.Appended(*said, status=status))], wire.now_ms)


@pytest.mark.parametrize("silence_ms", [PAUSE_MS, PAUSE_MS + 1])
def test_a_producer_that_has_sent_nothing_for_long_begins_a_session(
    wire: Any, silence_ms: int
) -> None:
    wire.now_ms = wire.core._answered_ms + silence_ms
    wire.send("a", None, 0, "", 1)
    (request,) = sent(wire)
    is_long = silence_ms > PAUSE_MS
    assert isinstance(request, messages.Hello if is_long else messages.Append)


def test_one_with_messages_on_their_way_does_not_however_long_they_take(wire: Any) -> None:
    wire.send("a", None, 0, "", 1)
    (first,) = sent(wire)
    wire.now_ms += PAUSE_MS + 1
    wire.send("a", None, 0, "", 1)
    asked = sent(wire)
    appends = [each for each in asked if isinstance(each, messages.Append)]
    assert [each.seq for each in appends] == [first.seq + 1]
    assert {each.session for each in asked if isinstance(each, messages.Hello)} <= {first.session}


@pytest.mark.parametrize("status", [PUT_OK, FLUSH_DISK_TIMEOUT])
def test_a_message_that_is_not_on_the_disk_in_time_counts_as_a_failure_and_another_does_not(
    wire: Any, status: str
) -> None:
    future = wire.send("a", None, 0, "", 1)
    (append,) = sent(wire)
    answer(wire, append, status)
    failures = wire.core.failures.take()
    if status == PUT_OK:
        assert failures is None and future.result(0).physical_offset == FIRST
    else:
        assert failures.topics == {"a": 1} and isinstance(failures.error, FlushTimeout)
        assert isinstance(future.exception(0), FlushTimeout)


def test_an_error_says_whether_anybody_was_there(make_wire: Callable[..., Any]) -> None:
    core = make_wire(timeout_ms=5000).core
    core.not_connected(0)
    said = core.timeouts.request("t", "c", 1.0)
    assert isinstance(said, BrokerTimeout) and "(there is no connection)" in str(said)
    core.received([encode(messages.OutOfStep(1, 1, 1))], 0)
    assert "(there is no connection)" not in str(core.timeouts.request("t", "c", 1.0))


def test_a_refusal_of_no_request_fails_all_that_waits(wire: Any) -> None:
    """The broker does not understand the client, and will not understand it the next time."""
    on_its_way = wire.send("a", None, 0, "", 1)
    assert [type(each) for each in sent(wire)] == [messages.Append]
    waiting = wire.send("none", None, None, "", 1)
    refused = refusal(ProtocolError("a message is not understood", "x"), 0)
    wire.core.received([encode(refused)], wire.now_ms)
    for future in (on_its_way, waiting):
        assert isinstance(future.exception(0), InvalidMessage), "as its status says"
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


@pytest.mark.parametrize("kind", [InvalidMessage, InvalidArgument, TopicNotFound, QueueNotFound])
def test_what_was_refused_because_of_a_neighbour_is_sent_again_without_it(
    wire: Any, kind: type[PenstockError]
) -> None:
    futures = [wire.send("a", None, queue, "", 1) for queue in (0, 1)]
    (append,) = sent(wire)
    refused = refusal(kind("one of the two cannot be stored", "x"), append.seq, append.session)
    wire.core.received([encode(refused)], wire.now_ms)
    wire.heal(8)
    assert [future.exception(0) for future in futures] == [None, None]


def test_a_session_that_is_over_already_ends_no_other_one(wire: Any) -> None:
    wire.send("a", None, 0, "", 1)
    (append,) = sent(wire)
    late = messages.OutOfStep(append.producer, append.session - 1, append.seq)
    wire.core.received([encode(late)], wire.now_ms)
    assert sent(wire) == []
    wire.core.received([encode(replace(late, session=append.session))], wire.now_ms)
    (hello,) = sent(wire)
    assert isinstance(hello, messages.Hello) and hello.session == append.session + 1
    wire.core.received([encode(replace(late, session=hello.session))], wire.now_ms)
    assert sent(wire) == [], "the one that is being opened is in step with nothing yet"
