"""What comes to an endpoint: requests one by one, and nothing of those without an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from penstock.shared.loops import active
from penstock.shared.loops.pure import serving
from penstock.shared.process.inlet import MOST_PARTS, Inlet
from penstock.shared.wire.sockets import dial, serve

WAIT_MS = 15_000
MANY = 250_000


class Endpoint:
    """A serving socket with two clients."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.serving = serve(self.context, (endpoint,), 1 << 16, {}, 4)
        address = self.serving.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.evil, self.honest = dial(self.context, address), dial(self.context, address)
        self.beats = self.closed = 0
        self.inlet = Inlet(self.serving, self._beat, self._close, lambda: 0)

    def _beat(self) -> None:
        self.beats += 1

    def _close(self, what: str) -> None:
        self.closed += 1

    def next(self, copy: bool = True) -> list[Any]:
        assert self.serving.poll(WAIT_MS)
        found = self.inlet.receive(copy)
        assert found is not None
        return found

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest, short_path: Path) -> Iterator[Endpoint]:
    made = Endpoint("tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{short_path}/serve")
    yield made
    made.close()


@pytest.mark.parametrize("copy", [True, False])
def test_a_message_of_too_many_parts_is_dropped_and_its_connection_closed(
    endpoint: Endpoint, copy: bool
) -> None:
    monitor = endpoint.evil.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    endpoint.evil.send_multipart([b""] * MANY)
    assert endpoint.next(copy) == []
    assert endpoint.closed == 1 and endpoint.beats == 3, "it beats while it drops"
    assert monitor.poll(WAIT_MS), "it stays connected"
    endpoint.evil.disable_monitor()
    monitor.close()
    endpoint.honest.send_multipart([b"header", b"records"])
    assert [bytes(part) for part in endpoint.next(copy)[1:]] == [b"header", b"records"]
    assert endpoint.inlet.receive() is None and endpoint.closed == 1


def test_a_few_parts_too_many_are_for_the_actor_to_refuse(endpoint: Endpoint) -> None:
    endpoint.evil.send_multipart([b"x"] * (MOST_PARTS - 1))
    assert len(endpoint.next()) == MOST_PARTS
    endpoint.evil.send_multipart([b"x"] * MOST_PARTS)
    assert endpoint.next() == [] and endpoint.closed == 1


@pytest.mark.parametrize("asked", [serving.has_message, active.has_message])
def test_a_socket_says_whether_a_message_has_come(
    endpoint: Endpoint, asked: Callable[[Any], bool]
) -> None:
    assert not asked(endpoint.serving)
    endpoint.honest.send_multipart([b"header", b"records"])
    assert endpoint.serving.poll(WAIT_MS) and asked(endpoint.serving)
    assert len(endpoint.next()) == 3 and not asked(endpoint.serving)
    closed = endpoint.serving.context.socket(zmq.PULL)
    closed.close()
    with pytest.raises(zmq.ZMQError):
        asked(closed)


@pytest.mark.parametrize("drop", [serving.drop_parts, active.drop_parts])
def test_parts_are_dropped_up_to_a_number_and_no_further_than_the_message(
    endpoint: Endpoint, drop: Callable[[Any, int], int]
) -> None:
    endpoint.evil.send_multipart([b"1", b"22", b"x" * 5000, b"", b"5"])
    endpoint.evil.send_multipart([b"next"])
    assert endpoint.serving.poll(WAIT_MS)
    endpoint.serving.recv()
    assert drop(endpoint.serving, 2) == 2
    assert endpoint.serving.recv() == b"x" * 5000
    assert drop(endpoint.serving, 100) == 2 and drop(endpoint.serving, 100) == 0
    assert endpoint.next()[1:] == [b"next"]
