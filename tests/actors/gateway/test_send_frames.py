"""Frames of what clients send: what the gateway's pace is told of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.send_frames import Send, SendFrames
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.command import Command
from penstock.remoting.plain import plain_rules
from penstock.remoting.sends import Sent
from penstock.shared.formats.record_layout import Shape


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
