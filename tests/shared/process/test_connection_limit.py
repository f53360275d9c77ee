"""An endpoint's connection limit: at it nobody comes in, those inside stay, and no core burns.

Limits count files by the lowest free descriptor, so each is in a process of its own: one that has
run other tests has holes among its descriptors, which are filled first.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from penstock.shared.files.mapped_file_queue import MappedFile
from penstock.shared.process.connection_limit import LOOK_MS, ConnectionLimit
from penstock.shared.process.listeners import listen_ipc, listen_tcp
from penstock.shared.wire.sockets import serve

WAIT_S = 5


def _lacks_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return True
    return False


KINDS = (
    "tcp",
    "tcp without privileges",
    pytest.param(
        "tcp6 without privileges",
        marks=pytest.mark.skipif(_lacks_ipv6(), reason="for want of IPv6"),
    ),
    "ipc",
)
# one more may have come before the look at the door
FEW = 5


class Endpoint:
    """A ROUTER with its limit, and those who connect."""

    def __init__(self, directory: Path, kind: str, most: int) -> None:
        host = "::1" if kind.startswith("tcp6") else "127.0.0.1"
        listener = listen_ipc(directory / "knock.ipc") if kind == "ipc" else listen_tcp(host, 0)
        self.listener = listener
        self.said: list[str] = []
        listening = {listener.endpoint: listener.socket.fileno()}
        # the descriptors that are looked at: none while no connection is taken
        self.heard: list[int] = []
        self.door = ConnectionLimit(listening, most, self.said.append, self._listen)
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = serve(self.context, (listener.endpoint,), 1 << 20, listening, 4)
        self.knocking: list[socket.socket] = []
        self.now_ms = 0

    def _listen(self, handle: int, wanted: bool) -> None:
        self.heard = [handle] if wanted else []

    def connect(self) -> bool:
        """Connect; whether a greeting comes."""
        family = self.listener.socket.family
        address = self.listener.socket.getsockname()
        if family == socket.AF_UNIX:
            address = self.listener.endpoint.removeprefix("ipc://")
        peer = socket.socket(family)
        peer.settimeout(0.3)
        try:
            peer.connect(address)
            peer.settimeout(WAIT_S)
            greeted = bool(peer.recv(1))
        except OSError:
            peer.close()
            return False
        self.knocking.append(peer)
        return greeted

    def tend(self) -> None:
        self.now_ms += LOOK_MS
        self.door.tend(self.now_ms)

    def close(self) -> None:
        for each in self.knocking:
            each.close()
        self.socket.close()
        self.context.term()
        self.listener.socket.close()


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., None]:
    """Run a function of this file in a process of its own. What it asserts, it says there."""

    def run(function: Callable[[str], None], argument: str) -> None:
        command = [sys.executable, __file__, function.__name__, argument]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    return run


def _fill_and_leave(kind: str) -> None:
    it = Endpoint(Path.cwd(), kind, 20)
    inside = 0
    while it.connect():
        it.tend()
        inside += 1
        # sockets of this process are files too, so a half of the limit are theirs
        assert inside <= 20 // 2 + FEW, inside
    assert inside >= 20 // 2 - FEW and len(it.said) == 1, (inside, it.said)
    assert not it.connect() and not it.heard
    for peer in it.knocking[: FEW + 1]:
        peer.close()
    deadline = time.monotonic() + WAIT_S
    while not it.heard:
        assert time.monotonic() < deadline
        it.tend()
    assert it.connect()
    it.close()


@pytest.mark.parametrize("kind", KINDS)
def test_beyond_the_limit_nobody_is_let_in_until_somebody_leaves(
    alone: Callable[..., None], kind: str
) -> None:
    alone(_fill_and_leave, kind)


def _succeed(kind: str) -> None:
    it = Endpoint(Path.cwd(), kind, 1)
    while it.heard:
        it.connect()
        it.tend()
    assert not it.connect()
    listening = {it.listener.endpoint: it.listener.socket.fileno()}
    ConnectionLimit(listening, 100, it.said.append, it._listen)
    assert it.connect()
    it.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_successor_opens_what_its_predecessor_had_closed(
    alone: Callable[..., None], kind: str
) -> None:
    alone(_succeed, kind)


def _open_when_full(kind: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    it = Endpoint(Path.cwd(), kind, 10_000)
    few = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert few < 100
    segment = Path("segment")
    segment.write_bytes(bytes(4096))
    for left in (True, False):
        taken = _take_all_files()
        file = MappedFile(segment, 0, 4096, writable=False)  # before any look at the door
        file.close()
        if left:
            _close(taken)
        it.tend()
        assert bool(it.heard) == left, "it is closed where those that came are still there"
        if not left:
            assert not it.connect()
            _close(taken)
            it.tend()
            assert it.heard
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few
    it.close()


def _take_all_files() -> list[int]:
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            return taken


def _close(handles: list[int]) -> None:
    for each in handles:
        os.close(each)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_segment_is_opened_at_the_moment_when_connections_have_taken_the_last_file(
    alone: Callable[..., None], kind: str
) -> None:
    alone(_open_when_full, kind)


def _storm(kind: str) -> None:
    """In a process that may have few files open: all at once. Prints the address, and in the end
    whether the door is closed, how many files are free, and seconds of CPU."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    it = Endpoint(Path.cwd(), kind, 10_000)
    print(it.listener.endpoint, flush=True)
    deadline = time.monotonic() + 60
    while it.heard and time.monotonic() < deadline:
        zmq.select(it.heard, [], [], 0.1)
        it.tend()
    closed = not it.heard
    time.sleep(0.5)  # what waited has come in
    began = time.process_time()
    for _ in range(10):
        time.sleep(0.1)
        it.tend()
    burned = time.process_time() - began
    free = 100 - len(os.listdir("/proc/self/fd"))
    print(int(closed), free, burned, flush=True)
    it.close()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_storm_leaves_files_for_the_store_and_an_idle_core(kind: str) -> None:
    command = [sys.executable, __file__, _storm.__name__, kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    host, port = process.stdout.readline().strip().removeprefix("tcp://").split(":")
    peers = []
    for _ in range(300):
        peers.append(socket.socket())
        peers[-1].setblocking(False)
        peers[-1].connect_ex((host, int(port)))
        time.sleep(0.01)  # as fast as the kernel's queue takes them: others come a second later
    last, _ = process.communicate(timeout=120)
    for each in peers:
        each.close()
    was_closed, free, burned = (float(word) for word in last.split())
    assert was_closed and free >= 10 and burned < 0.3, last


def _give_up_privileges() -> None:
    """This process may do what an ordinary user's may."""
    version_3 = 0x20080522  # of the kernel's structures
    assert ctypes.CDLL(None).capset(struct.pack("Ii", version_3, 0), bytes(24)) == 0


if __name__ == "__main__":
    if "without" in sys.argv[2]:
        _give_up_privileges()
    scenes = _fill_and_leave, _succeed, _open_when_full, _storm
    {each.__name__: each for each in scenes}[sys.argv[1]](sys.argv[2])
