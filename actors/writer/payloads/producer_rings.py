"""The rings of a writer's producers: which producer has which, and how to read a frame from one.

Owns the files of the rings and the word `rings`; the bytes in them are the producers'. Each ring
belongs to one producer, and only this producer is told the number that names it. The writer drops
a ring when its producer is gone, takes another one, or does not come for it. A new writer has no
rings, and removes those of its predecessor.

Bytes in a ring can change while the writer checks them. So it copies a frame first, into memory of
its own that it uses again; what it has checked is then what it stores.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import InvalidMessage, PenstockError, RingUnavailable, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.ring_file import (
    RING_BYTES,
    TOKEN_BYTES,
    is_held,
    make_ring,
    ring_files,
    ring_path,
)
from penstock.shared.memory.run_directory import Run
from penstock.shared.wire.messages import (
    Append,
    OpenRing,
    Refused,
    RingOpened,
    RingSpan,
    refusal,
)

# A ring is an open file of the writer, which also has connections and segments.
FILES_PER_RING = 32
# A producer comes for its ring within this time.
GRACE_MS = 5000
_NUMBER_BYTES = 7


class Ring(NamedTuple):
    """One producer's ring."""

    number: int
    path: Path
    handle: int
    token: bytes
    since_ms: int


class ProducerRings:
    """The rings of one writer: `most` at the same time, or fewer if few files may be open."""

    def __init__(self, run: Run, positions: Positions, most: int, max_frame_bytes: int) -> None:
        self._directory, self._run_id = run.path, run.run_id
        self._positions = positions
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(most, files // FILES_PER_RING)
        self._max_frame_bytes = max_frame_bytes
        self._rings: dict[int, Ring] = {}
        self._buffer = bytearray()
        for path in ring_files(self._directory):
            path.unlink()
        self._count()

    def answer(self, request: OpenRing, is_open: bool, now_ms: int) -> RingOpened | Refused:
        """The answer to a producer. `is_open`: it has its session on the asking connection."""
        try:
            if not is_open:
                what = "the producer has no open session on this connection"
                raise RingUnavailable(what, request.producer)
            ring = self.open(request.producer, now_ms)
        except PenstockError as error:
            return refusal(error, request.request)
        return RingOpened(request.request, self._run_id, ring.number, RING_BYTES, ring.token)

    def open(self, producer: int, now_ms: int) -> Ring:
        """Make a ring for this producer, and drop its other one.

        Raises StoreUnavailable if there are too many rings, if there is no memory for it, or if the
        producer has just got one: making rings takes time from others.
        """
        held = self._rings.get(producer)
        if held is not None and now_ms - held.since_ms < GRACE_MS:
            raise StoreUnavailable(
                f"the producer has asked for another ring within {GRACE_MS} ms",
                f"{now_ms - held.since_ms} ms",
                "use the one that was given",
            )
        self.drop(producer)
        if len(self._rings) >= self.most:
            what = f"all {self.most} rings are taken"
            raise StoreUnavailable(what, None, "frames go through the socket")
        # not the secrets module, whose import brings OpenSSL: a start waits for it
        number = int.from_bytes(os.urandom(_NUMBER_BYTES))
        path, token = ring_path(self._directory, number), os.urandom(TOKEN_BYTES)
        try:
            handle = make_ring(path, token)
        except OSError as error:
            what = f"no ring of {RING_BYTES} bytes can be made in {self._directory.parent}"
            raise StoreUnavailable(what, error.strerror, "frames go through the socket") from None
        ring = self._rings[producer] = Ring(number, path, handle, token, now_ms)
        self._count()
        return ring

    def payload(self, request: Append, payload: memoryview) -> memoryview:
        """The payload of a frame, which came with it or is in its producer's ring. Raises what
        `read` raises."""
        if request.span is None:
            return payload
        if payload:
            raise InvalidMessage("a frame in a ring has a payload too", len(payload))
        return self.read(request.producer, request.span)

    def read(self, producer: int, span: RingSpan) -> memoryview:
        """A copy of bytes of this producer's ring; the next call overwrites it.

        Raises RingUnavailable if that ring is no longer there, and InvalidMessage.
        """
        ring = self._rings.get(producer)
        if ring is None or ring.number != span.ring:
            raise RingUnavailable("the frame's ring is not this producer's", f"ring {span.ring:x}")
        if span.length > self._max_frame_bytes or span.offset + span.length > RING_BYTES:
            what = (
                f"the frame does not lie inside its ring, or is larger than {self._max_frame_bytes}"
            )
            raise InvalidMessage(what, f"{span.length} bytes at {span.offset} of {RING_BYTES}")
        if len(self._buffer) < span.length:
            self._buffer = bytearray(span.length)
        # Copied before it is looked at: the producer can still write to its ring, and bytes that
        # change after the check would go into the log unchecked.
        copy = memoryview(self._buffer)[: span.length]
        # Read and not mapped: a producer may truncate its file, and then to touch a mapping is a
        # SIGBUS in the writer.
        if span.length and os.preadv(ring.handle, [copy], span.offset) != span.length:
            raise RingUnavailable("the ring has become shorter", f"ring {span.ring:x}")
        crash_point("ring.copied")
        return copy

    def look(self, now_ms: int) -> None:
        """Drop the rings whose producers are gone, or have not come for them."""
        for producer, ring in list(self._rings.items()):
            if now_ms - ring.since_ms > GRACE_MS and not is_held(ring.handle):
                self.drop(producer)

    def drop(self, producer: int) -> None:
        """Drop a producer's ring, if any; its memory is freed when nobody has it mapped."""
        ring = self._rings.pop(producer, None)
        if ring is not None:
            with suppress(FileNotFoundError):  # somebody has tidied up
                ring.path.unlink()
            os.close(ring.handle)
            self._count()

    def close(self) -> None:
        for producer in list(self._rings):
            self.drop(producer)

    def _count(self) -> None:
        self._positions.publish("rings", len(self._rings))
