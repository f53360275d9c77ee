"""`penstock namesrv`: it serves, says where, and ends when it is told to."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "penstock.cli.main", "namesrv"]
WAIT_S = 60


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        host, _, port = said["name_server"].rpartition(":")
        assert said["ready"] and host == "127.0.0.1"
        with socket.create_connection((host, int(port)), WAIT_S) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(1) == b"", "no client of this protocol, so it is closed"
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, error
    assert b"closed a connection" in error
    assert not list(tmp_path.iterdir()), "no file before the first setting"


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=WAIT_S
        )
    assert done.returncode != 0 and "PORT_IN_USE" in done.stderr
    assert "penstock namesrv --host 127.0.0.1 --port 0" in done.stderr
    done = subprocess.run(
        [*COMMAND, "--host", "nowhere"], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 2 and "INVALID_ARGUMENT" in done.stderr
