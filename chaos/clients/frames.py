"""Malformed requests: frames of every kind at both endpoints, bent in every way, over TCP, socket
files and rings in shared memory; and garbage on every socket, doorbells between actors included.

None of it ends a process or holds up another client; what is stored is what was sent, and no memory
is lost.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.clients.bent_rings import throw_rings
from penstock.chaos.clients.requests import bent_requests, consume_request, produce_request
from penstock.chaos.history import Sent, check_acknowledged
from penstock.chaos.load import read_all
from penstock.chaos.machine.usage import own_memory_bytes
from penstock.chaos.under_load import one_load
from penstock.client.sending.producer import Producer
from penstock.shared.errors import PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.memory.roster import ACTORS
from penstock.shared.memory.run_directory import Run, read_run
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import WRITER_STREAM, dial

# in a round, at each endpoint and on each way to it
FRAMES, GARBAGE, BELLS = 5000, 20, 200
# through a ring
RING_FRAMES = 1000
# limit for another client's wait; a busy machine needs part of it
WAIT_S = 1.0
GROWN_BYTES = 48 << 20
_SENT_AT_ONCE = 200


def frames_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        broker = Broker(room, any_settings(dice))
        with one_load(broker, rate=300) as load:
            pids = broker.actors()
            before = {name: own_memory_bytes(pid) for name, pid in pids.items()}
            with _another_client(broker) as wrong:
                acked = _throw_all(arena, broker, dice, wrong)
            load.finish()
            for name, pid in pids.items():
                if broker.actors()[name] != pid:
                    wrong.append(f"{name} was restarted")
                elif (grown := own_memory_bytes(pid) - before[name]) > GROWN_BYTES:
                    wrong.append(f"{name} has grown by {grown >> 20} MiB")
            wrong += [f"a send failed: {error}" for error in load.failed[:1]]
            broker.await_dispatched()
            # a bent flag may call a body compressed that is not
            stored = read_all(broker.consume, attrgetter("stored_body"))
            wrong += check_acknowledged(load.acked, stored, "which were acknowledged")
            wrong += check_acknowledged(acked, stored, "which came through a ring")
            arena.report.acknowledged += load.count()
            arena.report.add_violations(wrong, replay)
            broker.stop()


def _throw_all(arena: Arena, broker: Broker, dice: random.Random, wrong: list[str]) -> list[Sent]:
    """Returns those frames through a ring that were right and acknowledged."""
    run = read_run(StorePaths(broker.store))
    assert run is not None
    ends = run.endpoints
    for make, endpoints in (
        (produce_request, (ends.produce, ends.produce_ipc)),
        (consume_request, (ends.consume, ends.consume_ipc)),
    ):
        for endpoint in endpoints:
            sent = throw(endpoint, bent_requests(make, dice, FRAMES))
            arena.report.add_fault("bent frame", sent)
            for _ in range(GARBAGE):
                throw_garbage(endpoint, dice)
            arena.report.add_fault("garbage on a socket", GARBAGE)
            arena.moved()
    for _ in range(GARBAGE):
        throw_garbage(run.socket(WRITER_STREAM), dice)
    arena.report.add_fault("garbage on a socket", GARBAGE)
    acked, complaints = throw_rings(run, dice, RING_FRAMES, arena.moved)
    wrong += complaints
    arena.report.add_fault("frame in a ring", RING_FRAMES)
    _ring_falsely(run, dice)
    arena.report.add_fault("false doorbell", BELLS * len(ACTORS))
    return acked


def _ring_falsely(run: Run, dice: random.Random) -> None:
    """Doorbells with any content, and garbage on their sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for actor in ACTORS:
        push = context.socket(zmq.PUSH)
        push.connect(run.socket(f"bell-{actor}"))
        for _ in range(BELLS):
            if push.poll(1000, zmq.POLLOUT):
                part = dice.randbytes(dice.choice((0, 9, 5000)))
                push.send_multipart([part] * dice.choice((1, 3)))
        push.close(linger=200)
        throw_garbage(run.socket(f"bell-{actor}"), dice)
    context.term()


@contextmanager
def _another_client(broker: Broker) -> Iterator[list[str]]:
    """A client that sends and asks all the time. Collects what is wrong with how long that
    takes."""
    wrong: list[str] = []
    stopping = threading.Event()

    def work() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        consumer = dial(context, broker.consume)
        try:
            with Producer(broker.produce) as producer:
                producer.send("other", b"first").result(10)
                while not stopping.wait(0.05):
                    began = time.monotonic()
                    producer.send("other", b"x").result(10)
                    consumer.send(encode(messages.Describe(1, "other", -1)))
                    answered = consumer.poll(10_000)
                    took = time.monotonic() - began
                    if took > WAIT_S or not answered:
                        wrong.append(f"another client has waited {took:.1f} s")
                    if not answered:
                        break
                    consumer.recv_multipart()
        except PenstockError as error:
            wrong.append(f"another client is told: {error}")
        finally:
            consumer.close()
            context.term()

    thread = threading.Thread(target=work, name="another client")
    thread.start()
    try:
        yield wrong
    finally:
        stopping.set()
        thread.join()


def throw(endpoint: str, requests: Iterator[list[bytes]]) -> int:
    """Send requests to an endpoint and read whatever comes back. Returns how many were sent."""
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
    garbage = dice.randbytes(dice.choice((0, 1, 9, 10, 64, 5000)))
    if endpoint.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(endpoint.removeprefix("ipc://"))
    else:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
    with peer:
        try:
            peer.sendall(garbage)
        except (BrokenPipeError, ConnectionResetError):
            return  # the broker has closed the connection
