"""Frames of what clients send: what the gateway's pace is told of them, and how long they took."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.send_frames import FEW_IN_FLIGHT, Send, SendFrames
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.remoting.plain import plain_rules
from penstock.remoting.sends import Sent
from penstock.shared.errors import BrokerBusy, NoPermission
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.wire import messages
from penstock.shared.wire.messages import decode_produce_request, encode, refusal


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours, ("127.0.0.1", 1), 0)


def test_requests_and_their_messages_are_counted_once_whether_they_have_left_or_not(
    connection: Connection,
) -> None:
    frames = SendFrames(
        RecordSender("run", "gateway", 1),
        plain_rules("cluster", 1 << 20, Shape(8, False)),
        lambda call, reply: None,
        lambda connection, frame: None,
    )
    call = Call(connection, Command(320, 1), 0)

    def put(messages: int) -> None:
        sizes = (9,) * messages
        frames.put(Send(call, 0, ""), Sent("t", 0, bytes(sum(sizes)), sizes, messages > 1))

    put(64)
    assert frames.taken_now() == (1, 64)
    put(3)
    frames.work(0)
    assert frames.sender.waiting_bytes, "the frame has left, and another one is open"
    put(1)
    assert frames.taken_now() == (2, 4)
    assert frames.taken_now() == (0, 0)


def test_what_is_stored_counts_by_how_long_it_took_and_what_is_refused_as_failed(
    connection: Connection,
) -> None:
    replies: list[Reply] = []
    frames = SendFrames(
        RecordSender("run", "gateway", 1),
        plain_rules("cluster", 1 << 20, Shape(8, False)),
        lambda call, reply: replies.append(reply),
        lambda connection, frame: None,
    )

    def said(now_ms: int) -> messages.ProduceRequest:
        ((header, *_),) = frames.sender.outgoing(now_ms)
        return decode_produce_request(header)

    hello = said(0)
    assert isinstance(hello, messages.Hello)
    own = hello.producer, hello.session
    welcome = messages.Welcome(*own, hello.next_seq, 0, 1 << 20, 1 << 20, 1)
    frames.sender.received([encode(welcome)], 0)
    for began_ms, is_stored in ((10, True), (20, False), (50, True)):
        call = Call(connection, Command(320, 1), began_ms)
        frames.put(Send(call, 0, ""), Sent("t", 0, bytes(9), (9,), False))
        frames.work(began_ms)
        asked = said(began_ms)
        assert isinstance(asked, messages.Append)
        stored = messages.Appended(*own, asked.seq, (messages.StoredRun(0, 7, 4711),), 1, bytes(8))
        no = refusal(NoPermission("no topic", "t"), asked.seq, asked.session)
        frames.sender.received([encode(stored if is_stored else no)], began_ms + 5)
        # one that is refused took longer than all others
        frames.work(began_ms + (5 if is_stored else 100))
    assert [reply.code == Response.SUCCESS for reply in replies] == [True, False, True]
    assert (frames.times.longest_ms, frames.times.failed) == (5, 1)
    frames.times.work(1)
    frames.times.work(1 << 30)
    assert "[0~10ms]:2 " in frames.times.described()


class Talk:
    """Frames of single messages, and what the writer is told of them."""

    def __init__(self, connection: Connection) -> None:
        self.replies: list[Reply] = []
        self.frames = SendFrames(
            RecordSender("run", "gateway", 1),
            plain_rules("cluster", 1 << 20, Shape(8, False)),
            lambda call, reply: self.replies.append(reply),
            lambda connection, frame: None,
        )
        self._call = Call(connection, Command(320, 1), 0)
        self.said: list[messages.Append] = []

    def put(self, body_bytes: int = 9, queue_id: int = 0) -> None:
        size = (body_bytes,)
        self.frames.put(
            Send(self._call, 0, ""), Sent("t", queue_id, bytes(body_bytes), size, False)
        )

    def work(self) -> int:
        """How many frames are on their way after a turn."""
        self.frames.work(0)
        for header, *_ in self.frames.sender.outgoing(0):
            request = decode_produce_request(header)
            if isinstance(request, messages.Append):
                self.said.append(request)
            else:
                assert isinstance(request, messages.Hello)
                self._own = request.producer, request.session
                self._next_seq = request.next_seq
        return len(self.frames.sender)

    def open(self) -> None:
        self.answer(messages.Welcome(*self._own, self._next_seq, 0, 1 << 20, 1 << 20, 1))

    def answer(self, answer: messages.ProduceAnswer) -> None:
        self.frames.sender.received([encode(answer)], 0)

    def store(self, seq: int) -> None:
        run = messages.StoredRun(0, 7, 4711)
        self.answer(messages.Appended(*self._own, seq, (run,), 1, bytes(8)))


def test_with_few_frames_on_their_way_what_comes_waits_until_its_frame_is_full_or_one_is_back(
    connection: Connection,
) -> None:
    talk = Talk(connection)

    def put(body_bytes: int) -> int:
        talk.put(body_bytes)
        return talk.work()

    talk.work()
    talk.open()
    assert [put(9) for _ in range(5)] == [1, FEW_IN_FLIGHT, 2, 2, 2]
    talk.store(1)
    assert talk.work() == 2
    # what has no room in the frame that waits makes it leave
    assert [put(FRAME_BYTES // 2 + 1) for _ in range(3)] == [2, 3, 4]
    assert [sum(run.count for run in each.runs) for each in talk.said] == [1, 1, 3, 1, 1]
    assert talk.frames.waiting_bytes == 4 * 9 + 3 * (FRAME_BYTES // 2 + 1)


def test_full_frames_that_wait_for_the_writer_leave_in_the_order_in_which_they_came(
    connection: Connection,
) -> None:
    talk = Talk(connection)
    for queue_id in range(4):
        talk.put(FRAME_BYTES, queue_id)
        talk.work()
    talk.open()
    while talk.work() < 3:
        continue
    talk.store(1)
    talk.store(2)
    while len(talk.said) < 4:
        talk.work()
    assert [run.queue_id for each in talk.said for run in each.runs] == [0, 1, 2, 3]


def test_while_the_writer_is_busy_what_waits_here_is_refused_and_what_it_may_take_is_not(
    connection: Connection,
) -> None:
    talk = Talk(connection)
    talk.work()
    talk.open()
    talk.put(100)
    talk.work()
    talk.answer(refusal(BrokerBusy("no room", "pool", retry_after_ms=50), 1, talk.said[0].session))
    for _ in range(2):
        talk.put(FRAME_BYTES)
    assert talk.work() == 1
    assert [reply.code for reply in talk.replies] == [Response.SYSTEM_BUSY] * 2
    assert talk.frames.waiting_bytes == 100
    assert talk.frames.times.failed == 2
