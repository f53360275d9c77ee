"""The gateway's stream to the writer, which may not be there yet, go, and be there again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.gateway.asking.writer_stream import WriterStream
from penstock.shared.wire.local_stream import LocalStream, StreamListener
from penstock.shared.wire.sockets import WRITER_STREAM

MOST_BYTES, WAIT_MS = 1 << 20, 60_000


@pytest.fixture
def stage(pipeline: Callable[..., Any]) -> Any:
    found = pipeline().stage("gateway")
    found.listen(found.bus.bells, False)
    return found


@pytest.fixture
def writer(stage: Any) -> Iterator[StreamListener]:
    listener = StreamListener(stage.run.socket(WRITER_STREAM), MOST_BYTES)
    yield listener
    listener.close()


def taken(listener: StreamListener) -> LocalStream:
    stream = listener.accept()
    assert stream is not None
    return stream


def test_nothing_is_sent_where_the_writer_is_not_and_it_is_dialled_when_it_is(stage: Any) -> None:
    stream = WriterStream(stage)
    assert not stream.send(b"lost") and stream.handle < 0 and not stream.has_ended
    listener = StreamListener(stage.run.socket(WRITER_STREAM), MOST_BYTES)
    assert stream.send(b"header", b"records")
    other = taken(listener)
    other.read()
    message = other.next()
    assert message is not None and (message[0], bytes(message[1])) == (b"header", b"records")
    for each in (other, listener):
        each.close()
    stream.end()


def test_an_answer_ends_the_sleep_and_one_that_is_there_after_a_send_needs_none(
    stage: Any, writer: StreamListener
) -> None:
    stream = WriterStream(stage)
    assert stream.send(b"asked")
    other = taken(writer)
    other.send(b"answer")
    assert stage.sleep(WAIT_MS) == [stream.handle] and stream.answers() == [b"answer"]
    other.send(b"at once")
    stage.ready = [0]
    assert stream.answers() == [] and stream.answers(has_sent=True) == [b"at once"]
    other.close()
    stream.end()


def test_a_writer_that_has_gone_ends_the_sleep_and_its_successor_is_dialled(
    stage: Any, writer: StreamListener
) -> None:
    stream = WriterStream(stage)
    assert stream.send(b"asked")
    other = taken(writer)
    other.send(b"last")
    other.close()
    assert stage.sleep(WAIT_MS) == [stream.handle]
    assert stream.answers() == [b"last"] and not stream.has_ended
    assert stage.sleep(WAIT_MS) == [stream.handle]
    assert stream.answers() == [] and stream.has_ended and not stream.send(b"lost")
    stream.end()
    assert stream.send(b"again")
    after = taken(writer)
    after.send(b"heard")
    assert stage.sleep(WAIT_MS) == [stream.handle] and stream.answers() == [b"heard"]
    after.close()
    stream.end()


def test_what_the_writer_does_not_read_is_sent_when_it_does(
    stage: Any, writer: StreamListener
) -> None:
    """Room ends the sleep, and only while something waits for it."""
    stream, frame = WriterStream(stage), bytes(256 << 10)
    for _ in range(8):
        assert stream.send(b"frame", frame)
    other, found = taken(writer), 0
    while found < 8:
        before = -1
        while found > before:  # all that the kernel has
            before = found
            other.read()
            while other.next() is not None:
                found += 1
        if found < 8:
            assert stage.sleep(WAIT_MS) == [stream.handle]
            assert stream.answers() == []
    assert stage.sleep(0) == []
    other.close()
    stream.end()
