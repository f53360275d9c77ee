"""What clients send while it waits: it has room, or no client is read from."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import zmq

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.sends import MOST_WAITING_BYTES, Sends
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.remoting.fields import SendFields
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import NoPermission
from penstock.shared.memory.positions import Positions
from penstock.shared.process.actor import Stage
from penstock.shared.wire.messages import Route, decode_produce_request, encode, refusal

HANG_S = 60
FIELDS = SendFields("PG", "new", "TBW102", 4, 0, 0, 0, 0)


def test_what_waits_for_its_topic_takes_room(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """The writer may be away, and then a topic is not made for some time."""
    config, context = make_config(), zmq.Context[Any]()
    endpoints = SimpleNamespace(produce_ipc=f"ipc://{tmp_path}/writer")
    writer = context.socket(zmq.ROUTER)
    writer.bind(endpoints.produce_ipc)
    stage = SimpleNamespace(
        config=config, clock=ManualClock(), context=context, generation=1,
        run=SimpleNamespace(run_id="r", endpoints=endpoints),
    )  # fmt: skip
    answered: list[Reply] = []
    topics = TopicTable(config, cast(Positions, {"topic_changes": 0}))
    serving = Serving(lambda call, reply: answered.append(reply), lambda call, error: None)
    sends = Sends(
        cast(Stage, stage), topics, serving, lambda call, reply: answered.append(reply),
        lambda connection, frame: None,
    )  # fmt: skip
    count = MOST_WAITING_BYTES >> 20
    left, right = socket.socketpair()
    with left, right:
        body = bytes(1 << 20)
        call = Call(Connection(left, ("127.0.0.1", 1), 0), Command(10, 1, body=body), 0)
        for _ in range(count):
            assert sends.has_room
            sends.take(call, FIELDS, False)
        assert not sends.has_room
    until = time.monotonic() + HANG_S
    while not writer.poll(10):
        assert time.monotonic() < until
        sends.work(0)  # the connection is being made
    peer, header = writer.recv_multipart()
    asked = decode_produce_request(header)
    assert isinstance(asked, Route)
    writer.send_multipart((peer, encode(refusal(NoPermission("no topic", "new"), asked.request))))
    while not sends.has_room:
        assert time.monotonic() < until
        sends.work(0)
    assert [each.code for each in answered] == [Response.NO_PERMISSION] * count
    sends.close()
    writer.close(linger=0)
    context.term()
