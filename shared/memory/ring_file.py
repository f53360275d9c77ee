"""A ring in shared memory: its file, which the writer makes and a producer on this machine fills.

    <run directory>/ring-<number>      0600, of RING_BYTES; the writer begins it with a token

Once a producer has the ring, only the producer writes its bytes. The writer reads them through the
file and never through a mapping: if the file is truncated, a read is short, where a mapping would
raise SIGBUS. While the producer has the ring mapped it holds a lock (flock, shared) on the file, so
the kernel tells the writer when the producer has ended, however it ended.

No path goes over a socket: both sides build the name from numbers, so a request cannot name a file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from pathlib import Path

from penstock.shared.errors import RingUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.descriptors import take_descriptor

# The frames of 256 KiB that a producer has under way, and one for the space lost at the ring's end.
RING_BYTES = 9 * (256 << 10)
TOKEN_BYTES = 32
_NAME = "ring-"


def ring_path(directory: Path, number: int) -> Path:
    return directory / f"{_NAME}{number:016x}"


def ring_files(directory: Path) -> list[Path]:
    """The rings in a run directory."""
    # no glob, which would compile its pattern at each start of a writer
    return sorted(path for path in directory.iterdir() if path.name.startswith(_NAME))


def make_ring(path: Path, token: bytes) -> int:
    """For the writer: make the file, with all its memory. Returns its descriptor.

    Raises OSError, and then leaves no file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    handle = take_descriptor(lambda: os.open(path, flags, 0o600))
    try:
        os.posix_fallocate(handle, 0, RING_BYTES)
        os.pwrite(handle, token, 0)
        crash_point("ring.made")
    except BaseException:
        os.close(handle)
        path.unlink()
        raise
    return handle


def is_held(handle: int) -> bool:
    """Whether a producer has the ring. For the writer.

    It takes the lock itself for a moment. A producer that takes the ring at that moment is refused,
    sends through the socket, and asks for a ring again later.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def take_ring(run_id: str, number: int, size: int, token: bytes) -> mmap.mmap:
    """Map the ring that a broker says it has made. For the producer.

    Raises RingUnavailable where this user has no such file: the broker is on another machine, in a
    container of its own, or another user's.
    """
    if len(token) != TOKEN_BYTES or size != RING_BYTES:
        raise RingUnavailable("the broker names its ring as another version does", run_id)
    # imported here: few producers ever need it, and all would pay for it at their start
    from penstock.shared.memory.run_directory import run_places

    refused: object = "no such file"
    for directory in run_places(run_id):
        try:
            return _take(ring_path(directory, number), token)
        except OSError as error:
            refused = error
    raise RingUnavailable("the broker's ring is not on this machine", refused)


def _take(path: Path, token: bytes) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_size != RING_BYTES or os.pread(handle, len(token), 0) != token:
            raise RingUnavailable("this file is not the ring that the broker has made", path)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        crash_point("ring.taken")
        # the mapping keeps a descriptor of its own, and with it the lock
        return mmap.mmap(handle, RING_BYTES, mmap.MAP_SHARED)
    finally:
        os.close(handle)
