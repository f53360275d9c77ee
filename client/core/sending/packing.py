"""Frames become requests: the records of their messages, made in a ring in shared memory where
there is one, else in memory that is used again.

New memory of a frame's size comes from the kernel page by page each time, which takes as long as
making the records.
"""

from __future__ import annotations

from penstock.client.core.sending.encoding import Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import Frame
from penstock.shared.errors import PropertiesTooLarge
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.wire.messages import Append, encode

# More frames than a producer has on their way leave at once only after a failure.
MAX_BUFFERS = 8


class Packer:
    """One producer's memory for frames on their way."""

    def __init__(self, encoder: Encoder, ring: FrameRing) -> None:
        self.encoder = encoder
        self.ring = ring
        self._buffers: list[bytearray] = []

    def append(
        self, producer: int, session: int, frame: Frame, number: int
    ) -> tuple[bytes, bytes | memoryview]:
        """The frame as a request; its payload is there until this `number` is used again.

        Raises PropertiesTooLarge.
        """
        drafts = [(run.topic, run.queue_id, run.drafts, run.keys) for run in frame.runs]
        room = self.ring.room(frame.seq, frame.size)
        if room is None:
            buffer = self._buffer(number, frame.size)
            starts, span = self.encoder.pack(buffer, drafts), None
            payload: bytes | memoryview = memoryview(buffer)[: starts[-1]]
        else:
            with room:
                try:
                    starts = self.encoder.pack(room, drafts)
                except PropertiesTooLarge:
                    self.ring.answered(frame.seq)
                    raise
            span, payload = self.ring.filled(frame.seq, starts[-1]), b""
        runs = frame.packed(starts)
        header = Append(producer, session, frame.seq, runs, frame.ack, frame.retry, span)
        return encode(header), payload

    def _buffer(self, number: int, size: int) -> bytearray:
        if size > FRAME_BYTES or number >= MAX_BUFFERS:
            return bytearray(size)
        while len(self._buffers) <= number:
            self._buffers.append(bytearray(FRAME_BYTES))
        return self._buffers[number]
