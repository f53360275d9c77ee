"""Records made before they are sent, perhaps by another process. A frame copies them, or says where
the broker already has them.

They are made for brokers of one shape. If the broker has another shape by the time they are put
into a frame, they are made again. They are not made again when the frame is sent again, because
they may be stored by then. No sockets.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from penstock.client.core.sending.encoding import Encoder, topic_bytes
from penstock.client.core.sending.frames import Frame, drafts_of
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.formats.properties import UNIQ_KEY
from penstock.shared.formats.record_layout import (
    PROPERTIES_LENGTH_BYTES,
    Shape,
    body_span,
)
from penstock.shared.loops.active import Message
from penstock.shared.loops.forms import Draft
from penstock.shared.messaging.staged_records import Records
from penstock.shared.wire.messages import QueueRun

_KEY_BEGINS = f"{UNIQ_KEY}\x01".encode()


class Staged(NamedTuple):
    """Records that the broker already has, in messages of the staging topic."""

    # the ids of these messages, in their order
    ids: tuple[str, ...]
    # the shape of the records, and their number
    shape: Shape
    total: int


class RecordsFrame(Frame):
    """A frame of ready-made records, with ordinary messages before them and one run after them."""

    __slots__ = ("records",)

    def __init__(self, ack: str, records: Sequence[Records]) -> None:
        super().__init__(ack)
        self.records = records
        self.size = sum(len(each.payload) for each in records)

    def close(self, seq: int) -> None:
        super().close(seq)
        self.runs[-1].first += sum(each.total for each in self.records)

    def pack(
        self, encoder: Encoder, into: bytearray | memoryview
    ) -> tuple[int, tuple[QueueRun, ...]]:
        room = memoryview(into)
        at = encoder.pack(room, [drafts_of(run) for run in self.runs[:-1]])[-1]
        made = []
        for each in self.records:
            room[at : at + len(each.payload)] = each.payload
            at += len(each.payload)
            made += [QueueRun(*run, False) for run in each.runs]
        at += encoder.pack(room[at:], [drafts_of(self.runs[-1])])[-1]
        # the records have no futures, so nobody asks where one is
        runs = self.packed(array("q", bytes(8 * (self.runs[-1].first + 2))))
        return at, (*runs[:-1], *made, runs[-1])


class StagedFrame(Frame):
    """A frame whose messages are staged, except for its first and its last."""

    __slots__ = ("staged", "_total")

    def __init__(self, ack: str, staged: Staged) -> None:
        super().__init__(ack)
        self.staged = tuple(parse_message_id(each)[1] for each in staged.ids)
        self._total = staged.total

    def close(self, seq: int) -> None:
        super().close(seq)
        self.runs[-1].first += self._total

    def packed(self, starts: Sequence[int]) -> tuple[QueueRun, ...]:
        # staged records have no futures, so nobody asks where one is
        return super().packed(array("q", bytes(8 * (self.runs[-1].first + 2))))


def fit(records: Records, encoder: Encoder) -> Records:
    """The records, made again if they are for brokers of another shape."""
    if records.shape == encoder.terms.shape:
        return records
    runs: list[tuple[str, int, list[Draft], array[int]]] = []
    at = size = 0
    for topic, queue_id, count in records.runs:
        drafts: list[Draft] = []
        keys = array("q")
        for _ in range(count):
            end = at + int.from_bytes(records.payload[at : at + 4], "big")
            message = Message(bytes(records.payload[at:end]))
            body_at, body_bytes = body_span(message.record, 0)
            topic_at = body_at + body_bytes
            raw = message.record[topic_at + len(topic_bytes(topic)) + PROPERTIES_LENGTH_BYTES :]
            # the sender's own properties come before those that were added
            own = bytes(raw)[: bytes(raw).rfind(_KEY_BEGINS)]
            drafts.append((bytes(message.record[body_at:topic_at]), own, message.flag, 0))
            keys.append(encoder.numbers.next(message.born_timestamp_ms))
            size += encoder.room(topic, drafts[-1])
            at = end
        runs.append((topic, queue_id, drafts, keys))
    into = bytearray(size)
    end = encoder.pack(into, runs)[-1]
    return Records(encoder.terms.shape, records.runs, memoryview(into)[:end])
