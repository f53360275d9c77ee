"""Too many clients: consumers that stop reading in the middle of answers; connections that say
nothing, that come and go, or for which the broker does not have enough files.

Existing clients are served as before. One too many waits outside, and is served when there is room.
Memory is bounded, and no core burns.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.machine.usage import cpu_seconds, own_memory_bytes
from penstock.chaos.scene import Scene, await_true, scene
from penstock.client.sending.producer import Producer
from penstock.shared.errors import ConnectError, PenstockError
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import GREETING_TIMEOUT_MS, dial
from penstock.shared.wire.unread_answers import MAX_UNREAD_BYTES

FILES = (192, 256, 512)
CHURN = 300
# time between two connections: about as fast as the kernel's queue takes them
CONNECT_S = 0.002
STUCK, PULLS = 20, 10
LARGE_TOPIC, LARGE_BYTES, LARGE_COUNT = "large", 60_000, 40
SEGMENT_BYTES = 16 << 20
# beyond the answers that may wait: queues of sockets, and what the allocator keeps
SPARE_BYTES = 48 << 20
OUTSIDE_TIMEOUT_MS = 700
OUTSIDE_TRIES = 5
# more than the clients of a round that can have gone
CROWD_OUT = 64
IDLE_S = 0.4
IDLE_CPU_SHARE = 0.3
# the beginning of a greeting
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03"


def crowd_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        files = dice.choice(FILES)
        # an answer ends with its segment, and the answers that nobody reads should be long
        settings = any_settings(dice) | {"mapped_file_size_commit_log_bytes": SEGMENT_BYTES}
        limit = ("prlimit", f"--nofile={files}:{files}")
        with scene(arena, room, settings, wrap=limit, rate=300) as it:
            _fill(it.broker)
            before = own_memory_bytes(it.broker.actors()["reader"])
            with stuck_consumers(it.broker.consume):
                churn(it, dice)
                wrong = _check_memory(it.broker, before)
                it.probe("stuck consumers", time.monotonic())
            arena.report.add_fault("stuck consumer", STUCK)
            began = time.monotonic()
            with crowding(it.broker, files, dice) as peers:
                # connections for which the kernel had no room try again after a second
                await_true(lambda: _is_full(it.broker), "the broker says that it is full")
                it.probe("more connections than files", time.monotonic())
                it.settle()
                wrong += _check_outside(it.broker, peers, began) + _check_idle(it.broker)
            arena.report.add_fault("connection too many", files)
            wrong += _check_room(it.broker)
            restarted = [a["name"] for a in it.broker.status()["actors"] if a["restarts"]]
            wrong += [f"{name} was restarted" for name in restarted]
            it.finish(replay, wrong)


def _fill(broker: Broker) -> None:
    """Messages to read, alternating between queues: adjoining records need no memory in answers."""
    with Producer(broker.produce) as producer:
        producer.create_topic(LARGE_TOPIC, 2)
        for _ in range(LARGE_COUNT):
            for queue in (0, 1):
                producer.send(LARGE_TOPIC, bytes(LARGE_BYTES), queue=queue)
                producer.flush(30)
    broker.await_dispatched()


@contextmanager
def stuck_consumers(endpoint: str, topic: str = LARGE_TOPIC) -> Iterator[None]:
    """Consumers that ask for everything again and again, and do not read it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers = []
    for _ in range(STUCK):
        peer = context.socket(zmq.DEALER)
        peer.linger, peer.rcvhwm, peer.rcvbuf = 0, 1, 4096
        peer.connect(endpoint)
        for number in range(PULLS):
            peer.send(encode(messages.Pull(number + 1, topic, {0: 0}, 9, 8 << 20, 0)))
        peers.append(peer)
    try:
        yield
    finally:
        for peer in peers:
            peer.close()
        context.term()


def churn(it: Scene, dice: random.Random) -> None:
    """Connections that come, say little or nothing, and go."""
    for _ in range(CHURN):
        with _connection(dice.choice((it.broker.produce, it.broker.consume))) as peer:
            peer.send(_GREETING[: dice.randrange(len(_GREETING) + 1)])
    it.arena.report.add_fault("connection that comes and goes", CHURN)


@contextmanager
def crowding(broker: Broker, count: int, dice: random.Random) -> Iterator[list[socket.socket]]:
    """`count` connections at each endpoint, at once, which stay and say nothing."""
    peers: list[socket.socket] = []
    try:
        for _ in range(count):
            for endpoint in (broker.produce, broker.consume):
                peers.append(socket.socket())
                peers[-1].setblocking(False)
                peers[-1].connect_ex(_address(endpoint))
            time.sleep(CONNECT_S)
        yield peers
    finally:
        for peer in peers:
            peer.close()


def _is_full(broker: Broker) -> bool:
    said = broker.output()
    return all(f"{name}: " in said for name in ("penstock reader", "penstock writer"))


def _check_memory(broker: Broker, before: int) -> list[str]:
    """Check that the reader has not handed out more than it may."""
    grown = own_memory_bytes(broker.actors()["reader"]) - before
    if grown > MAX_UNREAD_BYTES + SPARE_BYTES:
        return [f"the reader has grown by {grown >> 20} MiB over consumers that do not read"]
    return []


def _crowd_out(broker: Broker, peers: list[socket.socket]) -> None:
    """Take the places of this round's clients that have gone, until no place is free.

    Connections of the crowd that are outside try again after one second, then two, then four. Until
    then another client may rightly have the place.
    """
    for _ in range(CROWD_OUT):
        peers.append(socket.socket())
        peers[-1].settimeout(OUTSIDE_TIMEOUT_MS / 1000)
        try:
            peers[-1].connect(_address(broker.produce))
            if not peers[-1].recv(1):
                return
        except TimeoutError:
            return  # it was not let in, or not greeted


def _check_outside(broker: Broker, peers: list[socket.socket], began: float) -> list[str]:
    """Check clients outside. If one is served it got a place that was just free: try again."""
    wrong: list[str] = []
    for _ in range(OUTSIDE_TRIES):
        _crowd_out(broker, peers)
        if not (wrong := _try_outside(broker, began)):
            break
    return wrong


def _try_outside(broker: Broker, began: float) -> list[str]:
    try:
        with Producer(broker.produce, timeout_ms=OUTSIDE_TIMEOUT_MS) as producer:
            producer.send(LARGE_TOPIC, b"outside", queue=0).result(10)
    except ConnectError:
        return []
    except PenstockError as error:
        return [f"one connection too many is told: {error}"]
    if time.monotonic() - began > GREETING_TIMEOUT_MS / 1000:
        return []  # silent connections have been closed by now
    return ["there were more connections than files, and another one was served"]


def _check_idle(broker: Broker) -> list[str]:
    pids = broker.processes()
    before = cpu_seconds(pids)
    time.sleep(IDLE_S)
    burned = cpu_seconds(pids) - before
    if burned > IDLE_S * IDLE_CPU_SHARE:
        return [f"with connections outside an idle broker burns {burned:.2f} s in {IDLE_S} s"]
    return []


def _check_room(broker: Broker) -> list[str]:
    """Check that a new client is served when the crowd has gone."""
    with Producer(broker.produce) as producer:
        producer.send(LARGE_TOPIC, b"inside", queue=0).result(10)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = dial(context, broker.consume)
    peer.send(encode(messages.Describe(1, LARGE_TOPIC, -1)))
    try:
        await_true(lambda: bool(peer.poll(0)), "a new consumer is served")
    except PenstockError as error:
        return [str(error)]
    finally:
        peer.close()
        context.term()
    return []


@contextmanager
def _connection(endpoint: str) -> Iterator[socket.socket]:
    with socket.create_connection(_address(endpoint), timeout=10) as peer:
        yield peer


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)
