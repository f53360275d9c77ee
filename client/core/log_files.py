"""Reads the records of the broker's log from its files, for a consumer on the same machine.

    Pulled with places -> the files of this run's log -> the records, as the socket would carry them

Owns the memory that it reads into. It keeps no file open, so that an expired file's space is free
once the broker deletes it. Files are read and not mapped, so that a disk error is an exception and
not a SIGBUS, and that a message never changes. If anything is wrong, the consumer asks again, and
gets the records by the socket or the broker's own words about what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from operator import itemgetter

from penstock.client.core import log
from penstock.shared.errors import ProtocolError, StoreUnavailable
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.forms import RANGE
from penstock.shared.wire.messages import Pulled

# How long records come by the socket after a file could not be read.
TRY_AGAIN_MS = 5000
# No broker of this version sends a larger answer.
MAX_ANSWER_BYTES = 1 << 30
# The most views of one preadv: the kernel's IOV_MAX.
_MOST_VIEWS = 1024
# Smaller buffers are left to the C library, which keeps blocks of that size for the next use.
LEAST_BYTES = 256 << 10
# One buffer is being filled while messages in the two before it are worked on.
KEPT = 3


class LogFiles:
    """Reads the records of answers that name places. Without `wanted` it never asks for places."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and sys.platform == "linux"
        # the broker's files are not on this machine
        self._is_remote = False
        self._not_before_ms = 0
        # the run of the last answer, and its log's directory
        self._run_id: str | None = None
        self._directory = ""
        self._buffers = ReadBuffers()

    def usable(self, now_ms: int) -> bool:
        """Whether to ask for the places of records instead of the records."""
        return self._wanted and not self._is_remote and now_ms >= self._not_before_ms

    def read(self, answer: Pulled, ranges: bytes | memoryview, now_ms: int) -> memoryview | None:
        """The records that an answer points to. None: ask for them again; `usable` is now False.

        Raises ProtocolError for an answer that contradicts itself or was not asked for.
        """
        if not self._wanted:
            raise ProtocolError("an answer names places that nobody asked for", answer.run_id)
        # imported here: it takes a while, and few clients ever read files
        from penstock.shared.memory.run_directory import find_store

        size = _check(answer, ranges)
        try:
            if answer.run_id != self._run_id:
                self._directory = os.fspath(StorePaths(find_store(answer.run_id)).commit_log)
                self._run_id = answer.run_id
            return self._read(answer, ranges, size)
        except StoreUnavailable as error:
            log().debug("records come by the socket: %s", error)
            self._is_remote = True
        except OSError as error:
            log().debug("records come by the socket for a while: %s", error)
            self._not_before_ms = now_ms + TRY_AGAIN_MS
        return None

    def _read(self, answer: Pulled, ranges: bytes | memoryview, size: int) -> memoryview:
        whole = self._buffers.take(size)
        at = 0
        for base, part in _parts(answer, ranges):
            wanted = []
            for start, stop in RANGE.iter_unpack(part):
                wanted.append((start, whole[at : at + stop - start]))
                at += stop - start
            path = os.path.join(self._directory, segment_name(base))
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for start, views in _runs(wanted):
                    if not _fill(handle, start - base, views):
                        raise OSError(f"{path} ends before its records do")
            finally:
                os.close(handle)
        return whole


def _runs(wanted: list[tuple[int, memoryview]]) -> Iterator[tuple[int, list[memoryview]]]:
    """Runs of records that are adjacent in the file, of whatever queues, each read by one call.

    During a call the program's other threads run. Between two calls this thread would have to wait
    for them to release the interpreter, so there should be few calls.
    """
    first, stop, views = 0, -1, list[memoryview]()
    for start, view in sorted(wanted, key=itemgetter(0)):
        if start != stop or len(views) == _MOST_VIEWS:
            if views:
                yield first, views
            first, views = start, []
        views.append(view)
        stop = start + len(view)
    if views:
        yield first, views


def _fill(handle: int, offset: int, views: list[memoryview]) -> bool:
    """Fill one view after the other from `offset` on. False if the file ends before that."""
    left = sum(map(len, views))
    while left:
        got = os.preadv(handle, views, offset)
        if not got:
            return False
        left, offset = left - got, offset + got
        while left and got >= len(views[0]):
            got -= len(views.pop(0))
        views[0] = views[0][got:]
    return True


def _parts(answer: Pulled, ranges: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    """Each segment's base offset, and its ranges."""
    at = 0
    for place in answer.places:
        stop = at + place.ranges * RANGE.size
        yield place.base, ranges[at:stop]
        at = stop


def _check(answer: Pulled, ranges: bytes | memoryview) -> int:
    """The size of all records, in bytes. Raises ProtocolError."""
    size = sum(each.size for each in answer.slices)
    count = sum(each.ranges for each in answer.places)
    if count * RANGE.size != len(ranges) or not 0 <= size <= MAX_ANSWER_BYTES:
        raise ProtocolError(
            "an answer is shorter than its header says", f"{len(ranges)} bytes, {answer}"
        )
    left = size
    for base, part in _parts(answer, ranges):
        for start, stop in RANGE.iter_unpack(part):
            left -= stop - start
            if not base <= start <= stop or left < 0:
                raise ProtocolError(
                    "a place lies outside its segment", f"{start} to {stop} of {base}"
                )
    if left:
        raise ProtocolError(
            "the places of an answer hold less than it says", f"{left} bytes are missing"
        )
    return size


class ReadBuffers:
    """The memory that records are read into, reused once no view of it is left.

    A new buffer for each answer would cost more than reading the answer: the C library returns
    megabytes to the kernel when they are freed, the kernel clears each page again when it is
    touched, and Python clears the whole buffer once more.
    """

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque(maxlen=KEPT)
        self._has_freed = False

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes that nobody else uses, with undefined contents. Thread-safe."""
        if size < LEAST_BYTES:
            # a consumer that has caught up keeps nothing for the next flood
            self._kept.clear()
            return memoryview(bytearray(size))
        for _ in range(KEPT):
            try:
                buffer = self._kept.pop()  # so that no other thread tries the same buffer
            except IndexError:
                break
            if len(buffer) >= size and _is_free(buffer):
                return self._keep(buffer, size)
            self._kept.appendleft(buffer)
        # the next answers are of about this size, and the next power of two fits most of them
        length = 1 << (size - 1).bit_length()
        if not self._has_freed:
            # The bodies of a batch are freed together, and the C library would return them to the
            # kernel, which clears each page for the next batch. Once a block of this size has been
            # freed, the library keeps as much. These buffers are never freed, so one block is freed
            # here to teach it. A setting (`keep_large_blocks`) would affect the whole program,
            # which is not ours.
            self._has_freed = True
            bytearray(length)
        return self._keep(bytearray(length), size)

    def _keep(self, buffer: bytearray, size: int) -> memoryview:
        # the view is made before another thread can find the buffer
        view = memoryview(buffer)[:size]
        self._kept.append(buffer)
        return view


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left, because only then may its length change. Popping and
    appending a byte leaves its memory in place."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
