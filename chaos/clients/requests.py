"""Requests to break a broker with: well-formed ones of every kind that a client sends, and bent
ones.

Pure: the dice are passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from penstock.chaos.load import QUEUES, TOPIC
from penstock.shared.formats.compression import compress
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode

_HOST = pack_host("127.0.0.1", 1)
# Values at a boundary of some length, sign or size.
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_SQL92 = (
    "a > 5 AND b IN ('x', 'y') OR c IS NOT NULL",
    "TAGS = 'a' AND NOT (n BETWEEN 1 AND 1E9)",
    "s CONTAINS 'o''clock' OR -n <= +1.5",
    "(" * 40 + "TRUE" + ")" * 40,
    # deeper than any parser's stack, but not longer than a filter may be
    "(" * 4000 + "TRUE" + ")" * 4000,
)
_TAGS = ("*", "a", "a || b", " || ", "x" * 5000)


def produce_request(dice: random.Random) -> list[bytes]:
    """A request to the produce endpoint, as its parts."""
    producer, session = dice.getrandbits(60), dice.getrandbits(30)
    seq = dice.choice((0, 1, dice.getrandbits(40)))
    # most requests are frames
    kind = dice.choice((*["append"] * 5, "hello", "route", "create", "list", "ring"))
    if kind == "append":
        return _append(producer, session, seq, dice)
    made = {
        "hello": messages.Hello(producer, session, seq, dice.getrandbits(20)),
        "route": messages.Route(seq, TOPIC, True),
        "create": messages.CreateTopic(seq, TOPIC, QUEUES),
        "list": messages.ListTopics(seq),
        "ring": messages.OpenRing(seq, producer),
    }
    return [encode(made[kind])]


def _append(producer: int, session: int, seq: int, dice: random.Random) -> list[bytes]:
    runs, payload = [], b""
    for _ in range(dice.choice((1, 1, 2, 5))):
        queue, count = dice.randrange(QUEUES), dice.choice((1, 1, 2, 20))
        runs.append(messages.QueueRun(TOPIC, queue, count, dice.random() < 0.3))
        payload += _record(queue, dice) * count
    retry, ack = dice.random() < 0.2, dice.choice(("", "durable", "written"))
    span = None
    if dice.random() < 0.1:
        span = messages.RingSpan(*(dice.choice((*_EDGES, 1 << 61)) for _ in range(3)))
        payload = payload if dice.random() < 0.5 else b""
    staged = tuple(dice.choices((*_EDGES, 1 << 61), k=dice.choice((0, 0, 0, 1, 3))))
    frame = messages.Append(producer, session, seq, tuple(runs), ack, retry, span, staged=staged)
    return [encode(frame), payload]


def _record(queue: int, dice: random.Random) -> bytes:
    body, sys_flag = dice.randbytes(dice.choice((0, 1, 100, 5000))), 0
    if dice.random() < 0.3:
        body, sys_flag = compress(dice.choice(("zlib", "lz4", "zstd")), bytes(5000))
    properties = {"UNIQ_KEY": dice.randbytes(8).hex(), "TAGS": "a", "KEYS": "k1 k2"}
    return encode_record(
        Record(
            TOPIC,
            body,
            queue_id=queue,
            sys_flag=sys_flag,
            born_host=_HOST,
            properties=encode_properties(properties),
        )
    )


def consume_request(dice: random.Random) -> list[bytes]:
    """A request to the consume endpoint, as its parts."""
    cursors = {dice.randrange(QUEUES + 1): dice.choice((0, 5, 1 << 40)) for _ in range(2)}
    number, group = dice.getrandbits(40), dice.choice(("", "group"))
    low, high = dice.choice(((0, 1 << 60), (-(1 << 63), (1 << 63) - 1), (5, 1)))
    kind, text = dice.choice((("SQL92", dice.choice(_SQL92)), ("TAG", dice.choice(_TAGS))))
    ends = dict.fromkeys(cursors, dice.choice((0, 3, 1 << 50)))
    wanted = messages.Subscription(kind, text, ends, group, dice.getrandbits(40))
    key = dice.choice(("k1", "", "\x00", "k" * 2000))
    made = (
        messages.Pull(number, TOPIC, cursors, 0, 1 << 12, 0),
        messages.Pull(number, TOPIC, cursors, 0, 1 << 12, dice.choice((0, 50)), wanted),
        messages.Describe(number, TOPIC, dice.choice((-1, 0, 1 << 50))),
        messages.ListQueues(number, (TOPIC, "other")),
        messages.Query(number, TOPIC, key, dice.choice((0, 1, 1 << 40)), low, high, True),
        messages.Query(number, TOPIC, key, 5, low, high, False),
        messages.QueryById(number, dice.choice((_HOST.hex() + "00" * 8, "zz", "0" * 56))),
    )
    return [encode(dice.choice(made))]


def bent_requests(
    make: Callable[[random.Random], list[bytes]], dice: random.Random, count: int
) -> Iterator[list[bytes]]:
    """Requests, each with something wrong; a frame gets the session that it names."""
    for _ in range(count):
        parts = make(dice)
        if len(parts) > 1:
            frame = messages.decode_produce_request(parts[0])
            assert isinstance(frame, messages.Append)
            yield [encode(messages.Hello(frame.producer, frame.session, frame.seq, 0))]
        yield bend(parts, dice)


def bend(parts: list[bytes], dice: random.Random) -> list[bytes]:
    """The request with one to four things wrong with it."""
    bent = [bytearray(part) for part in parts]
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(bent))
        part = bent[at]
        what = dice.randrange(8)
        if what == 0 and part:
            part[dice.randrange(len(part))] ^= 1 << dice.randrange(8)
        elif what == 1:
            del part[dice.randrange(len(part) + 1) :]
        elif what == 2:
            place = dice.randrange(len(part) + 1)
            part[place:place] = dice.randbytes(dice.randint(1, 9))
        elif what == 3 and len(part) >= 4:
            place = dice.randrange(len(part) - 3)
            part[place : place + 4] = dice.choice(_EDGES).to_bytes(4, "big")
        elif what == 4:
            bent.insert(at, bytearray(dice.randbytes(dice.choice((0, 1, 300)))))
        elif what == 5 and len(bent) > 1:
            del bent[at]
        elif what == 6:
            part += part[: dice.randrange(len(part) + 1)]
        else:
            bent[at] = bytearray(dice.randbytes(dice.choice((0, 1, 10, 1000))))
    return [bytes(part) for part in bent]
