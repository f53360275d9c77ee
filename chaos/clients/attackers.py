"""Clients that mean harm, each with what ZeroMQ and the protocol let anybody send.

None is malformed for long: what makes them dangerous is how much they ask for, or what they claim.
Each returns what is wrong with the answers it got. How others fare meanwhile is for attack.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import zmq

from penstock.chaos.broker import Broker
from penstock.chaos.clients.crowd import stuck_consumers
from penstock.chaos.load import TOPIC
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_PHYSICAL_OFFSET, AT_SYS_FLAG
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    Append,
    Appended,
    Hello,
    Pull,
    QueueRun,
    Subscription,
    encode,
)
from penstock.shared.wire.sockets import dial

ANSWER_MS = 20_000
PARTS, DENSE_BYTES, ENDLESS_BYTES = 1_500_000, 60_000, 400 << 20
LISTS, GREETINGS, GREETING_BYTES = 3000, 60, 20_000
GROUPS, TOPICS, FILTERS, CONSUMERS = 4000, 150, 60, 20
VICTIM, EVIL = "victim", "evil"
_numbers = count(1)


class Peer:
    """A connection that sends what it likes."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.socket = dial(context, endpoint)
        self.producer = random.getrandbits(60)
        self.session = 0
        self._seq = count(1)

    def send(self, *parts: bytes) -> bool:
        """Whether there was room, in time."""
        if not self.socket.poll(ANSWER_MS, zmq.POLLOUT):
            return False
        self.socket.send_multipart(parts)
        return True

    def answer(self) -> Any:
        """The next answer of the produce endpoint; None when there is none in time."""
        if not self.socket.poll(ANSWER_MS):
            return None
        return messages.decode_produce_answer(self.socket.recv_multipart()[0])

    def drain(self) -> None:
        while self.socket.poll(0):
            self.socket.recv_multipart()

    def create(self, topic: str) -> None:
        self.send(encode(messages.CreateTopic(1, topic, 1)))
        self.answer()

    def hello(self, stored_after: int = 0) -> Any:
        self.session += 1
        self._seq = count(1)
        self.send(encode(Hello(self.producer, self.session, 1, stored_after)))
        return self.answer()

    def append(self, topic: str, raw: bytes, *, retry: bool = False) -> None:
        run = (QueueRun(topic, 0, 1),)
        header = Append(self.producer, self.session, next(self._seq), run, "written", retry)
        self.send(encode(header), raw)


@contextmanager
def peers(endpoint: str, number: int = 1) -> Iterator[list[Peer]]:
    context: zmq.Context[Any] = zmq.Context()
    made = [Peer(context, endpoint) for _ in range(number)]
    try:
        yield made
    finally:
        for each in made:
            each.socket.close(linger=0)
        context.term()


def message(topic: str, body: bytes, key: str) -> bytes:
    return encode_record(Record(topic, body, encode_properties({"UNIQ_KEY": key})))


def foreign_key(broker: Broker, dice: random.Random) -> list[str]:
    """Store a key first; then its owner's retry is acknowledged for what somebody else stored."""
    key = f"key-{dice.getrandbits(60):x}"
    with peers(broker.produce) as (peer,):
        peer.create(EVIL)
        peer.create(VICTIM)
        peer.hello()
        stored = []
        for topic, body in ((EVIL, b"forged"), (VICTIM, b"honest")):
            peer.append(topic, message(topic, body, key), retry=topic == VICTIM)
            stored.append(peer.answer())
    evil, honest = stored
    if not isinstance(honest, Appended) or not isinstance(evil, Appended):
        return [f"a retry is answered by {honest}, its forgery by {evil}"]
    if honest.runs[0].physical_offset == evil.runs[0].physical_offset:
        return ["a message was acknowledged for which another one is stored"]
    return []


def offset_in_a_body(broker: Broker, dice: random.Random) -> list[str]:
    """Have the log looked through from within a body, which holds a record of the owner's."""
    key = f"key-{dice.getrandbits(60):x}"
    honest = message(VICTIM, b"honest", key)
    with peers(broker.produce) as (peer,):
        peer.create(EVIL)
        peer.create(VICTIM)
        wrote = peer.hello().wrote
        # others store meanwhile, so the record is made for many places
        forged = b""
        for _ in range(40):
            inner = bytearray(honest)
            own_offset = wrote + AT_BODY_V4 + len(forged)
            inner[AT_PHYSICAL_OFFSET:AT_SYS_FLAG] = own_offset.to_bytes(8, "big")
            forged += bytes(inner)
        peer.append(EVIL, message(EVIL, forged, f"{key}-around"))
        stored = peer.answer()
        if not isinstance(stored, Appended):
            return [f"a message is answered by {stored}"]
        at = stored.runs[0].physical_offset
        peer.hello(stored_after=at + AT_BODY_V4)
        peer.append(VICTIM, honest, retry=True)
        found = peer.answer()
    if not isinstance(found, Appended):
        return [f"a retry is answered by {found}"]
    if at <= found.runs[0].physical_offset < at + len(forged):
        return ["a message was acknowledged that stands in another one's body only"]
    return []


def key_dense(broker: Broker, dice: random.Random) -> list[str]:
    """Bodies full of what looks like a key, and retries of that key from the log's beginning."""
    unit = b"UNIQ_KEY\x01K\x02"
    with peers(broker.produce) as (peer,):
        peer.create(EVIL)
        start = peer.hello().wrote
        for number in range(200):
            peer.append(EVIL, message(EVIL, unit * (DENSE_BYTES // len(unit)), f"d{number}"))
        for _ in range(200):
            peer.answer()
        peer.hello(stored_after=max(0, start - (64 << 20)))
        for number in range(40):
            peer.append(EVIL, message(EVIL, b"x%d" % number, "K"), retry=True)
        answers = [peer.answer() for _ in range(40)]
    wrong = [each for each in answers if not isinstance(each, Appended)]
    return [f"a retry is answered by {wrong[0]}"] if wrong else []


def endpoints(broker: Broker) -> tuple[str, ...]:
    """Of all actors that clients of ZeroMQ talk to."""
    run = read_run(StorePaths(broker.store))
    assert run is not None, "the broker runs"
    found = run.endpoints
    return found.produce, found.consume, found.group, found.transaction


def many_parts(broker: Broker, dice: random.Random) -> list[str]:
    """Messages of a million parts and more without a byte in them."""
    flood = b"\x01\0" * (PARTS - 1) + b"\0\0"
    for endpoint in endpoints(broker):
        for _ in range(3):
            with suppress(ConnectionError), _greeted(endpoint) as peer:
                peer.sendall(flood)
                if not _is_closed(peer):
                    return [f"a connection with messages of {PARTS} parts stays open"]
    return []


_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def _connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_MS / 1000)


def _greeted(endpoint: str) -> socket.socket:
    """A connection on which ZeroMQ's greetings have been exchanged."""
    peer = _connect(endpoint)
    peer.sendall(_GREETING + b"\x04" + bytes([len(_READY)]) + _READY)
    # what comes before ZeroMQ has said the same closes the connection
    found = b""
    while len(found) < 64 + 2 or len(found) < 64 + 2 + found[65]:
        more = peer.recv(256)
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        found += more
    return peer


def _is_closed(peer: socket.socket) -> bool:
    """Whether the other side closes the connection in time; it may say something before."""
    deadline = time.monotonic() + ANSWER_MS / 1000
    while (left := deadline - time.monotonic()) > 0:
        peer.settimeout(left)
        try:
            if not peer.recv(4096):
                return True
        except TimeoutError:
            return False
    return False


def endless_message(broker: Broker, dice: random.Random) -> list[str]:
    """A message of many long parts without an end: its connection is closed."""
    part = b"\x03" + struct.pack(">Q", 64 << 10) + bytes(64 << 10)
    for endpoint in endpoints(broker):
        with _greeted(endpoint) as peer, suppress(ConnectionError):
            for _ in range(ENDLESS_BYTES // len(part)):
                peer.sendall(part)
            if not _is_closed(peer):
                return [f"a connection with a message of {ENDLESS_BYTES} bytes stays open"]
    return []


def greetings(broker: Broker, dice: random.Random) -> list[str]:
    """Greetings that no client sends: of other versions and mechanisms, cut short, flipped, and
    followed by commands as long as they may be, compressed bytes, or whatever chance brings."""
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


def list_topics(broker: Broker, dice: random.Random) -> list[str]:
    """All topics, again and again, and nobody who reads them."""
    with peers(broker.produce, CONSUMERS) as evil:
        for number in range(LISTS // CONSUMERS):
            for each in evil:
                with suppress(zmq.Again):
                    each.socket.send(encode(messages.ListTopics(number + 1)), zmq.NOBLOCK)
        time.sleep(0.5)
    return []


def long_filters(broker: Broker, dice: random.Random) -> list[str]:
    """Conditions and tags as long as they may be, and longer, another one with each pull."""
    with peers(broker.consume, CONSUMERS) as evil:
        for number in range(FILTERS):
            seed = dice.getrandbits(30)
            sql = " OR ".join(f"a{seed + each} = {each}" for each in range(450))[:8000]
            tags = "||".join(f"{seed}-{each}" for each in range(dice.choice((2000, 60_000))))
            kind, expression = dice.choice((("SQL92", sql), ("SQL92", sql + " OR"), ("TAG", tags)))
            wanted = Subscription(kind, expression, {}, "", 0)
            pull = Pull(number + 1, TOPIC, {0: 0}, 9, 1000, 500, wanted)
            for each in evil:
                each.drain()
                each.send(encode(pull))
    return []


def long_properties(broker: Broker, dice: random.Random) -> list[str]:
    """Messages with properties as long as they may be, and conditions on all of them."""
    named = {f"p{number}": "value" for number in range(2000)}
    with peers(broker.produce) as (peer,), peers(broker.consume, CONSUMERS) as evil:
        peer.create(EVIL)
        peer.hello()
        for number in range(300):
            properties = encode_properties({"UNIQ_KEY": f"p{number}", **named})
            peer.append(EVIL, encode_record(Record(EVIL, b"x", properties)))
            peer.answer()
        wanted = Subscription("SQL92", "p1 = 'value' AND p1999 = 'another'", {}, "", 0)
        for number in range(5):
            for each in evil:
                each.drain()
                each.send(encode(Pull(number + 1, EVIL, {0: 0}, 9, 1 << 20, 300, wanted)))
            time.sleep(0.3)
    return []


def many_groups(broker: Broker, dice: random.Random) -> list[str]:
    """A group with each pull, and a filter as long as it may be."""
    filler = " " * 8000
    with peers(broker.consume) as (peer,):
        for number in range(GROUPS):
            wanted = Subscription("SQL92", f"a = 1{filler}", {}, f"evil{next(_numbers)}", 1)
            peer.send(encode(Pull(number + 1, TOPIC, {0: 0}, 9, 1000, 0, wanted)))
            peer.drain()
    return []


def many_topics(broker: Broker, dice: random.Random) -> list[str]:
    """Topics without an end."""
    with peers(broker.produce) as (peer,):
        for number in range(TOPICS):
            peer.send(encode(messages.CreateTopic(number + 1, f"evil{next(_numbers)}", 1)))
            peer.drain()
        time.sleep(1)
    return []


def never_read(broker: Broker, dice: random.Random) -> list[str]:
    """Consumers that ask for all there is and read nothing of it."""
    with stuck_consumers(broker.consume, TOPIC):
        time.sleep(1)
    return []


def names_to_come(broker: Broker, dice: random.Random) -> list[str]:
    """Announce the names that ZeroMQ gives to the next connections, if it counts from where the C
    library's random numbers begin. It aborts when it comes to one."""
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


Attack = Callable[[Broker, random.Random], list[str]]
ATTACKS: tuple[Attack, ...] = (
    *(foreign_key, offset_in_a_body, key_dense, many_parts, endless_message),
    *(long_filters, long_properties, many_groups, many_topics, never_read, names_to_come),
    *(greetings, list_topics),
)
