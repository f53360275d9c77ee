"""A serving socket: no answer is dropped that a client is waiting for."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import zmq

from penstock.shared.bus import dial, receive, serve

ASKED = 5000
WAIT_S = 20


def test_a_client_that_reads_its_answers_gets_every_one_however_fast_it_asks(
    tmp_path: Path,
) -> None:
    endpoint = f"ipc://{tmp_path}/serve"
    context: zmq.Context[Any] = zmq.Context()
    serving = serve(context, (endpoint,), 1 << 16, {}, 4)
    answered: list[bytes] = []

    def ask() -> None:
        peer = dial(context, endpoint)
        # two at a time, so that the server never finds nothing to receive
        peer.send(b"0")
        for number in range(1, ASKED + 1):
            peer.send(str(number).encode())
            if not peer.poll(1000):
                break
            answered.append(peer.recv())
        peer.close(linger=0)

    client = threading.Thread(target=ask)
    client.start()
    deadline = time.monotonic() + WAIT_S
    while client.is_alive() and time.monotonic() < deadline:
        for _ in range(64):
            parts = receive(serving)
            if parts is None:
                break
            serving.send_multipart(parts)
    client.join(WAIT_S)
    serving.close()
    context.term()
    assert answered == [str(number).encode() for number in range(ASKED)]
