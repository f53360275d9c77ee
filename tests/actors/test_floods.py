"""Each actor that takes requests closes clients that never complete one, and counts them."""

from __future__ import annotations

import gc
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.coordinator import Coordinator
from penstock.actors.reader import Reader
from penstock.actors.transactions import Transactions
from penstock.actors.writer import Writer
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.process.inflow import LOOK_MS
from penstock.shared.process.malloc_tuning import Heaps

# First in its process: see tests/shared/process/test_inflow.py.
pytestmark = pytest.mark.takes(200)

# only what is not closed takes this long
WAIT_S = 30
# which would take 32 times as much memory
SENT_BYTES = 8 << 20
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
# each takes two bytes on the wire and much more in memory
EMPTY_PARTS = b"\x01\0" * 50_000


def _flood(endpoint: str, closed: list[bool]) -> None:
    """Send parts of one message; whether the other side closes."""
    at = "127.0.0.1", int(endpoint.rpartition(":")[2])
    try:
        with socket.create_connection(at, WAIT_S) as peer:
            peer.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
            found = b""
            while len(found) < 64 + 2 or len(found) < 64 + 2 + found[65]:
                found += peer.recv(256)
            for _ in range(SENT_BYTES // len(EMPTY_PARTS)):
                peer.sendall(EMPTY_PARTS)
            while peer.recv(256):
                pass
        closed.append(True)
    except (ConnectionError, TimeoutError) as error:
        closed.append(isinstance(error, ConnectionError))


@pytest.mark.parametrize(
    ("kind", "endpoint", "count"),
    [
        (Writer, "produce", "closed_producers"),
        (Reader, "consume", "closed_consumers"),
        (Coordinator, "group", "closed_members"),
        (Transactions, "transaction", "closed_transaction_clients"),
    ],
)
def test_who_sends_a_message_without_an_end_is_closed(
    pipeline: Callable[..., Any], kind: Any, endpoint: str, count: str
) -> None:
    gc.collect()
    Heaps(0).give_back()  # a flood into memory that is free would not show
    broker = pipeline()
    broker.allocate(1)
    actor, writer = broker.start(kind), broker.start(Writer) if kind is Transactions else None
    while writer is not None and not actor._ready:  # it hears nobody before that
        writer.work()
        actor.work()
        broker.clock.advance(1)  # it says who it is again, if the writer was not there yet
    closed: list[bool] = []
    soonest_ms = QUIET_TICK_MS
    evil = threading.Thread(target=_flood, args=(getattr(broker.run.endpoints, endpoint), closed))
    evil.start()
    while not closed:  # nobody else works, who would see what all of this process keeps
        actor.work()
        soonest_ms = min(soonest_ms, actor.idle_ms())
        broker.clock.advance(1)
    evil.join()
    assert closed == [True] and broker.positions[count] == 1
    assert soonest_ms <= LOOK_MS, "nobody wakes it for a message that has no end"
