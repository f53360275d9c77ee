"""Makes requests of frames. Their records go into a ring in shared memory if there is one, else
into buffers that are reused.

New memory of a frame's size would come from the kernel page by page each time, which takes as long
as making the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.client.core.sending.encoding import Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import Frame
from penstock.shared.errors import PropertiesTooLarge
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.wire.messages import Append, encode

# More frames than this leave at once only after a failure.
MAX_BUFFERS = 8


# the parts of one message to the broker
Parts = tuple[bytes | memoryview, ...]


class Packer:
    """One producer's memory for frames that leave."""

    def __init__(self, encoder: Encoder, ring: FrameRing) -> None:
        self.encoder = encoder
        self.ring = ring
        self._buffers: list[bytearray] = []

    def requests(
        self,
        producer: int,
        session: int,
        leaving: Iterable[Parts | Frame],
        failed: Callable[[Frame, PropertiesTooLarge], None],
    ) -> Iterator[Parts]:
        """What leaves, with frames turned into requests. Payloads are valid until the next call.

        No lock is needed, because callers that send messages never touch a closed frame.
        """
        number = 0
        for each in leaving:
            if isinstance(each, tuple):
                yield each
                continue
            try:
                yield self.append(producer, session, each, number)
                number += 1
            except PropertiesTooLarge as error:
                failed(each, error)

    def append(
        self, producer: int, session: int, frame: Frame, number: int
    ) -> tuple[bytes, bytes | memoryview]:
        """The frame as a request; its payload is valid until this `number` is used again.

        Raises PropertiesTooLarge.
        """
        room = self.ring.room(frame.seq, frame.size)
        if room is None:
            buffer = self._buffer(number, frame.size)
            size, runs = frame.pack(self.encoder, buffer)
            payload: bytes | memoryview = memoryview(buffer)[:size]
            span = None
        else:
            with room:
                try:
                    size, runs = frame.pack(self.encoder, room)
                except PropertiesTooLarge:
                    self.ring.answered(frame.seq)
                    raise
            span, payload = self.ring.filled(frame.seq, size), b""
        said = producer, session, frame.seq, runs, frame.ack, frame.retry, span
        return encode(Append(*said, staged=frame.staged)), payload

    def _buffer(self, number: int, size: int) -> bytearray:
        if size > FRAME_BYTES or number >= MAX_BUFFERS:
            return bytearray(size)
        while len(self._buffers) <= number:
            self._buffers.append(bytearray(FRAME_BYTES))
        return self._buffers[number]
