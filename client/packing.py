"""Frames become requests: the records of their messages, made in memory that is used again.

New memory of a frame's size comes from the kernel page by page each time, which takes as long as
making the records. No sockets.
"""

from __future__ import annotations

from penstock.client.encoding import Encoder
from penstock.client.frames import Frame
from penstock.shared.messages import Append, encode
from penstock.shared.pure_intake import FRAME_BYTES

# More frames than a producer has on their way leave at once only after a failure.
MAX_BUFFERS = 8


class Packer:
    """The buffers of one producer."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._buffers: list[bytearray] = []

    def append(
        self, producer: int, session: int, frame: Frame, number: int
    ) -> tuple[bytes, memoryview]:
        """The frame as a request; its payload is there until this `number` is used again.

        Raises PropertiesTooLarge.
        """
        buffer = self._buffer(number, frame.size)
        drafts = [(run.topic, run.queue_id, run.drafts, run.keys) for run in frame.runs]
        starts = self._encoder.pack(buffer, drafts)
        runs = frame.packed(starts)
        header = Append(producer, session, frame.seq, runs, frame.ack, frame.retry)
        return encode(header), memoryview(buffer)[: starts[-1]]

    def _buffer(self, number: int, size: int) -> bytearray:
        if size > FRAME_BYTES or number >= MAX_BUFFERS:
            return bytearray(size)
        while len(self._buffers) <= number:
            self._buffers.append(bytearray(FRAME_BYTES))
        return self._buffers[number]
