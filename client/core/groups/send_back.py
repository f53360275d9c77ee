"""Messages that a member gives back, on their way into the log: retries and dead letters.

    put -> its topic is there -> frame -> outcome

Their records are already made (shared/messaging/retried.py). A message counts as finished only when
its next record is stored, so nothing here is given up. When the broker has restarted, frames
without an outcome go out again as retries, of which the writer recognises those already stored.
No sockets; times are passed in.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.client.core.aim import Aim
from penstock.client.core.sending.record_sender import Outcome, RecordSender
from penstock.shared.errors import (
    BrokerBusy,
    ConnectError,
    InvalidArgument,
    OffsetOutOfRange,
    PenstockError,
    PropertiesTooLarge,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.properties import REAL_TOPIC, decode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.wire import messages
from penstock.shared.wire.messages import QueueRun, encode, error_from_refusal
from penstock.shared.wire.produce_rules import check_properties_size

# The size of one frame. Messages that wait while frames are in flight go out together.
FRAME_BYTES = 64 << 10
MAX_FRAMES = 4
REPEAT_MS = 500


class SendBack:
    """One member's retries and dead letters."""

    def __init__(self, name: str) -> None:
        self.aim = Aim()
        self._name = f"member/{name}/{os.urandom(8).hex()}"
        self._generation = 0
        self._sender: RecordSender | None = None
        self._run = ""
        self._shape: messages.Welcome | None = None
        self._waiting: deque[tuple[Record, Any]] = deque()
        # frames in flight: number -> their messages
        self._frames: dict[int, list[tuple[Record, Any]]] = {}
        self._frame = 0
        # log offsets below which an earlier run's frames cannot be stored
        self._floors: list[int] = []
        # topics to be made: name -> (queues, request, when it was sent)
        self._making: dict[str, tuple[int, int, int]] = {}
        # topics that exist, and how many queues were asked for
        self._made: dict[str, int] = {}
        self._request = 0
        # why topics are not made at the moment
        self._refusal: PenstockError | None = None
        self._outcomes: list[tuple[Any, PenstockError | None]] = []

    def __len__(self) -> int:
        """Messages without an outcome."""
        return len(self._waiting) + sum(map(len, self._frames.values()))

    @property
    def trouble(self) -> PenstockError | None:
        """Why the broker accepts nothing at the moment, if so."""
        if self._refusal is not None or self._sender is None:
            return self._refusal
        return self._sender.trouble

    def put(self, record: Record, tag: Any) -> None:
        """Take a record as it is to be stored. Its outcome carries the `tag`."""
        self._waiting.append((record, tag))

    def outcomes(self) -> list[tuple[Any, PenstockError | None]]:
        """The outcomes since the last call: a tag, and None or why its record is not stored."""
        found, self._outcomes = self._outcomes, []
        return found

    def need_topic(self, topic: str, queues: int) -> None:
        """Make sure of a topic before records go into it: it is created when first used, and grows
        when its group is given more retry queues."""
        asked = self._making[topic][0] if topic in self._making else self._made.get(topic, 0)
        if queues > asked:
            self._request += 1
            self._making[topic] = queues, self._request, -REPEAT_MS

    # --- out ---

    def outgoing(self, now_ms: int) -> Iterator[tuple[bytes, ...]]:
        """Everything to be sent now, in order."""
        if not self and not self._making:
            return
        sender = self._the_sender()
        for topic, (queues, request, sent_ms) in self._making.items():
            if now_ms - sent_ms >= REPEAT_MS:
                self._making[topic] = queues, request, now_ms
                yield (encode(messages.CreateTopic(request, topic, queues, self.aim.run)),)
        if self._shape is not None and not self._making:
            while self._waiting and len(self._frames) < MAX_FRAMES:
                self._pack(sender)
        yield from sender.outgoing(now_ms)

    def _the_sender(self) -> RecordSender:
        if self._sender is not None and self._run == self.aim.run:
            return self._sender
        floor = 0 if self._sender is None else min([self._sender.floor, *self._floors])
        self._floors.clear()
        self._generation += 1
        self._run = self.aim.run
        self._sender = RecordSender(self._run, self._name, self._generation, stored_after=floor)
        # in their order: the previous run may have stored them
        for number, entries in self._frames.items():
            self._put(self._sender, number, entries, floor)
        return self._sender

    def _pack(self, sender: RecordSender) -> None:
        entries, size = [], 0
        while self._waiting and size < FRAME_BYTES:
            record, tag = self._waiting.popleft()
            try:
                check_properties_size(len(self._properties(record)))
            except PropertiesTooLarge as error:
                self._outcomes.append((tag, error))  # else it would block all after it for ever
                continue
            entries.append((record, tag))
            size += len(record.body) + 512
        if entries:
            self._put_frame(sender, entries)

    def _put_frame(
        self, sender: RecordSender, entries: list[tuple[Record, Any]], stored_after: int = -1
    ) -> None:
        self._frame += 1
        self._frames[self._frame] = entries
        self._put(sender, self._frame, entries, stored_after)

    def _put(
        self,
        sender: RecordSender,
        number: int,
        entries: Sequence[tuple[Record, Any]],
        stored_after: int,
    ) -> None:
        runs = [QueueRun(record.topic, record.queue_id, 1) for record, _ in entries]
        raw = b"".join([self._encoded(record) for record, _ in entries])
        sender.put(runs, raw, number, stored_after)

    def _encoded(self, record: Record) -> bytes:
        """Encode for this broker: with room for its address, and for a checksum if it keeps one."""
        assert self._shape is not None, "frames are packed once the broker has said how"
        host = bytes(self._shape.store_host_bytes)
        return encode_record(replace(record, properties=self._properties(record), store_host=host))

    def _properties(self, record: Record) -> bytes:
        assert self._shape is not None
        room = PROP_CRC_ROOM if self._shape.prop_crc else b""
        properties = record.properties
        if room and properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        return properties + room

    def not_connected(self, now_ms: int) -> None:
        self.aim.away = True
        for topic, (queues, request, _) in self._making.items():
            self._making[topic] = queues, request, now_ms - REPEAT_MS + 20
        if self._sender is not None:
            self._sender.not_connected(now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in or is put."""
        waits = [max(0, sent_ms + REPEAT_MS - now_ms) for _, _, sent_ms in self._making.values()]
        if self and self._sender is not None:
            waits.append(self._sender.wait_ms(now_ms))
        elif self:
            waits.append(0)
        return min(waits, default=REPEAT_MS)

    # --- in ---

    def received(self, parts: Sequence[bytes | memoryview], now_ms: int) -> None:
        """Take an answer of the broker. Raises ProtocolError for anything else."""
        header = bytes(parts[0])
        answer = messages.decode_produce_answer(header)
        if not self.aim.heard(answer):
            return
        if isinstance(answer, messages.Welcome):
            self._shape = answer
        if isinstance(answer, messages.Routed):
            self._topic_made(answer.topic)
            return
        if isinstance(answer, messages.Refused) and not answer.session:
            topic = next((t for t, m in self._making.items() if m[1] == answer.request), "")
            if topic:
                self._not_made(topic, answer)
                return
        if self._sender is not None:
            self._sender.received([header], now_ms)
            for outcome in self._sender.outcomes():
                self._settle(self._sender, outcome)

    def _topic_made(self, topic: str) -> None:
        if (making := self._making.pop(topic, None)) is not None:
            self._made[topic] = making[0]
            self._refusal = None

    def _not_made(self, topic: str, answer: messages.Refused) -> None:
        error = error_from_refusal(answer)
        if isinstance(error, InvalidArgument):
            self._topic_made(topic)  # it exists, with more queues
            return
        if isinstance(error, BrokerBusy | StoreUnavailable):
            self._refusal = error
            return  # only for now: the topic is asked for again
        self._refusal = None
        del self._making[topic]
        lost = [each for each in self._waiting if _real_topic(each[0]) == topic]
        self._waiting = deque(each for each in self._waiting if each not in lost)
        self._outcomes += [(tag, error) for _, tag in lost]

    def _settle(self, sender: RecordSender, outcome: Outcome) -> None:
        number, result, stored_after = outcome
        if isinstance(result, ConnectError):
            # the frame was for another run of the broker: it waits until the new run is found
            self._floors += [stored_after] if stored_after >= 0 else []
            if self._run == self.aim.run:
                self._run = "gone"
            return
        entries = self._frames.pop(number)
        error = result if isinstance(result, PenstockError) else None
        if isinstance(error, OffsetOutOfRange):
            # nobody can say whether the frame is stored: twice is better than never
            self._put_frame(sender, entries)
        elif error is not None and len(entries) > 1:
            # the refusal does not say which record it means
            for entry in entries:
                self._put_frame(sender, [entry], stored_after)
        else:
            if isinstance(error, TopicNotFound | QueueNotFound):
                self._made.pop(_real_topic(entries[0][0]), None)
            self._outcomes += [(tag, error) for _, tag in entries]


def _real_topic(record: Record) -> str:
    return decode_properties(record.properties).get(REAL_TOPIC, record.topic)
