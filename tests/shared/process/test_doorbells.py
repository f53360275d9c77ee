"""A serving socket: no answer is dropped that a client is waiting for."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from penstock.shared.process.inlet import Inlet
from penstock.shared.wire.sockets import serve

ASKED = 5000
WAIT_S = 60
# a client in a process of its own: beside the server it would wait for the interpreter's lock
ASK = """
import sys, zmq
from penstock.shared.wire.sockets import dial

endpoint, asked = sys.argv[1], int(sys.argv[2])
peer = dial(zmq.Context(), endpoint)
# two at a time, so that the server never finds nothing to receive
peer.send(b"0")
for number in range(asked):
    peer.send(b"%d" % (number + 1))
    assert peer.poll(60_000), f"no answer to {number}"
    assert peer.recv() == b"%d" % number
"""


def test_a_client_that_reads_its_answers_gets_every_one_however_fast_it_asks(
    short_path: Path,
) -> None:
    endpoint = f"ipc://{short_path}/serve"
    context: zmq.Context[Any] = zmq.Context()
    serving = serve(context, (endpoint,), 1 << 16, {}, 4)
    inlet = Inlet(serving, lambda: None, lambda what: None, lambda: 0)
    asking = subprocess.Popen([sys.executable, "-c", ASK, endpoint, str(ASKED)])
    deadline = time.monotonic() + WAIT_S
    while asking.poll() is None and time.monotonic() < deadline:
        for _ in range(64):
            parts = inlet.receive()
            if parts is None:
                break
            serving.send_multipart(parts)
    asking.kill()
    serving.close()
    context.term()
    assert asking.wait() == 0


FIRST_NAME = """
import zmq
from penstock.shared.wire.sockets import dial, serve

context = zmq.Context()
serving = serve(context, ("tcp://127.0.0.1:*",), 1 << 16, {}, 4)
dial(context, serving.get(zmq.LAST_ENDPOINT).decode().rstrip(chr(0))).send(b"x")
print(serving.recv().hex())
"""


def test_nobody_knows_the_names_of_the_connections_to_come() -> None:
    """ZeroMQ aborts when it comes to a name that a client has announced."""
    names = {
        subprocess.run([sys.executable, "-c", FIRST_NAME], capture_output=True, check=True).stdout
        for _ in range(3)
    }
    assert len(names) == 3
