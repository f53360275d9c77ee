"""Memory that clients take without ever sending a whole request: who takes most is closed."""

from __future__ import annotations

import gc
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq

from penstock.shared.process import inflow
from penstock.shared.process.inflow import (
    ASK_MS,
    GROWN_BYTES,
    LEAST_BYTES,
    LOOK_MS,
    SPARE_BYTES,
    UNDER_WAY_BYTES,
    Inflow,
)
from penstock.shared.process.inlet import Inlet
from penstock.shared.process.malloc_tuning import Heaps, in_use_bytes, own_bytes
from penstock.shared.wire.sockets import dial, serve

# First in its process: where thousands of tests have left a large heap the C library takes long to
# say what is in use, and is asked more seldom than in any actor.
pytestmark = pytest.mark.takes(200)

WAIT_S = 60
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
LONG_PART = b"\x03" + struct.pack(">Q", 64 << 10) + bytes(64 << 10)
EMPTY_PARTS = b"\x01\0" * 50_000


class Endpoint:
    """A serving socket that is served, and what became of its connections."""

    def __init__(self) -> None:
        # Memory that earlier tests have left free would take the flood in, and the process would
        # not grow; what is still garbage would be freed amid the test.
        gc.collect()
        Heaps(0).give_back()
        self.context: zmq.Context[Any] = zmq.Context()
        self.serving = serve(self.context, ("tcp://127.0.0.1:*",), 1 << 20, {}, 4)
        self.address = self.serving.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.closed: list[str] = []
        self.requests: list[bytes] = []
        self.dialed: list[Any] = []
        self.most_bytes = 0
        self.inlet = Inlet(
            self.serving, lambda: None, self.closed.append, lambda: time.monotonic_ns() // 1_000_000
        )

    def turn(self) -> None:
        self.inlet.tend()
        while parts := self.inlet.receive():
            self.requests.append(bytes(parts[-1][:32]))
            self.serving.send_multipart((parts[0], b"taken"))
        self.most_bytes = max(self.most_bytes, in_use_bytes())

    def serve_until(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, (self.closed, self.most_bytes >> 20)
            self.turn()
            self.serving.poll(1)

    def dial(self) -> Any:
        self.dialed.append(dial(self.context, self.address))
        return self.dialed[-1]

    def greeted(self) -> socket.socket:
        """A connection that speaks ZeroMQ's protocol, byte by byte."""
        port = int(self.address.rpartition(":")[2])
        peer = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        peer.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
        # what comes before ZeroMQ has said the same closes the connection
        found = b""
        while len(found) < 64 + 2 or len(found) < 64 + 2 + found[65]:
            found += peer.recv(256)
        return peer


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    for each in (*made.dialed, made.serving):
        each.close(linger=0)
    made.context.term()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _flood(peer: socket.socket, piece: bytes, ended: list[int]) -> None:
    """Send it again and again, until the other side closes."""
    sent = 0
    try:
        while sent < 4 << 30:
            peer.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass  # what the test waits for
    ended.append(sent)


@pytest.mark.parametrize("piece", [LONG_PART, EMPTY_PARTS], ids=["long parts", "empty parts"])
def test_a_message_without_an_end_is_closed_and_nobody_else(
    endpoint: Endpoint, piece: bytes
) -> None:
    honest = endpoint.dial()
    honest.send(b"before")
    endpoint.serve_until(lambda: endpoint.requests == [b"before"])
    before = in_use_bytes()
    ended: list[int] = []
    with endpoint.greeted() as evil:
        flood = threading.Thread(target=_flood, args=(evil, piece, ended))
        flood.start()
        endpoint.serve_until(lambda: bool(ended))
        flood.join()
    assert ended[0] < 4 << 30 and len(endpoint.closed) == 1, "it is closed once, and not later"
    # what comes while this thread has no turn is the machine's
    assert endpoint.most_bytes - before < 3 * UNDER_WAY_BYTES
    honest.send(b"behind")
    endpoint.serve_until(lambda: endpoint.requests == [b"before", b"behind"])
    endpoint.serve_until(lambda: in_use_bytes() - before < 32 << 20)


def test_who_has_sent_all_of_a_flood_while_requests_were_waiting_is_closed_later(
    endpoint: Endpoint,
) -> None:
    honest = endpoint.dial()
    honest.send(b"before")
    endpoint.serve_until(lambda: endpoint.requests == [b"before"])
    before = in_use_bytes()
    with endpoint.greeted() as evil:
        # without a turn: no look sees it come, and the one that does finds a request, too
        for _ in range(UNDER_WAY_BYTES // len(LONG_PART) * 3 // 2):
            evil.sendall(LONG_PART)
        _wait_until(lambda: in_use_bytes() - before > UNDER_WAY_BYTES)
        honest.send(b"amid")
        _wait_until(lambda: bool(endpoint.serving.poll(0)))
        endpoint.inlet.drained = False
        endpoint.inlet.tend()
        assert not endpoint.closed, "whose the memory is cannot be said yet"
        endpoint.serve_until(lambda: bool(endpoint.closed))
    assert endpoint.requests == [b"before", b"amid"]


def _calms(inflow: Inflow, now_ms: list[int]) -> bool:
    """Whether a later look finds no growth: the next one, or one soon after it in a process whose
    heap is large, because there the C library is asked more seldom."""
    for _ in range(100):
        now_ms[0] += LOOK_MS
        if not inflow.look(True, 0):
            return True
    return False


def test_as_long_as_memory_grows_a_doorbell_does_not_make_the_sleep_long_again() -> None:
    gc.collect()
    Heaps(0).give_back()
    now_ms = [0]
    inflow = Inflow(lambda: now_ms[0], lambda size: None, worked_ms=lambda: 0)
    assert not inflow.look(True, 0) and not inflow.look(True, 0)
    grown = b"x" * (64 << 20)
    now_ms[0] += LOOK_MS
    assert inflow.look(True, 0), "memory has grown"
    assert inflow.look(True, 0), "nothing has been looked at since"
    assert _calms(inflow, now_ms) and len(grown) == 64 << 20, "it was no client's"


def test_a_look_amid_which_others_had_the_processor_is_followed_by_the_next_in_time() -> None:
    gc.collect()
    Heaps(0).give_back()
    now_ms = [0]

    def late() -> int:  # 300 ms go by each time that somebody asks how late it is
        now_ms[0] += 300
        return now_ms[0]

    inflow = Inflow(late, lambda size: None, worked_ms=lambda: 0)
    assert not inflow.look(True, 0) and not inflow.look(True, 0)
    grown = b"x" * (64 << 20)
    assert inflow.look(True, 0), "memory has grown"
    assert not inflow.look(True, 0), "it has looked again"
    assert len(grown) == 64 << 20


def test_a_flood_that_comes_while_it_rests_from_a_long_look_ends_the_rest() -> None:
    gc.collect()
    Heaps(0).give_back()
    now_ms, asked = [0], [0]

    def slow() -> int:  # a look takes 1 s of work
        asked[0] += 1
        return 1000 * asked[0]

    def has_looked() -> bool:
        before = asked[0]
        now_ms[0] += LOOK_MS
        inflow.look(True, 0)
        return asked[0] > before

    inflow = Inflow(lambda: now_ms[0], lambda size: None, worked_ms=slow)
    assert has_looked()
    grown = [b"x" * (64 << 20)]
    assert has_looked() and not has_looked(), "it rests"
    grown.append(b"x" * (SPARE_BYTES // 2))
    assert not has_looked(), "that is little"
    grown.append(b"x" * SPARE_BYTES)
    assert has_looked() and len(grown) == 3


def test_memory_that_an_earlier_flood_left_free_does_not_hide_the_next_one() -> None:
    pieces = [bytearray(100_000) for _ in range(1000)]
    left = pieces[::100]  # here and there somebody still has a piece, so that the rest stays
    del pieces
    now_ms = [0]
    # by its own clock a question that took 1 ms would put off the next one
    inflow = Inflow(lambda: now_ms[0], lambda size: None, worked_ms=lambda: 0)
    assert not inflow.look(True, 0)
    before = own_bytes()
    pieces = [bytearray(100_000) for _ in range(600)]
    assert own_bytes() - before < GROWN_BYTES, "it takes what was free"
    now_ms[0] += ASK_MS
    assert inflow.look(True, 0), "60 MiB have come"
    assert _calms(inflow, now_ms) and len(pieces) + len(left) == 610, "it was no client's"


def test_one_that_is_closed_already_is_not_closed_again_while_zeromq_still_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inflow, "UNDER_WAY_BYTES", LEAST_BYTES)
    gc.collect()
    Heaps(0).give_back()
    now_ms, closed = [0], list[int]()
    it = Inflow(lambda: now_ms[0], closed.append, worked_ms=lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
        with peer, mine:
            for _ in range(17):
                peer.sendall(bytes(64 << 10))
                assert len(mine.recv(64 << 10, socket.MSG_WAITALL)) == 64 << 10
            assert not it.look(True, 0)
            grown = b"x" * (2 * SPARE_BYTES)
            for _ in range(3):
                now_ms[0] += LOOK_MS
                assert it.look(True, 0), "memory has grown"
    assert closed == [17 * (64 << 10)] and len(grown) == 2 * SPARE_BYTES


def test_many_that_keep_a_little_each_are_closed_until_it_is_little_together(
    endpoint: Endpoint,
) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(endpoint.greeted()) for _ in range(40)]
        before = in_use_bytes()
        for _ in range(6 * 16):  # 6 MiB of each: 240 MiB
            for peer in peers:
                try:
                    peer.sendall(LONG_PART)
                except OSError:
                    continue  # closed
            endpoint.turn()
        # at first much of it may still be with the kernel
        endpoint.serve_until(
            lambda: len(endpoint.closed) > 10 and in_use_bytes() - before <= UNDER_WAY_BYTES
        )
        assert len(endpoint.closed) < len(peers)


SENDERS, ROUNDS = 12, 20
HONEST = """
import sys, zmq
from penstock.shared.wire.sockets import dial
context = zmq.Context()
senders = [dial(context, sys.argv[1]) for _ in range(int(sys.argv[2]))]
for _ in range(int(sys.argv[3])):
    for each in senders:
        each.send(bytes(3 << 20))
    for each in senders:
        each.recv()
context.destroy()
"""


def test_honest_clients_with_long_requests_are_never_closed(endpoint: Endpoint) -> None:
    command = [sys.executable, "-c", HONEST, endpoint.address, str(SENDERS), str(ROUNDS)]
    with subprocess.Popen(command) as honest:  # what they queue is no memory of this process
        endpoint.serve_until(lambda: len(endpoint.requests) == SENDERS * ROUNDS, 4 * WAIT_S)
    assert honest.returncode == 0 and endpoint.closed == []


def test_bytes_that_nobody_has_read_are_of_no_message_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
        with peer, mine:
            peer.sendall(b"x" * 1000)
            assert len(mine.recv(1000, socket.MSG_PEEK | socket.MSG_WAITALL)) == 1000
            assert inflow._received(mine.fileno()) == 0
            mine.recv(300, socket.MSG_WAITALL)
            assert inflow._received(mine.fileno()) == 300
            mine.recv(700, socket.MSG_WAITALL)
            assert inflow._received(mine.fileno()) == 1000
        assert inflow._received(server.fileno()) == 0, "one that listens receives nothing"
