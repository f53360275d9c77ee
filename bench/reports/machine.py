"""What this machine can do at best: disk, memory, ZeroMQ. Measured next to the product.

The product's figures mean little without these, and on a shared machine these change from minute to
minute. Each takes a fraction of a second. This file knows nothing of the product.
"""

from __future__ import annotations

import mmap
import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import zmq

CHUNK = 1 << 20
FRAME_BYTES = 256 << 10


class Machine(msgspec.Struct, frozen=True):
    """The machine and its limits. MB are 10**6 bytes."""

    cpus: int
    processor: str
    memory_gib: float
    kernel: str
    python: str
    load_average: float
    write_new_file_mb_per_s: float
    write_existing_file_mb_per_s: float
    memcpy_to_map_mb_per_s: float
    zeromq_frames_per_s: float
    frame_bytes: int = FRAME_BYTES
    zeromq_round_trip_ms: float = 0.0


def measure_machine(place: Path, size: int = 64 << 20, frames: int = 1000) -> Machine:
    """Measure with a file of `size` bytes in `place`, which is removed again."""
    with tempfile.TemporaryDirectory(prefix="penstock-machine-", dir=place) as directory:
        file = Path(directory) / "file"
        new, existing = _write(file, size), _write(file, size)
        copied = _copy_into_map(file, size)
        # abstract names, because `place` may be longer than a socket's path may be
        socket = f"ipc://@penstock-machine-{os.getpid()}"
        rate = _frames(f"{socket}-s", frames)
        trip_ms = _round_trip_ms(f"{socket}-t", frames)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        os.cpu_count() or 0,
        _processor(),
        round(memory / 2**30, 1),
        platform.release(),
        platform.python_version(),
        round(os.getloadavg()[0], 1),
        round(new / 1e6, 1),
        round(existing / 1e6, 1),
        round(copied / 1e6, 1),
        round(rate, 1),
        zeromq_round_trip_ms=round(trip_ms, 3),
    )


def _write(file: Path, size: int) -> float:
    """Write a file from its beginning in chunks, then fdatasync. Returns bytes a second."""
    chunk = os.urandom(CHUNK)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        for at in range(0, size, CHUNK):
            os.pwrite(handle, chunk, at)
        os.fdatasync(handle)
        return size / (time.perf_counter() - began)
    finally:
        os.close(handle)


def _copy_into_map(file: Path, size: int) -> float:
    """Copy into a mapped file whose pages were touched; bytes a second, the best of three."""
    chunk = os.urandom(FRAME_BYTES)
    best = 0.0
    handle = os.open(file, os.O_RDWR)
    try:
        with mmap.mmap(handle, size) as mapped:
            for at in range(0, size, mmap.PAGESIZE):
                mapped[at] = 1
            for _ in range(3):
                began = time.perf_counter()
                for at in range(0, size, FRAME_BYTES):
                    mapped[at : at + FRAME_BYTES] = chunk
                best = max(best, size / (time.perf_counter() - began))
    finally:
        os.close(handle)
    return best


def _frames(endpoint: str, frames: int) -> float:
    """Frames a second from one thread to another through a ZeroMQ socket."""
    frame = os.urandom(FRAME_BYTES)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind(endpoint)
        push.connect(endpoint)
        sender = threading.Thread(
            target=lambda: [push.send(frame, copy=False) for _ in range(frames + 1)]
        )
        sender.start()
        pull.recv()
        began = time.perf_counter()
        for _ in range(frames):
            pull.recv(copy=False)
        rate = frames / (time.perf_counter() - began)
        sender.join()
    return rate


def _round_trip_ms(endpoint: str, trips: int) -> float:
    """The median time, in ms, from one thread to another through a ZeroMQ socket and back."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PAIR) as there, context.socket(zmq.PAIR) as here:
        there.bind(endpoint)
        here.connect(endpoint)
        echo = threading.Thread(target=lambda: [there.send(there.recv()) for _ in range(trips)])
        echo.start()
        took = []
        for _ in range(trips):
            began = time.perf_counter()
            here.send(b"")
            here.recv()
            took.append(time.perf_counter() - began)
        echo.join()
    return statistics.median(took) * 1000


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
