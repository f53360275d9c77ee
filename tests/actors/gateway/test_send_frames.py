"""Frames of what clients send: what the gateway's pace is told of them, and how long they took."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.send_frames import Send, SendFrames
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.remoting.plain import plain_rules
from penstock.remoting.sends import Sent
from penstock.shared.errors import NoPermission
from penstock.shared.formats.record_layout import Shape
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
