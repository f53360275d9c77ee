"""The writer's two ways in: a stream, which is served in turns that look at nothing else, and
ZeroMQ's sockets, of which none may be forgotten for that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from penstock.actors.writer import Writer
from penstock.actors.writer.actor import FRAMES_AT_ONCE
from penstock.actors.writer.callers import _NAME_BYTES, Asked
from penstock.client.core.sending.record_sender import MAX_IN_FLIGHT, RecordSender
from penstock.shared.wire.local_stream import LocalStream, dial_stream
from penstock.shared.wire.messages import (
    Appended,
    CreateTopic,
    Hello,
    QueueRun,
    Routed,
    Welcome,
    decode_produce_answer,
    encode,
)
from penstock.shared.wire.sockets import WRITER_STREAM

WAIT_S, WAIT_MS = 60, 60_000
RUNS = [QueueRun("orders", 1, 1)]


class Served:
    """A writer that lives as actors do, and one stream to it."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        broker.allocate(2)
        self.writer = broker.start(Writer)
        self.stage = broker.stage_of(self.writer)
        self.zmq = broker.client(broker.run.endpoints.produce_ipc)
        broker.ask(self.writer, self.zmq, encode(CreateTopic(1, "orders", 4)))
        self.streams: list[LocalStream] = []
        self.stream = self.dial()
        while not self.writer._callers._streams:
            self.cycle(0)

    def dial(self) -> LocalStream:
        stream = dial_stream(self.broker.run.socket(WRITER_STREAM), 1 << 20)
        assert stream is not None
        self.streams.append(stream)
        return stream

    def cycle(self, sleep_ms: int) -> None:
        """A turn, and a sleep where nothing is left to do: see `run_actor`."""
        self.stage.bus.drain(self.stage.heard(self.stage.bus.bells))
        self.stage.left_sockets_alone = False
        done = self.writer.work()
        self.stage.ready = None
        if not (done and self.writer.has_more()):
            self.stage.sleep(sleep_ms)

    def heard(self, stream: LocalStream, count: int) -> list[Any]:
        """The next answers that come by a stream."""
        found: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, "no answer"
            self.cycle(1)
            stream.read()
            while (message := stream.next()) is not None:
                found.append(decode_produce_answer(message[0]))
        return found

    def begin(self, stream: LocalStream, actor: str) -> RecordSender:
        """A sender with its session open."""
        sender = RecordSender("", actor, 1, "written")
        for parts in sender.outgoing(self.broker.clock.monotonic_ms()):
            stream.send(*parts)
        (answer,) = self.heard(stream, 1)
        assert isinstance(answer, Welcome)
        sender.take(answer, 0)
        return sender

    def send(self, stream: LocalStream, sender: RecordSender, records: bytes) -> None:
        sender.put(RUNS, records, 0)
        for parts in sender.outgoing(self.broker.clock.monotonic_ms()):
            stream.send(*parts)


@pytest.fixture
def served(pipeline: Callable[..., Any]) -> Iterator[Served]:
    found = Served(pipeline(flush_disk_type="async"))
    yield found
    for each in found.streams:
        each.close()


def test_who_is_answered_at_once_needs_no_bell(
    served: Served, frame: Callable[..., bytes], bells: Callable[..., int]
) -> None:
    """The gateway looks at the log with each answer; the reader has none."""
    neighbours = [served.broker.stage(name) for name in ("reader", "gateway")]
    sender = served.begin(served.stream, "gateway")
    for pulls in ("waiting_pulls", "client_pulls"):
        served.broker.positions.initialise(pulls, 1)
    served.send(served.stream, sender, frame("orders", 1, [b"a"]))
    assert isinstance(served.heard(served.stream, 1)[0], Appended)
    assert [bells(each, 20) for each in neighbours] == [1, 0]
    sender._ack = "durable"
    served.send(served.stream, sender, frame("orders", 1, [b"b"]))
    while not served.broker.positions["flush_wanted"]:
        served.cycle(1)
    assert [bells(each) for each in neighbours] == [1, 1]


def test_frames_of_a_stream_are_stored_in_their_order_and_answered_there(
    served: Served, frame: Callable[..., bytes]
) -> None:
    sender = served.begin(served.stream, "gateway")
    for number in range(5):
        served.send(served.stream, sender, frame("orders", 1, [b"%d" % number]))
    answers = served.heard(served.stream, 5)
    assert all(isinstance(each, Appended) for each in answers)
    assert [each.runs[0].queue_offset for each in answers] == list(range(5))
    assert not served.zmq.poll(0), "nobody else hears of them"


def test_a_turn_for_a_stream_alone_asks_no_other_socket_and_a_sleep_after_it_neither(
    served: Served, frame: Callable[..., bytes]
) -> None:
    sender = served.begin(served.stream, "gateway")
    for _ in range(3):  # what ZeroMQ's threads had to say of connections is over
        served.cycle(100)
    served.send(served.stream, sender, frame("orders", 1, [b"x"]))
    served.stage.ready = None
    served.stage.sleep(WAIT_MS)
    served.stage.left_sockets_alone = False
    assert served.writer.work() == 1 and served.stage.left_sockets_alone


def test_a_question_that_came_while_a_stream_was_answered_is_not_forgotten(
    served: Served, frame: Callable[..., bytes]
) -> None:
    """To send takes from a socket's descriptor what it had to tell of, and here the answer to the
    first question does that with the second."""
    sender = served.begin(served.stream, "gateway")
    callers = served.writer._callers
    served.broker.ask(served.writer, served.zmq, encode(CreateTopic(1, "orders", 4)))
    for number in range(2, 12):
        served.zmq.send(encode(CreateTopic(number, "orders", 4)))
        assert callers.socket.poll(WAIT_MS), "it is there, and its descriptor has told so"
        served.send(served.stream, sender, frame("orders", 1, [b"x"]))
        served.stage.ready = [next(iter(callers._handles))]
        served.stage.left_sockets_alone = False
        served.writer.work()
        assert served.zmq.poll(1000), "it was looked at"
        assert isinstance(decode_produce_answer(served.zmq.recv()), Routed)
    served.heard(served.stream, 10)


def test_an_answer_by_zeromq_has_its_socket_looked_at_in_the_next_turn(
    served: Served, frame: Callable[..., bytes]
) -> None:
    callers = served.writer._callers
    for _ in range(3):
        served.cycle(100)
    assert not callers._is_stale
    served.broker.ask(served.writer, served.zmq, encode(Hello(1, 1, 1, 0)))
    served.stage.left_sockets_alone = True  # as in a turn for a stream alone
    callers.send(b"nobody", b"")
    assert callers._is_stale and not served.stage.left_sockets_alone


def test_what_a_stream_has_said_before_its_end_is_stored_and_nothing_is_left_of_it(
    served: Served, frame: Callable[..., bytes]
) -> None:
    """More than a turn takes: the next one meets the end before it meets the rest."""
    each, of_sender = frame("orders", 1, [b"x"]), FRAMES_AT_ONCE // 2 - 1
    senders = [served.begin(served.stream, name) for name in ("gateway", "another", "third")]
    wrote = served.broker.positions["wrote"]
    for sender in senders * of_sender:
        served.send(served.stream, sender, each)
    served.stream.close()
    deadline = time.monotonic() + WAIT_S
    while served.writer._callers._streams:
        assert time.monotonic() < deadline
        served.cycle(1)
    assert served.broker.positions["wrote"] == wrote + len(senders) * of_sender * len(each)
    assert not served.writer._callers._handles
    assert not any(isinstance(each, LocalStream) for each in served.stage.plain)
    assert isinstance(served.begin(served.dial(), "fourth"), RecordSender)


def test_a_turn_is_not_the_last_while_requests_of_a_stream_wait(
    served: Served, frame: Callable[..., bytes]
) -> None:
    senders = [served.begin(served.stream, name) for name in ("one", "two", "three")]
    for number in range(FRAMES_AT_ONCE + 1):
        sender = senders[number // MAX_IN_FLIGHT]
        served.send(served.stream, sender, frame("orders", 1, [b"x"]))
    served.stage.ready = None
    assert served.writer.work() == FRAMES_AT_ONCE and served.writer.has_more()
    assert len(served.heard(served.stream, FRAMES_AT_ONCE + 1)) == FRAMES_AT_ONCE + 1


def test_a_turn_is_the_last_where_nothing_waits(
    served: Served, frame: Callable[..., bytes]
) -> None:
    sender = served.begin(served.stream, "one")
    served.send(served.stream, sender, frame("orders", 1, [b"x"]))
    assert served.heard(served.stream, 1)
    served.stage.ready = None
    while served.writer.work():
        pass
    assert not served.writer.has_more()


def test_room_for_the_rest_of_an_answer_ends_the_sleep(served: Served) -> None:
    callers = served.writer._callers
    ((name, stream),) = callers._streams.items()
    while not stream.has_unsent:
        callers.send(name, bytes(900 << 10))
    callers.end_turn(True)
    assert stream.handle not in served.stage.sleep(0)
    deadline = time.monotonic() + WAIT_S
    while stream.handle not in served.stage.sleep(1):  # the kernel waits until most has been read
        assert time.monotonic() < deadline, "nothing tells of room"
        served.stream.read()


def test_records_as_long_as_a_frame_may_be_come_by_a_stream(served: Served) -> None:
    records = bytes(served.broker.config.max_frame_bytes)
    served.stream.send(encode(CreateTopic(7, "orders", 4)), records)
    deadline = time.monotonic() + WAIT_S
    while served.stream.has_unsent:
        assert time.monotonic() < deadline
        served.cycle(1)
        served.stream.flush()
    (answer,) = served.heard(served.stream, 1)
    assert isinstance(answer, Routed) and answer.request == 7


def test_an_answer_that_found_no_room_at_once_comes_whole(served: Served) -> None:
    callers = served.writer._callers
    ((name, stream),) = callers._streams.items()
    sent: list[bytes] = []
    while not stream.has_unsent:
        sent.append(bytes([len(sent)]) * (900 << 10))
        callers.send(name, sent[-1])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < len(sent):
        assert time.monotonic() < deadline, "the rest does not come"
        served.cycle(1)
        served.stream.read()
        while (message := served.stream.next()) is not None:
            found.append(message[0])
    assert found == sent


def test_while_nothing_may_come_in_a_streams_requests_stay_outside_and_end_no_sleep(
    served: Served, frame: Callable[..., bytes]
) -> None:
    """What the writer keeps is bounded, and so is what it keeps of streams."""
    callers, sender = served.writer._callers, served.begin(served.stream, "gateway")
    ((_, stream),) = callers._streams.items()
    callers.end_turn(False)
    served.send(served.stream, sender, frame("orders", 1, [b"x"]))
    assert stream.handle not in served.stage.sleep(0)
    served.stage.ready = None  # as after a turn that was not followed by a sleep
    callers.begin_turn(0, 0)
    assert callers.receive() is None
    callers.end_turn(True)
    assert stream.handle in served.stage.sleep(WAIT_MS)
    assert isinstance(served.heard(served.stream, 1)[0], Appended)


def test_nothing_is_read_of_a_stream_after_garbage(
    served: Served, frame: Callable[..., bytes]
) -> None:
    """What came before it may still wait for its turn."""
    senders = [served.begin(served.stream, name) for name in ("one", "two", "three")]
    each, wrote = frame("orders", 1, [b"x"]), served.broker.positions["wrote"]
    for number in range(FRAMES_AT_ONCE + 1):
        served.send(served.stream, senders[number // MAX_IN_FLIGHT], each)
    served.stream._end.send(b"\xff" * 8)
    served.stage.ready = None
    assert served.writer.work() == FRAMES_AT_ONCE
    served.send(served.stream, senders[-1], each)
    deadline = time.monotonic() + WAIT_S
    while served.writer._callers._streams:
        assert time.monotonic() < deadline
        served.writer.work()
    assert served.broker.positions["wrote"] == wrote + (FRAMES_AT_ONCE + 1) * len(each)


def test_garbage_ends_its_own_stream_and_no_other(
    served: Served, frame: Callable[..., bytes]
) -> None:
    sender = served.begin(served.stream, "gateway")
    path = served.broker.run.socket(WRITER_STREAM).removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(path)
        raw.settimeout(0.01)
        raw.sendall(b"\xff" * 100)
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline
            served.cycle(1)
            try:
                assert raw.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
    served.send(served.stream, sender, frame("orders", 1, [b"x"]))
    assert isinstance(served.heard(served.stream, 1)[0], Appended)


def test_a_message_of_very_many_parts_costs_its_sender_the_connection_and_ends_nobody(
    served: Served,
) -> None:
    other = served.broker.client(served.broker.run.endpoints.produce)
    other.send_multipart([b"x"] * 20)
    deadline = time.monotonic() + WAIT_S
    while not served.broker.positions["closed_producers"]:
        assert time.monotonic() < deadline
        served.cycle(1)
    (answer,) = served.broker.ask(served.writer, served.zmq, encode(CreateTopic(9, "orders", 4)))
    assert isinstance(decode_produce_answer(answer[0]), Routed)


def test_no_client_of_zeromq_can_choose_the_name_of_a_stream(served: Served) -> None:
    with pytest.raises(zmq.ZMQError):
        served.zmq.setsockopt(zmq.ROUTING_ID, bytes(_NAME_BYTES))


def test_a_request_is_as_large_as_its_parts_are_together() -> None:
    assert Asked(b"pp", b"hhhhh", memoryview(b"rrr"), 3).size == 10
