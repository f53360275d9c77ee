"""The gateway's stream to the writer: frames out, answers in; dialled again when it has ended.

Nothing is kept for a writer that is away, as the sender knows what has no answer. This file does
not know what frames and answers mean.
"""

from __future__ import annotations

from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.process.actor import Stage
from penstock.shared.wire.local_stream import LocalStream, dial_stream
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, WRITER_STREAM


class WriterStream:
    """A stream, while the writer is there."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._endpoint = stage, stage.run.socket(WRITER_STREAM)
        self._stream: LocalStream | None = None
        # what the stage listens for
        self._is_heard = self._waits_for_room = False

    @property
    def handle(self) -> int:
        """What is readable when answers come; -1 while there is no stream."""
        return self._stream.handle if self._stream is not None else -1

    @property
    def has_ended(self) -> bool:
        """Whether the stream has broken off: what was on its way is lost."""
        return self._stream is not None and not self._stream.is_open

    def dial(self) -> None:
        """Dial the writer, unless that is done and the stream has not ended."""
        if self._stream is None:
            found = take_descriptor(lambda: dial_stream(self._endpoint, PRODUCE_ANSWER_BYTES))
            if found is not None:
                self._stream = found
                self._stage.plain.add(found)
                self._listen(found)

    def send(self, header: bytes, records: bytes = b"") -> bool:
        """Send a message; returns whether the writer is there."""
        self.dial()
        if self._stream is None or not self._stream.is_open:
            return False
        self._stream.send(header, records)
        self._listen(self._stream)
        return self._stream.is_open

    def answers(self, has_sent: bool = False) -> list[bytes]:
        """The headers that have come. The stream is read only if it was ready after the last sleep,
        or if this turn `has_sent`."""
        stream = self._stream
        if stream is None or not (has_sent or self._stage.heard(stream.handle)):
            return []
        if stream.has_unsent:
            stream.flush()
        stream.read()
        found = []
        while (message := stream.next()) is not None:
            found.append(message[0])
        self._listen(stream)
        return found

    def _listen(self, stream: LocalStream) -> None:
        if not self._is_heard or self._waits_for_room != stream.has_unsent:
            self._is_heard, self._waits_for_room = True, stream.has_unsent
            self._stage.listen(stream.handle, room=stream.has_unsent)

    def end(self) -> None:
        if self._stream is not None:
            self._stage.listen(self._stream.handle, False)
            self._stream.close()
            self._stage.plain.remove(self._stream)
            self._stream, self._is_heard = None, False
