"""Expired segments that become the next ones: filled with zeros, and given a new name.

The first write to a block that was only allocated makes the file system record, at the next sync,
that the block is written now. A block that was written before costs nothing but its bytes: synced
bit by bit, a used segment takes a third of the time of a new one (`penstock bench bytes`).

RocketMQ does not compare the log offset in a record with the record's place. If records of an
earlier life lay past the log's end, its recovery would go on with them after a power failure. So
the whole file is zeros on disk before it gets its name in the log.

A file that a process has open, or that has a second name, must keep its contents: it is not filled,
but deleted like any other. The cleaner puts files here and never looks at them again; from then on
the allocator owns them. Nothing outlives the allocator: a successor, and a start, remove what
they find, so no file has to record how far it was filled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.shared.faults import crash_point
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.files.durable import (
    expired_segments,
    give_name,
    sync_directory,
    sync_file,
    write_at,
)

# Zeros in one step; between steps come the heartbeat and the writer's requests.
STEP_BYTES = 1 << 20
_ZEROS = bytes(STEP_BYTES)
# The most zeros that one sync writes out: another file's sync may wait for them.
SYNC_BYTES = 8 << 20
# Actors close a deleted file within two seconds; a process that has it for longer is reading it.
HELD_MS = 10_000


class RecycledSegments:
    """The expired segments of one store that are to be used again."""

    def __init__(
        self,
        log: Path,
        staging: Path,
        segment_bytes: int,
        now_ms: Callable[[], int],
        report: Callable[[str], None],
    ) -> None:
        self._log = log
        self._staging = staging
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms
        self._report = report
        # when each was first seen; those that are zeros on disk; those that cannot be deleted
        self._seen_ms: dict[Path, int] = {}
        self._filled: list[Path] = []
        self._stuck: set[Path] = set()
        self._filling: _Filling | None = None

    def step(self) -> bool:
        """Fill some more; returns whether there was something to fill."""
        if self._filling is None:
            self._filling = self._next()
        if self._filling is None:
            return False
        path = self._filling.path
        try:
            if self._filling.step():
                crash_point("recycle.filled")
                self._end_filling()
                self._filled.append(path)
        except OSError as error:
            self._report(f"an expired segment is not used again: {error}")
            self._drop(path)
        return True

    def take(self, target: Path) -> bool:
        """Give a filled segment this name, durably; returns whether there was one. Raises OSError;
        then the segment is gone, and nothing has the name."""
        while self._filled:
            path = self._filled.pop()
            del self._seen_ms[path]
            try:
                give_name(path, target)
            except FileNotFoundError:
                continue  # somebody has deleted it
            return True
        return False

    def discard(self) -> None:
        """Delete all of them."""
        self._look()
        for path in list(self._seen_ms):
            self._drop(path)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._seen_ms)

    def _look(self) -> None:
        for path in expired_segments(self._staging):
            if path not in self._stuck:
                self._seen_ms.setdefault(path, self._now_ms())

    def _next(self) -> _Filling | None:
        """The first one that nobody else has open."""
        self._look()
        for path in [path for path in self._seen_ms if path not in self._filled]:
            try:
                flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                handle = take_descriptor(partial(os.open, path, flags))
            except OSError:  # a symbolic link, or a file that the broker may not write to
                self._drop(path)
                continue
            if self._may_fill(handle):
                return _Filling(self._log, path, handle, self._segment_bytes)
            os.close(handle)
            if self._now_ms() - self._seen_ms[path] >= HELD_MS:
                self._drop(path)
        return None

    def _may_fill(self, handle: int) -> bool:
        found = os.fstat(handle)
        return (
            stat.S_ISREG(found.st_mode)
            and found.st_size == self._segment_bytes
            and found.st_nlink == 1
            and _is_ours_alone(handle)
        )

    def _drop(self, path: Path) -> None:
        if self._filling is not None and self._filling.path == path:
            self._end_filling()
        del self._seen_ms[path]
        if path in self._filled:
            self._filled.remove(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # the disk has become read-only; the next start tries again
            self._stuck.add(path)
            self._report(f"an expired segment stays: {error}")

    def _end_filling(self) -> None:
        assert self._filling is not None
        os.close(self._filling.handle)
        self._filling = None


class _Filling:
    """An expired segment that is being filled."""

    def __init__(self, log: Path, path: Path, handle: int, size: int) -> None:
        self._log = log
        self.path = path
        self.handle = handle
        self._size = size
        self._at = 0

    def step(self) -> bool:
        """Write some more zeros; whether the whole file is zeros on disk. Raises OSError."""
        if not self._at:
            # Whoever set it aside may have died before this sync. After a power failure the file
            # would have its name in the log again, without its messages.
            sync_directory(self._log)
        stop = min(self._size, self._at + STEP_BYTES)
        write_at(self.handle, memoryview(_ZEROS)[: stop - self._at], self._at)
        self._at = stop
        if stop == self._size or stop % SYNC_BYTES == 0:
            sync_file(self.handle)
        return stop == self._size


def _is_ours_alone(handle: int) -> bool:
    """Whether nobody else has the file open or mapped, in any process.

    The kernel grants a write lease only then. If it has no leases, as on some network file
    systems, nobody can know, and the answer is no.
    """
    try:
        # An open by another process sends this signal to the lease's holder. The default, SIGIO,
        # would kill it; SIGURG is ignored by default.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENOLCK):
            return False
        raise
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
