"""A peer's server process: started with a log of its own, awaited, and stopped by its pid."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from penstock.shared.errors import StoreUnavailable

HOST = "127.0.0.1"
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30


@contextmanager
def serving(
    command: Sequence[str], place: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The process, once its port takes connections; yields its pid. Output goes to PLACE/said.txt.

    Raises StoreUnavailable with the end of that file if the process does not come up.
    """
    place.mkdir(parents=True, exist_ok=True)
    with (place / "said.txt").open("ab") as said:
        process = subprocess.Popen(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **(environment or {})},
        )
    try:
        _await_port(process, port, place / "said.txt")
        yield process.pid
    finally:
        stop(process)


def _await_port(process: subprocess.Popen[bytes], port: int, said: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise StoreUnavailable(
        f"no server took connections on port {port} within {START_TIMEOUT_S} s",
        f"{process.args!r} ended with {process.poll()}",
        said.read_text(errors="replace")[-2000:],
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants: in good order, or by force after STOP_TIMEOUT_S."""
    family = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family, 5)
    for each in alive:
        each.kill()
    psutil.wait_procs(alive, 5)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
