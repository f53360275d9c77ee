"""Clients that have gone in the middle of something, and what that does to whoever serves them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# ZeroMQ takes 64 requests ahead and leaves the rest to the kernel. Then the client goes, and the
# server is held up for longer than ZeroMQ's heartbeat took to come round. In a process of its own,
# as what ZeroMQ does then is an abort.
HELD_UP = """
import sys, time, zmq
from penstock.shared.wire.sockets import REQUESTS_WAITING, serve

socket = serve(zmq.Context(), (sys.argv[1],), 1 << 20, {}, 64)
context = zmq.Context()
client = context.socket(zmq.DEALER)
client.sndhwm = 0
client.connect(sys.argv[1])
for _ in range(100 * REQUESTS_WAITING):
    client.send(bytes(100))
assert socket.poll(30_000)
socket.recv_multipart()
time.sleep(0.5)
client.close(linger=0)
context.term()
time.sleep(6)
found = 0
while socket.poll(500):
    socket.recv_multipart()
    found += 1
print("alive" if found >= REQUESTS_WAITING - 1 else found)
"""


def test_a_client_that_has_sent_more_than_is_taken_and_goes_ends_nobody(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD_UP, f"ipc://{tmp_path}/s"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
