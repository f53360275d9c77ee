"""Messages over a socket file: whole and in order however they are cut, and what ends a stream."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.shared.wire.local_stream import (
    READ_BYTES,
    LocalStream,
    StreamListener,
    dial_stream,
)

MOST_BYTES, FRAME_BYTES = 4 << 20, 256 << 10
MESSAGES = [(b"one", b""), (b"two", b"records"), (b"", b""), (b"four", bytes(3000))]
LONG = [(b"long", bytes(READ_BYTES)), (bytes(READ_BYTES), b"longer"), (b"last", b"")]


def said(*messages: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        struct.pack("=II", len(header), len(records)) + header + records
        for header, records in messages
    )


def heard(stream: LocalStream) -> list[tuple[bytes, bytes]]:
    """What has come whole, read or not."""
    stream.read()
    found = []
    while (message := stream.next()) is not None:
        found.append((message[0], bytes(message[1])))
    return found


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, LocalStream]]:
    """A socket, and the stream at its other end."""
    raw, end = socket.socketpair()
    stream = LocalStream(end, MOST_BYTES)
    yield raw, stream
    raw.close()
    stream.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/stream"


@pytest.mark.parametrize("piece", [1, 7, 8, 9, 100, 10_000, 1 << 20])
def test_messages_come_whole_and_in_order_however_they_are_cut(
    piece: int, ends: tuple[socket.socket, LocalStream]
) -> None:
    raw, stream = ends
    data, found = said(*MESSAGES, *LONG), []
    for at in range(0, len(data), piece):
        raw.sendall(data[at : at + piece])
        found += heard(stream)
    while len(found) < len(MESSAGES + LONG) and stream.is_open:
        found += heard(stream)
    assert found == MESSAGES + LONG and stream.is_open


def test_records_stay_as_they_are_while_more_comes(
    ends: tuple[socket.socket, LocalStream],
) -> None:
    """A frame may wait for the disk; what it is a view of is not written to again."""
    raw, stream = ends
    raw.sendall(said((b"a", b"first"))[:-1])
    stream.read()
    raw.sendall(b"t" + said((b"b", b"other"))[:-1])
    stream.read()
    first = stream.next()
    raw.sendall(b"r" + said((b"c", bytes(1000))))
    stream.read()
    other = stream.next()
    assert first is not None and other is not None
    assert (bytes(first[1]), bytes(other[1])) == (b"first", b"other")


def test_what_the_kernel_does_not_take_is_kept_and_goes_later(endpoint: str) -> None:
    listener = StreamListener(endpoint, MOST_BYTES)
    sending = dial_stream(endpoint, MOST_BYTES)
    hearing = listener.accept()
    assert sending is not None and hearing is not None and listener.accept() is None
    frames = [(b"frame %d" % number, os.urandom(FRAME_BYTES)) for number in range(8)]
    for frame in frames:
        sending.send(*frame)
    assert sending.has_unsent
    found = []
    while len(found) < len(frames):
        sending.flush()
        found += heard(hearing)
    assert found == frames and not sending.has_unsent
    for each in (sending, hearing, listener):
        each.close()


def test_who_says_what_no_message_is_has_a_stream_that_ends(
    ends: tuple[socket.socket, LocalStream],
) -> None:
    raw, stream = ends
    raw.sendall(said((b"a", b"")) + struct.pack("=II", 8, MOST_BYTES - 7))
    assert heard(stream) == [(b"a", b"")], "what was right before it counts"
    assert not stream.is_open


@pytest.mark.parametrize("records", [0, MOST_BYTES - 1])
def test_a_message_may_have_as_many_bytes_as_are_allowed(
    records: int, ends: tuple[socket.socket, LocalStream]
) -> None:
    raw, stream = ends
    raw.sendall(struct.pack("=II", MOST_BYTES - records, records))
    assert heard(stream) == [] and stream.is_open, "its end has not come"


def test_what_came_before_the_end_of_a_stream_is_still_heard(
    ends: tuple[socket.socket, LocalStream],
) -> None:
    raw, stream = ends
    raw.sendall(said(*MESSAGES))
    raw.close()
    stream.read()
    stream.read()
    assert not stream.is_open and stream.has_whole
    found = [stream.next() for _ in MESSAGES]
    assert [each[0] for each in found if each is not None] == [each[0] for each in MESSAGES]
    assert stream.next() is None


def test_a_stream_that_ends_amid_a_long_message_has_ended(
    ends: tuple[socket.socket, LocalStream],
) -> None:
    raw, stream = ends
    raw.sendall(said(*LONG)[:READ_BYTES])
    assert heard(stream) == [] and stream.is_open
    raw.close()
    assert heard(stream) == [] and not stream.is_open


def test_a_stream_whose_other_end_has_gone_ends_when_something_is_sent(
    ends: tuple[socket.socket, LocalStream],
) -> None:
    raw, stream = ends
    raw.close()
    assert stream.is_open, "nobody has looked"
    stream.send(b"lost")
    assert not stream.is_open


def test_nobody_is_reached_where_nobody_listens_and_a_successor_takes_the_file(
    endpoint: str,
) -> None:
    assert dial_stream(endpoint, MOST_BYTES) is None
    before = StreamListener(endpoint, MOST_BYTES)
    before.close()
    assert dial_stream(endpoint, MOST_BYTES) is None, "the file alone is no listener"
    after = StreamListener(endpoint, MOST_BYTES)
    mode = stat.S_IMODE(os.stat(endpoint.removeprefix("ipc://")).st_mode)
    assert mode & 0o077 == 0, "for this user alone"
    stream = dial_stream(endpoint, MOST_BYTES)
    assert stream is not None
    stream.close()
    after.close()
