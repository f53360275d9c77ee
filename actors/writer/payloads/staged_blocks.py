"""Frames that name their records instead of carrying them: these are staged in the log already.

    payload, of a frame that names some   first | last
    what is stored                        first | staged records | last

The writer copies the staged records, checks and stores them as if the producer had sent them. So
they travel to the broker once, when they are staged. Only records on disk count as staged: a power
failure that takes the frame must not take them too, or the frame could not be sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from penstock.shared.errors import InvalidMessage, OffsetOutOfRange
from penstock.shared.formats.record_check import record_at
from penstock.shared.formats.record_layout import Shape, body_span
from penstock.shared.formats.record_outline import outline
from penstock.shared.log.reader import LogReader, first_size
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.staged_records import Records, decode_records
from penstock.shared.messaging.system_topics import STAGING_TOPIC
from penstock.shared.wire.messages import MAX_RUNS, Append, QueueRun

_TOPIC = STAGING_TOPIC.encode()


class StagedBlocks:
    """Reads staged records; those of this broker have `shape`."""

    def __init__(
        self, reader: LogReader, positions: Positions, shape: Shape, max_frame_bytes: int
    ) -> None:
        self._reader, self._positions, self._shape = reader, positions, shape
        self._max_frame_bytes = max_frame_bytes
        # used again: new memory of a frame's size costs as much as the copy
        self._buffer = bytearray()

    def whole(self, request: Append, payload: memoryview) -> tuple[Append, memoryview]:
        """The request with all its records in the payload; the next call overwrites them.

        Raises OffsetOutOfRange if nothing is staged there any more, and InvalidMessage.
        """
        if not request.staged:
            return request, payload
        if len(request.runs) != 2:
            raise InvalidMessage("staged records are not between two runs", len(request.runs))
        block = self._read(request.staged)
        runs = tuple(QueueRun(*run) for run in block.runs)
        if len(runs) > MAX_RUNS - 2:
            raise InvalidMessage(f"staged records are for more than {MAX_RUNS - 2} runs", len(runs))
        middle = min(first_size(payload), len(payload))
        data = self._joined(payload[:middle], block.payload, payload[middle:])
        first, last = request.runs
        return structs.replace(request, runs=(first, *runs, last), staged=()), data

    def _joined(self, *pieces: memoryview) -> memoryview:
        size = sum(map(len, pieces))
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        at, room = 0, memoryview(self._buffer)
        for piece in pieces:
            room[at : at + len(piece)] = piece
            at += len(piece)
        return room[:size]

    def _read(self, places: Sequence[int]) -> Records:
        parts, size = [], 0
        for position in places:
            parts.append(self._body(position))
            size += len(parts[-1])
            if size > self._max_frame_bytes:
                what = f"more is staged than a frame of {self._max_frame_bytes} bytes takes"
                raise InvalidMessage(what, size)
        block = decode_records(parts[0] if len(parts) == 1 else b"".join(parts))
        if block.shape != self._shape:
            what = "what was staged is for a broker whose records have another shape"
            raise InvalidMessage(what, str(block.shape), "send the records themselves")
        return block

    def _body(self, position: int) -> memoryview:
        """A view of the body of the staged message at a log offset."""
        record = record_at(self._flushed, position)
        if record is None or outline(record).topic != _TOPIC:
            raise OffsetOutOfRange(
                "staged rows have expired before they were published",
                f"log offset {position}",
                "the rest of the batch is lost here: write it again under another name",
            )
        body_at, length = body_span(record, 0)
        return record[body_at : body_at + length]

    def _flushed(self, position: int, size: int) -> memoryview:
        end = self._positions["flushed"]
        if not self._positions["log_start"] <= position < end:
            return memoryview(b"")
        return self._reader.view(position, min(end, position + size))
