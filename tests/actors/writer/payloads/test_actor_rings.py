"""The writer and frames in rings: stored like others; nobody reaches another's, and bytes that
change while they are read do no harm."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.writer import Writer
from penstock.actors.writer.payloads.producer_rings import GRACE_MS
from penstock.shared.formats.record_layout import AT_BODY_V4
from penstock.shared.loops.active import check_frame
from penstock.shared.loops.pure.walk import walk
from penstock.shared.memory import run_directory
from penstock.shared.memory.ring_file import RING_BYTES, ring_files, take_ring
from penstock.shared.wire.messages import (
    Append,
    Appended,
    OpenRing,
    QueueRun,
    Refused,
    RingOpened,
    RingSpan,
    encode,
)

SEGMENT_BYTES = 64 << 10


class RingClient:
    """A producer by hand that has a ring."""

    def __init__(self, client: Any) -> None:
        self.client = client
        (opened,) = client.ask(encode(OpenRing(5, client.producer)))
        assert isinstance(opened, RingOpened) and opened.request == 5, opened
        self.ring = opened.ring
        self.bytes = take_ring(opened.run_id, opened.ring, opened.size, opened.token)

    def header(self, span: RingSpan, count: int = 1, **changes: Any) -> bytes:
        client = self.client
        client.seq += 1
        seq = changes.pop("seq", client.seq - 1)
        runs = (QueueRun("orders", 0, count),)
        producer = changes.pop("producer", client.producer)
        retry = changes.pop("retry", False)
        return encode(Append(producer, client.session, seq, runs, "written", retry, span))

    def append(self, frame: bytes, at: int, count: int = 1, **changes: Any) -> Any:
        """Put a frame there and have it stored."""
        self.bytes[at : at + len(frame)] = frame
        span = RingSpan(self.ring, at, len(frame))
        return self.client.ask(self.header(span, count, **changes), b"")[0]


@pytest.fixture
def broker(pipeline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    broker = pipeline()
    # where a run's directory is by its name
    (tmp_path / f"penstock-{broker.run.run_id}").symlink_to(broker.run.path)
    monkeypatch.setattr(run_directory, "_MEMORY", tmp_path)
    return broker


@pytest.fixture
def writer(broker: Any) -> Any:
    return broker.start(Writer)


@pytest.fixture
def ring(broker: Any, writer: Any, client: Callable[..., Any]) -> Iterator[RingClient]:
    broker.allocate(4)
    ring = RingClient(client(broker, writer))
    yield ring
    ring.bytes.close()


def _bodies(broker: Any, committer: Any) -> list[bytes]:
    """The bodies in the log, once all of it is in segments."""
    while broker.positions["committed"] < broker.positions["wrote"]:
        broker.clock.advance(1000)
        committer.work()
    found, wrote = [], broker.positions["wrote"]
    for base in range(0, wrote, SEGMENT_BYTES):
        log = memoryview(broker.log(base, min(wrote, base + SEGMENT_BYTES)))
        for record in walk(log, base):
            at = record[4] - base + AT_BODY_V4
            found.append(bytes(log[at : at + int.from_bytes(log[at - 4 : at], "big")]))
    return found


def test_a_frame_in_a_ring_is_stored_as_one_from_the_socket_is(
    broker: Any, ring: RingClient, frame: Callable[..., bytes]
) -> None:
    committer = broker.start(Committer)
    first = ring.append(frame("orders", 0, [b"one", b"two"]), 4096, 2)
    assert isinstance(first, Appended) and first.runs[0].queue_offset == 0
    (second,) = ring.client.append([b"three"])
    assert second.runs[0].queue_offset == 2
    third = ring.append(raw := frame("orders", 0, [b"four"]), RING_BYTES - len(raw))
    assert third.runs[0].queue_offset == 3
    assert _bodies(broker, committer) == [b"one", b"two", b"three", b"four"]
    assert broker.positions["rings"] == 1


def test_a_retry_out_of_a_ring_is_stored_once(
    ring: RingClient, frame: Callable[..., bytes]
) -> None:
    raw = frame("orders", 0, [b"one", b"two"], "K")
    first = ring.append(raw, 0, 2)
    ring.client.hello()
    again = ring.append(raw, 8192, 2, retry=True)
    assert isinstance(again, Appended)
    assert [run.physical_offset for run in again.runs][0] == first.runs[0].physical_offset


def test_a_frame_that_waits_for_room_is_what_it_was_when_it_was_taken(
    broker: Any, writer: Any, client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    """Its copy is in nobody else's memory, and nobody's frame is copied over it."""
    first, second = (RingClient(client(broker, writer)) for _ in range(2))
    for ring, body in ((first, b"first"), (second, b"other")):
        raw = frame("orders", 0, [body])
        ring.bytes[: len(raw)] = raw
        ring.client.ask(ring.header(RingSpan(ring.ring, 0, len(raw))), b"", answers=0)
        while not writer._held and (ring is second or writer._waiting is None):
            writer.work()
    first.bytes[:4096] = bytes(4096)
    broker.allocate(1)
    assert isinstance(first.client.answers(1)[0], Appended)
    assert isinstance(second.client.answers(1)[0], Appended)
    assert _bodies(broker, broker.start(Committer)) == [b"first", b"other"]
    for ring in (first, second):
        ring.bytes.close()


@pytest.mark.parametrize(
    ("offset", "length", "status"),
    [
        (RING_BYTES, 1, "MESSAGE_ILLEGAL"),
        (RING_BYTES - 10, 100, "MESSAGE_ILLEGAL"),
        (0, RING_BYTES, "MESSAGE_ILLEGAL"),
        (1 << 61, 1 << 61, "MESSAGE_ILLEGAL"),
        (0, 0, "MESSAGE_ILLEGAL"),
        (1, 200, "MESSAGE_ILLEGAL"),
        (64, 100, "MESSAGE_ILLEGAL"),
    ],
)
def test_a_span_that_is_wrong_is_refused_and_the_next_is_taken(
    broker: Any,
    ring: RingClient,
    frame: Callable[..., bytes],
    offset: int,
    length: int,
    status: str,
) -> None:
    raw = frame("orders", 0, [b"fine"])
    ring.bytes[: len(raw)] = raw
    span = RingSpan(ring.ring, offset, length)
    (refused,) = ring.client.ask(ring.header(span), b"")
    assert isinstance(refused, Refused) and refused.status == status
    assert broker.positions["wrote"] == 0
    assert isinstance(ring.append(raw, 0), Appended)


def test_records_in_a_ring_and_in_the_payload_too_are_refused(
    broker: Any, ring: RingClient, frame: Callable[..., bytes]
) -> None:
    raw = frame("orders", 0, [b"fine"])
    ring.bytes[: len(raw)] = raw
    (refused,) = ring.client.ask(ring.header(RingSpan(ring.ring, 0, len(raw))), raw)
    assert isinstance(refused, Refused) and refused.status == "MESSAGE_ILLEGAL"
    assert broker.positions["wrote"] == 0


def test_another_producer_s_ring_is_not_to_be_had_by_anybody(
    broker: Any, writer: Any, ring: RingClient, client: Callable[..., Any], frame: Any
) -> None:
    raw = frame("orders", 0, [b"mine"])
    ring.bytes[: len(raw)] = raw
    other = RingClient(client(broker, writer))
    (refused,) = other.client.ask(other.header(RingSpan(ring.ring, 0, len(raw))), b"")
    assert isinstance(refused, Refused) and refused.status == "RING_UNAVAILABLE"
    # nor by somebody who says he is the other one, on a connection of his own
    header = other.header(RingSpan(ring.ring, 0, len(raw)), producer=ring.client.producer, seq=1)
    (answer,) = other.client.ask(header, b"")
    assert not isinstance(answer, Appended)
    (refused,) = other.client.ask(encode(OpenRing(9, ring.client.producer)))
    assert isinstance(refused, Refused) and refused.request == 9
    assert broker.positions["wrote"] == 0
    assert isinstance(ring.append(raw, 0), Appended)
    other.bytes.close()


def test_a_producer_without_a_session_gets_no_ring(broker: Any, writer: Any) -> None:
    socket = broker.client(broker.run.endpoints.produce)
    for producer in (0, 4711, (1 << 62) - 1):
        ((answer,),) = broker.ask(writer, socket, encode(OpenRing(3, producer)))
        assert b"RING_UNAVAILABLE" in answer
    assert ring_files(broker.run.path) == []


def test_a_frame_in_a_ring_that_is_gone_ends_the_session_so_nothing_overtakes_it(
    broker: Any, writer: Any, ring: RingClient, frame: Callable[..., bytes]
) -> None:
    writer._rings.drop(ring.client.producer)
    refused = ring.append(raw := frame("orders", 0, [b"one"]), 0)
    assert isinstance(refused, Refused) and refused.status == "RING_UNAVAILABLE"
    (after,) = ring.client.append([b"two"])
    assert not isinstance(after, Appended)
    ring.client.hello()
    assert isinstance(ring.client.append([b"one"])[0], Appended)
    assert len(raw) < broker.positions["wrote"] + 200


def test_a_writer_that_was_killed_is_followed_by_one_without_rings(
    broker: Any, writer: Any, ring: RingClient, client: Callable[..., Any], frame: Any
) -> None:
    broker.crash(writer)
    assert len(ring_files(broker.run.path)) == 1
    successor = broker.start(Writer)
    assert ring_files(broker.run.path) == [] and broker.positions["rings"] == 0
    again = RingClient(client(broker, successor))
    assert isinstance(again.append(frame("orders", 0, [b"one"]), 0), Appended)
    again.bytes.close()


def test_a_writer_drops_the_ring_of_a_producer_that_is_gone(
    broker: Any, writer: Any, ring: RingClient
) -> None:
    broker.clock.advance(GRACE_MS + 1)
    writer.release_deleted()
    assert broker.positions["rings"] == 1, "its producer has it"
    ring.bytes.close()
    writer.release_deleted()
    assert ring_files(broker.run.path) == [] and broker.positions["rings"] == 0


def test_a_stop_leaves_no_ring(broker: Any, writer: Any, ring: RingClient) -> None:
    broker.stop(writer)
    assert ring_files(broker.run.path) == [] and broker.positions["rings"] == 0


def test_where_rings_are_turned_off_nobody_is_offered_one(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(max_producer_rings=0)
    writer = broker.start(Writer)
    made = client(broker, writer)
    welcome = made.hello()
    assert not welcome.rings
    (refused,) = made.ask(encode(OpenRing(1, made.producer)))
    assert isinstance(refused, Refused) and refused.status == "SERVICE_NOT_AVAILABLE"


def test_bytes_that_change_all_the_time_are_stored_whole_or_refused(
    broker: Any, ring: RingClient, frame: Callable[..., bytes]
) -> None:
    """Somebody writes over the ring while the writer looks at it."""
    committer = broker.start(Committer)
    good, count = frame("orders", 0, [b"a" * 900] * 50), 50
    bad = bytes(len(good))
    stopping = threading.Event()

    def change(taken: mmap.mmap) -> None:
        while not stopping.is_set():
            taken[: len(good)] = good
            taken[len(good) // 2 : len(good)] = bad[len(good) // 2 :]

    thread = threading.Thread(target=change, args=(ring.bytes,))
    thread.start()
    stored = refused = 0
    try:
        for tried in range(1, 61):
            span = RingSpan(ring.ring, 0, len(good))
            (answer,) = ring.client.ask(ring.header(span, count), b"")
            refusal = answer.status if isinstance(answer, Refused) else None
            stored += refusal is None and isinstance(answer, Appended)
            refused += refusal == "MESSAGE_ILLEGAL"
            assert stored + refused == tried, "by chance either, and nothing else"
            if stored == 3:  # as many as the segments have room for
                break
    finally:
        stopping.set()
        thread.join()
    assert _bodies(broker, committer) == [b"a" * 900] * count * stored


def test_the_check_looks_at_the_copy(
    ring: RingClient, writer: Any, frame: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the ring has by the time of the check, what passed it is what is stored."""
    good, bad = frame("orders", 0, [b"good"]), frame("orders", 0, [b"evil"])
    check = writer._check.starts

    def changed_before(request: Append, payload: memoryview) -> list[int]:
        ring.bytes[: len(bad)] = bad
        starts: list[int] = check(request, payload)
        ring.bytes[: len(bad)] = bytes(len(bad))
        assert bytes(payload) == good and check_frame(payload, [(b"orders", 0, 1)], 1 << 20)
        return starts

    monkeypatch.setattr(writer._check, "starts", changed_before)
    assert isinstance(ring.append(good, 0), Appended)
