"""Malformed requests: frames of both endpoints, bent in every way, thrown at a broker that works.

None of them ends a process or disturbs another client, and what is stored is what was sent.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.history import check_acknowledged
from penstock.chaos.load import QUEUES, TOPIC, Load, read_all
from penstock.client.producer import Producer
from penstock.shared import messages
from penstock.shared.bus import dial
from penstock.shared.messages import encode
from penstock.shared.properties import encode_properties
from penstock.shared.record import Record, encode_record, pack_host

# in a round, at each endpoint
FRAMES, GARBAGE = 4000, 20
_HOST = pack_host("127.0.0.1", 1)
# Values that meet a boundary of some length, sign or size.
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_SENT_AT_ONCE = 200


def frames_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        broker = Broker(room, any_settings(dice))
        load: Load | None = None
        try:
            broker.start()
            with Producer(broker.produce) as producer:
                producer.create_topic(TOPIC, QUEUES)
            load = Load("p1", broker.produce, rate=300)
            _throw_all(arena, broker, dice)
            load.finish()
            restarts = {each["name"]: each["restarts"] for each in broker.status()["actors"]}
            wrong = [f"{name} was restarted" for name, count in restarts.items() if count]
            wrong += [f"a send failed: {error}" for error in load.failed[:1]]
            broker.await_dispatched()
            stored = read_all(broker.consume)
            wrong += check_acknowledged(load.acked, stored, "messages are lost")
            arena.report.acknowledged += load.count()
            arena.report.add_violations(wrong, replay)
            broker.stop()
        finally:
            if load is not None:
                load.abandon()
            broker.clear()


def _throw_all(arena: Arena, broker: Broker, dice: random.Random) -> None:
    kinds = ((broker.produce, produce_request), (broker.consume, consume_request))
    for endpoint, make in kinds:
        sent = throw(endpoint, (bend(make(dice), dice) for _ in range(FRAMES)))
        arena.report.add_fault("bent frame", sent)
        for _ in range(GARBAGE):
            throw_garbage(endpoint, dice)
        arena.report.add_fault("garbage on a socket", GARBAGE)
        arena.moved()


def produce_request(dice: random.Random) -> list[bytes]:
    """A well-formed request of a random kind, as its parts."""
    producer, session = dice.getrandbits(60), dice.getrandbits(30)
    queue, seq = dice.randrange(QUEUES), dice.choice((0, 1, dice.getrandbits(40)))
    record = encode_record(
        Record(
            TOPIC,
            dice.randbytes(dice.choice((0, 1, 100, 5000))),
            queue_id=queue,
            born_host=_HOST,
            properties=encode_properties({"UNIQ_KEY": dice.randbytes(8).hex(), "TAGS": "a"}),
        )
    )
    count = dice.choice((1, 1, 2, 20))
    return dice.choice(
        (
            [encode(messages.Hello(producer, session, seq, dice.getrandbits(20)))],
            [
                encode(messages.Append(producer, session, seq, TOPIC, queue, count, "", False)),
                record * count,
            ],
            [encode(messages.Route(seq, TOPIC, True))],
            [encode(messages.CreateTopic(seq, TOPIC, QUEUES))],
            [encode(messages.ListTopics(seq))],
        )
    )


def consume_request(dice: random.Random) -> list[bytes]:
    cursors = {dice.randrange(QUEUES + 1): dice.choice((0, 5, 1 << 40)) for _ in range(2)}
    number = dice.getrandbits(40)
    return dice.choice(
        (
            [encode(messages.Pull(number, TOPIC, cursors, 0, 1 << 16, 0))],
            [encode(messages.Describe(number, TOPIC, dice.choice((-1, 0, 1 << 50))))],
        )
    )


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


def throw(endpoint: str, requests: Iterator[list[bytes]]) -> int:
    """Send requests to an endpoint and read whatever comes back; how many were sent."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = dial(context, endpoint)
    sent = 0
    for parts in requests:
        if not peer.poll(10_000, zmq.POLLOUT):
            break
        peer.send_multipart(parts)
        sent += 1
        if sent % _SENT_AT_ONCE == 0:
            while peer.poll(0):
                peer.recv_multipart()
    peer.close(linger=2000)
    context.term()
    return sent


def throw_garbage(endpoint: str, dice: random.Random) -> None:
    """Connect without ZeroMQ, and send bytes of no protocol."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as peer:
        peer.sendall(dice.randbytes(dice.choice((0, 1, 9, 10, 64, 5000))))
