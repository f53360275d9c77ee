"""Attacks on what accepts connections, and on ZeroMQ itself."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
import struct
import time
import zlib
from contextlib import suppress
from itertools import product
from typing import Any

import zmq

from penstock.chaos.broker import Broker
from penstock.chaos.clients.attacks.peer import ANSWER_MS, endpoints
from penstock.shared.wire.sockets import dial

# Few enough that their memory is not noticed, and more than that.
PARTS, ENDLESS_BYTES = (600_000, 3_000_000), 400 << 20
GREETINGS, GREETING_BYTES = 60, 20_000


_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def _connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_MS / 1000)


def _greeted(endpoint: str) -> socket.socket:
    """A connection on which ZeroMQ's greetings have been exchanged."""
    peer = _connect(endpoint)
    peer.sendall(_GREETING + b"\x04" + bytes([len(_READY)]) + _READY)
    # if we send anything before ZeroMQ has sent the same, the connection is closed
    found = b""
    while len(found) < 64 + 2 or len(found) < 64 + 2 + found[65]:
        more = peer.recv(256)
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        found += more
    return peer


def _is_closed(peer: socket.socket) -> bool:
    """Whether the other side closes the connection in time; it may send something before."""
    deadline = time.monotonic() + ANSWER_MS / 1000
    while (left := deadline - time.monotonic()) > 0:
        peer.settimeout(left)
        try:
            if not peer.recv(4096):
                return True
        except TimeoutError:
            return False
    return False


def many_parts(broker: Broker, dice: random.Random) -> list[str]:
    """Messages of a million empty parts and more."""
    for endpoint, parts in product(endpoints(broker), PARTS):
        with suppress(ConnectionError), _greeted(endpoint) as peer:
            peer.sendall(b"\x01\0" * (parts - 1) + b"\0\0")
            if not _is_closed(peer):
                return [f"a connection with a message of {parts} parts stays open"]
    return []


def endless_message(broker: Broker, dice: random.Random) -> list[str]:
    """A message of many long parts without an end: its connection must be closed."""
    part = b"\x03" + struct.pack(">Q", 64 << 10) + bytes(64 << 10)
    for endpoint in endpoints(broker):
        with _greeted(endpoint) as peer, suppress(ConnectionError):
            for _ in range(ENDLESS_BYTES // len(part)):
                peer.sendall(part)
            if not _is_closed(peer):
                return [f"a connection with a message of {ENDLESS_BYTES} bytes stays open"]
    return []


def greetings(broker: Broker, dice: random.Random) -> list[str]:
    """Greetings that no client sends: of other versions and mechanisms, cut short, with flipped
    bits, and followed by commands of maximum length, compressed bytes, or random data."""
    good = _GREETING + b"\x04" + bytes([len(_READY)]) + _READY
    for _ in range(GREETINGS):
        raw = bytearray(good[: dice.randrange(len(good) + 1)])
        for _ in range(dice.choice((0, 1, 1, 3))):
            if raw:
                raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        garbage = dice.randbytes(dice.randrange(GREETING_BYTES))
        raw += dice.choice((b"", garbage, zlib.compress(bytes(1 << 20)), b"\x06" + garbage))
        with suppress(OSError), _connect(dice.choice(endpoints(broker))) as peer:
            peer.sendall(raw)
    return []


def names_to_come(broker: Broker, dice: random.Random) -> list[str]:
    """Announce the names that ZeroMQ gives to the next connections, if it counts from the C
    library's default seed. It aborts when it reaches one."""
    library = ctypes.CDLL(None)
    library.srand(1)
    # two make a number of 32 bits
    starts = [library.rand() | (library.rand() & 1) << 31 for _ in range(16)]
    for endpoint in endpoints(broker):
        context: zmq.Context[Any] = zmq.Context()
        for start in starts:
            for number in range(24):
                peer = context.socket(zmq.DEALER)
                peer.linger = 0
                peer.routing_id = b"\0" + ((start + number) % 2**32).to_bytes(4, "big")
                peer.connect(endpoint)
        for _ in range(60):
            peer = dial(context, endpoint)
            if peer.poll(ANSWER_MS, zmq.POLLOUT):
                peer.send(b"")
        context.destroy(linger=0)
    return []
