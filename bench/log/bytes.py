"""How often is each byte of a message copied, checksummed and written on its way?

The loops' work on each byte is counted where it is done (HANDLED). The kernel's work for the
broker's processes is measured: it counts what each has read and written by calls, and the pages
that each has dirtied, which go to the disk. Mapped memory is in no count of calls.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.log.produce import produce
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Shape
from penstock.shared.errors import StoreUnavailable
from penstock.shared.files.durable import WRITE_BYTES

SETTLED_TIMEOUT_S = 60
# As in the committer and the flusher: one copies, by calls of WRITE_BYTES, the other syncs what has
# accumulated. With LARGE_BYTES a call shows the cost of pieces of memory of that size.
LARGE_BYTES, SYNC_BYTES = 4 << 20, 16 << 20
# Calls of this size begin and end within pages, and the page cache keeps them in small pieces.
UNEVEN_BYTES = 60_000
# The size of a read.
READ_BYTES = 124 << 10


class Step(NamedTuple):
    """What one place does to each byte of a body. `where` is a name that a test looks up."""

    who: str
    does: str
    where: str
    copied: int
    checksummed: int
    written: int


HANDLED = (
    Step("producer", "makes the record, in its ring or in memory for a frame",
         "shared.loops.pure.encode.RecordMaker", 1, 1, 0),
    Step("writer", "copies a frame out of the ring, or the kernel one through a socket, twice",
         "actors.writer.payloads.producer_rings.ProducerRings.read", 1, 0, 0),
    Step("writer", "checks the frame", "shared.loops.pure.frame.check_frame", 0, 1, 0),
    Step("writer", "copies it into the pool, stamped",
         "shared.loops.pure.frame.put_stamped", 1, 0, 0),
    Step("committer", "copies it into the page cache of the segment",
         "actors.committer.Committer", 1, 0, 0),
    Step("flusher", "has the kernel write it out", "actors.flusher.actor.Flusher", 0, 0, 1),
    Step("reput", "walks the heads, not the bodies", "shared.loops.pure.walk.dispatch", 0, 0, 0),
    Step("reader", "sends ranges of the page cache; the kernel copies them twice",
         "actors.reader.actor.Reader", 2, 0, 0),
    Step("consumer", "reads ranges of the files instead, where it may",
         "client.core.log_files.LogFiles.read", 1, 0, 0),
    Step("consumer", "checks a body, and copies it out, when it is looked at",
         "shared.loops.pure.message.Message", 1, 1, 0),
)  # fmt: skip


class Counts(NamedTuple):
    """Bytes of one process, as the kernel counts them."""

    read: int
    written: int
    dirtied: int


class Row(msgspec.Struct, frozen=True):
    """One process, for each byte of the bodies that were sent."""

    process: str
    read_by_calls: float
    written_by_calls: float
    to_the_disk: float


class Bytes(msgspec.Struct, frozen=True):
    """One load."""

    ack: str
    size: int
    messages: int
    rows: list[Row]


class Segments(msgspec.Struct, frozen=True):
    """MB/s of the first write of an allocated file, by large calls, by uneven ones and by the
    committer's; of a second write to the same place; and of reading what these have left in the
    page cache."""

    gib: float
    first_large_mb_per_s: float
    first_uneven_mb_per_s: float
    first_mb_per_s: float
    again_mb_per_s: float
    read_uneven_mb_per_s: float
    read_mb_per_s: float
    load_1m: float


def bench_bytes(shape: Shape, where: Where, machine: Machine, moved: Moved) -> Bytes:
    """Send at full rate, wait until all is on disk, and return what each process moved for it."""
    with opened(where, shape.ack) as target:
        before = _moved(target)
        result = produce(target, shape, machine, moved, "bytes")
        _await_settled(target)
        after = _moved(target)
    body_bytes = result.stored * shape.size
    rows = []
    for name, ended in after.items():
        began = before.get(name, Counts(0, 0, 0))
        parts = [round((b - a) / body_bytes, 3) for a, b in zip(began, ended, strict=True)]
        rows.append(Row(name, *parts))
    return Bytes(shape.ack, shape.size, result.stored, rows)


def _moved(target: Target) -> dict[str, Counts]:
    found = {}
    for name, pid in target.pids().items():
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        count = {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}
        found[name] = Counts(count["rchar"], count["wchar"], count["write_bytes"])
    return found


def _await_settled(target: Target) -> None:
    """Wait until the log is on disk; queues and index are dirty by then, and that counts."""
    positions = target.positions
    if positions is None:
        raise StoreUnavailable(
            "the processes of a broker elsewhere cannot be looked at", None, "name its store"
        )
    target.await_caught_up()
    until = time.monotonic() + SETTLED_TIMEOUT_S
    while positions["flushed"] < positions["wrote"]:
        if time.monotonic() > until:
            raise StoreUnavailable("the log is not on the disk", f"{SETTLED_TIMEOUT_S} s")
        time.sleep(0.01)


def measure_segments(place: Path, gib: float) -> Segments:
    """Write a newly allocated segment, two other ones, and the last one again."""
    size = round(gib * (1 << 30))
    with _allocated(place, size) as handle:
        large = _write(handle, size, LARGE_BYTES)
    with _allocated(place, size) as handle:
        uneven, read_uneven = _write(handle, size, UNEVEN_BYTES), _read(handle, size)
    with _allocated(place, size) as handle:
        first, again = (_write(handle, size, WRITE_BYTES) for _ in range(2))
        read = _read(handle, size)
    found = large, uneven, first, again, read_uneven, read, os.getloadavg()[0]
    return Segments(gib, *[round(each, 1) for each in found])


@contextmanager
def _allocated(place: Path, size: int) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        os.fsync(file.fileno())
        yield file.fileno()


def _write(handle: int, size: int, call_bytes: int) -> float:
    chunk = os.urandom(call_bytes)
    began = time.perf_counter()
    for at in range(0, size, call_bytes):
        os.pwrite(handle, chunk[: size - at], at)
        if at // SYNC_BYTES != (at + call_bytes) // SYNC_BYTES:
            os.fdatasync(handle)
    os.fdatasync(handle)
    return size / (time.perf_counter() - began) / 1e6


def _read(handle: int, size: int) -> float:
    into = [bytearray(READ_BYTES)]
    began = time.perf_counter()
    for at in range(0, size, READ_BYTES):
        os.preadv(handle, into, at)
    return size / (time.perf_counter() - began) / 1e6
