"""A long answer takes room until its client has read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from penstock.shared.wire.unread_answers import (
    MAX_UNREAD_BYTES,
    SHORT_ANSWER_BYTES,
    UnreadAnswers,
)

WAIT_MS = 60_000


@pytest.fixture
def sockets() -> Iterator[tuple[Any, Any]]:
    """A server's socket, and that of the client "peer"."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.bind("inproc://answers")
        with context.socket(zmq.DEALER) as client:
            client.setsockopt(zmq.ROUTING_ID, b"peer")
            client.connect("inproc://answers")
            client.send(b"question")
            assert server.recv_multipart() == [b"peer", b"question"]
            yield server, client


def test_a_long_answer_takes_room_until_it_is_read_and_a_short_one_takes_none(
    sockets: tuple[Any, Any],
) -> None:
    server, client = sockets
    unread, size = UnreadAnswers(), MAX_UNREAD_BYTES // 2 + 1
    unread.send(server, (b"peer", bytes(SHORT_ANSWER_BYTES)))
    assert (unread.size_bytes, unread.room()) == (0, MAX_UNREAD_BYTES)
    unread.send(server, (b"peer", bytes(size)))
    assert (unread.size_bytes, unread.room()) == (size, MAX_UNREAD_BYTES - size)
    for expected in (SHORT_ANSWER_BYTES, size):
        assert client.poll(WAIT_MS) and len(client.recv()) == expected
    while unread.room() < MAX_UNREAD_BYTES:
        pass
    assert unread.size_bytes == 0


def test_at_least_a_short_answer_always_has_room(sockets: tuple[Any, Any]) -> None:
    server, _ = sockets
    unread = UnreadAnswers()
    unread.send(server, (b"peer", bytes(MAX_UNREAD_BYTES)))
    assert unread.room() == SHORT_ANSWER_BYTES
