"""What a sleep tells an actor of its sources: it looks at those that had traffic, and no others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from penstock.shared.process.actor import TAKE_S

WAIT_MS = 60_000


def test_only_what_had_traffic_is_heard_after_a_sleep(pipeline: Callable[..., Any]) -> None:
    stage = pipeline().stage("gateway")
    one, other = socket.socketpair(), socket.socketpair()
    for pair in (one, other):
        stage.listen(pair[0].fileno())
    assert stage.heard(one[0].fileno()) and stage.heard(other[0].fileno()), "nothing is known yet"
    one[1].send(b"x")
    stage.sleep(WAIT_MS)
    assert stage.heard(one[0].fileno()) and not stage.heard(other[0].fileno())
    stage.ready = None
    stage.sleep(0)
    assert stage.heard(one[0].fileno()), "it has not been looked at"
    stage.ready = None  # the actor goes on without a sleep
    assert stage.heard(other[0].fileno()), "it may have come since"
    for each in (*one, *other):
        each.close()


def test_what_comes_during_a_pause_ends_no_sleep_before_it_is_over(
    pipeline: Callable[..., Any],
) -> None:
    stage = pipeline().stage("gateway")
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (hearing, sending) in enumerate(pairs):
        stage.listen(hearing.fileno())
        threading.Timer(0.1 * number, sending.send, (b"x",)).start()
    stage.pause_ms = 2000
    stage.sleep(WAIT_MS)
    assert all(stage.heard(hearing.fileno()) for hearing, _ in pairs)
    began = time.monotonic()
    stage.sleep(0)
    assert time.monotonic() - began < stage.pause_ms / 1000, "an actor that must not sleep"
    for pair in pairs:
        for each in pair:
            each.close()


def test_all_is_looked_at_where_zeromq_has_a_message_of_which_its_descriptor_tells_no_more(
    pipeline: Callable[..., Any],
) -> None:
    stage = pipeline().stage("gateway")
    hearing, silent, sending = (
        stage.context.socket(kind) for kind in (zmq.PULL, zmq.PULL, zmq.PUSH)
    )
    for number, each in enumerate((hearing, silent)):
        each.bind(f"inproc://hearing-{number}")
        stage.listen(each)
    stage.sleep(0)
    sending.connect("inproc://hearing-0")
    sending.send(b"x")
    assert hearing.poll(WAIT_MS), "ZeroMQ has looked, as it does when an actor sends"
    stage.ready = None
    assert stage.sleep(WAIT_MS) == [hearing]
    assert stage.heard(hearing) and stage.heard(silent)
    assert hearing.recv() == b"x"
    for each in (hearing, silent, sending):
        stage.listen(each, False)
        each.close(linger=0)


def test_a_connection_that_zeromq_has_not_taken_yet_leaves_it_the_processor(
    pipeline: Callable[..., Any],
) -> None:
    """ZeroMQ's thread may wait for a processor, and this actor must not be what it waits for."""
    stage = pipeline().stage("writer")
    limit = stage.connection_limit(100)
    socket_of_clients = stage.context.socket(zmq.ROUTER)  # nobody has it take connections
    stage.inlet(socket_of_clients, "closed_producers")
    endpoint = next(at for at in stage.listening if at.startswith("tcp://"))
    stage.bus.drain()  # what ZeroMQ has to say at first
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_MS / 1000):
        began = time.monotonic()
        for _ in range(100):
            assert stage.sleep(WAIT_MS) == [stage.listening[endpoint]]
            limit.tend(stage.clock.monotonic_ms())
        assert time.monotonic() - began >= 100 * TAKE_S
    socket_of_clients.close()
