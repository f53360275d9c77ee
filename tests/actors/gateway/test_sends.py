"""What clients send while it waits: it has room, or no client is read from."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.sends import MOST_MAKING_MS, MOST_WAITING_BYTES, Sends
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


class Bench:
    """Sends, with a writer that answers when the test says so."""

    def __init__(self, config: Config, tmp_path: Path) -> None:
        self._context = zmq.Context[Any]()
        endpoints = SimpleNamespace(produce_ipc=f"ipc://{tmp_path}/writer")
        self._writer = self._context.socket(zmq.ROUTER)
        self._writer.bind(endpoints.produce_ipc)
        stage = SimpleNamespace(
            config=config, clock=ManualClock(), context=self._context, generation=1,
            run=SimpleNamespace(run_id="r", endpoints=endpoints, socket=lambda name: f"{tmp_path}"),
            heard=lambda source: self.is_heard, listen=lambda source, wanted=True, room=False: None,
        )  # fmt: skip
        # whether there may be something on the sockets
        self.is_heard = True
        self.answered: list[Reply] = []
        topics = TopicTable(config, cast(Positions, {"topic_changes": 0}))
        serving = Serving(lambda call, reply: self.answered.append(reply), lambda call, error: None)
        self.sends = Sends(
            cast(Stage, stage), topics, serving, lambda call, reply: self.answered.append(reply),
            lambda connection, frame: None,
        )  # fmt: skip
        self._pair = socket.socketpair()
        self._by = Connection(self._pair[0], ("127.0.0.1", 1), 0)

    def take(self, size: int, now_ms: int = 0) -> None:
        call = Call(self._by, Command(10, 1, body=bytes(size)), now_ms)
        self.sends.take(call, FIELDS, False)

    def refuse_the_topic(self, now_ms: int = 0, *, is_due: bool = True) -> None:
        """What the writer says of it, and everybody who waits for it hears."""
        until = time.monotonic() + HANG_S
        asked: object = None
        # where the connection is made in the middle of a turn, the frames' session is asked first
        while not isinstance(asked, Route):
            while not self._writer.poll(10):
                assert time.monotonic() < until
                self.sends.work(now_ms)  # the connection is being made
            peer, header = self._writer.recv_multipart()
            asked = decode_produce_request(header)
        no = refusal(NoPermission("no topic", "new"), asked.request)
        self._writer.send_multipart((peer, encode(no)))
        while self.sends._making:
            assert time.monotonic() < until
            self.sends.work(now_ms, is_due)

    def close(self) -> None:
        self.sends.close()
        self._writer.close(linger=0)
        self._context.term()
        for each in self._pair:
            each.close()


@pytest.fixture
def bench(make_config: Callable[..., Config], tmp_path: Path) -> Iterator[Bench]:
    found = Bench(make_config(), tmp_path)
    yield found
    found.close()


def test_what_waits_for_its_topic_takes_room(bench: Bench) -> None:
    """The writer may be away, and then a topic is not made for some time."""
    count = MOST_WAITING_BYTES >> 20
    for _ in range(count):
        assert bench.sends.has_room
        bench.take(1 << 20)
    assert not bench.sends.has_room
    bench.refuse_the_topic()
    assert bench.sends.has_room
    assert [each.code for each in bench.answered] == [Response.NO_PERMISSION] * count


@pytest.mark.parametrize(("is_due", "is_heard"), [(True, False), (False, True)])
def test_an_answer_of_the_writer_is_taken_when_it_has_come_and_at_each_tick(
    bench: Bench, is_due: bool, is_heard: bool
) -> None:
    bench.take(1)
    bench.is_heard = is_heard
    bench.refuse_the_topic(is_due=is_due)
    assert [each.code for each in bench.answered] == [Response.NO_PERMISSION]


def test_what_waits_for_its_topic_is_refused_before_its_client_gives_it_up(bench: Bench) -> None:
    """Else all clients would wait with it, for what nobody waits for any more."""
    for _ in range(MOST_WAITING_BYTES >> 20):
        bench.take(1 << 20)
    bench.sends.work(MOST_MAKING_MS - 1)
    assert not bench.sends.has_room and not bench.answered
    bench.take(1, MOST_MAKING_MS)
    bench.sends.work(2 * MOST_MAKING_MS - 1)
    assert bench.sends.has_room
    assert {each.code for each in bench.answered} == {Response.SYSTEM_BUSY}
    count = len(bench.answered)
    assert count == MOST_WAITING_BYTES >> 20
    bench.refuse_the_topic(2 * MOST_MAKING_MS - 1)
    assert [each.code for each in bench.answered[count:]] == [Response.NO_PERMISSION]
