"""The offsets of groups that work exactly once: they follow the log, and an operator's go by it.

    OFFSETS_TOPIC -> move           what blocks have stored; who has a queue goes on having it
                  -> reset          an operator's record, whoever sent it: claims on the queue end
    reset() -> a record             the writer compares blocks with it, so it comes first

How far the topic was followed is an offset like any other, of a group of the broker's own: it is
in the journal with what it has moved. A block that is stored a moment before a queue is claimed may
not be seen yet: then the new owner is told by the writer, with its first block.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import zmq

from penstock.actors.coordinator.claims import NONE, Claims
from penstock.actors.coordinator.notifications import Notifications
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.config import Config
from penstock.shared.errors import InvalidMessage, PenstockError, StoreDamaged
from penstock.shared.formats.message_id import key_origin, make_unique_key
from penstock.shared.formats.properties import UNIQ_KEY, encode_properties
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.offsets_record import (
    ANY,
    OFFSETS_QUEUE,
    OffsetsMove,
    move_of,
    read_body,
)
from penstock.shared.messaging.system_topics import (
    OFFSETS_GROUP,
    OFFSETS_TOPIC,
    STAGING_TOPIC,
)
from penstock.shared.process.actor import Stage
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.saved_offsets import load_offsets
from penstock.shared.wire.messages import QueueRun
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# Records in a cycle.
AT_ONCE = 256
_Name = tuple[str, str, int]  # group, topic, queue id
_PLACE = OFFSETS_TOPIC, OFFSETS_QUEUE


class LogOffsets:
    """Follows one topic, whose only queue has the order in which offsets have moved."""

    def __init__(
        self, stage: Stage, queues: QueueReader, claims: Claims, tell: Notifications
    ) -> None:
        self._stage = stage
        self._queues, self._claims, self._tell = queues, claims, tell
        # the queues that have a value: group -> topic -> queue ids
        self._known: dict[str, dict[str, set[int]]] = {}
        self._next = self._applied = 0
        self._resets: _Resets | None = None

    def begin(self) -> None:
        """After the offsets that were saved are loaded."""
        seat = self._claims.seat(OFFSETS_GROUP, _PLACE)
        self._applied = max(0, seat.offset) if seat is not None else 0
        try:
            saved = load_offsets(StorePaths(self._stage.config.store).exact_offsets)
        except (OSError, StoreDamaged) as error:
            self._stage.report(f"which groups work exactly once is not all known: {error}")
            return
        for group, topics in saved.offsets.items():
            for topic, offsets in topics.items():
                self._known.setdefault(group, {})[topic] = set(offsets)
        self._next = min(saved.queue_offset, self._applied)

    # --- following ---

    def work(self, now_ms: int) -> int:
        """Take what is new; how many records."""
        if self._resets is not None:
            self._resets.work(now_ms)
        slot = self._queues.queues(OFFSETS_TOPIC).get(OFFSETS_QUEUE)
        if slot is None:
            return 0
        low, high = self._queues.range(slot)
        start = max(self._next, low)
        if start >= high:
            return 0
        try:
            raw = self._queues.entries(slot, start, min(high, start + AT_ONCE))
        except FileNotFoundError:
            return 0  # it has expired: `low` moves
        moved: dict[_Name, int] = {}
        for at, (position, size, _) in enumerate(ENTRY.iter_unpack(raw), start):
            move = self._read(position, size) if size != BLANK_SIZE else None
            for name, before, to in _moves(move):
                if name[1] == STAGING_TOPIC:
                    continue  # how far a writer of Spark's is: nobody consumes that topic
                self._note(name, to)
                if at >= self._applied and to != NONE and before == ANY:
                    moved.pop(name, None)
                    self._reset(name, to)
                elif at >= self._applied and to != NONE:
                    moved[name] = to
        for (group, topic, queue_id), offset in moved.items():
            self._claims.move(group, (topic, queue_id), offset)
        self._next = start + len(raw) // ENTRY.size
        if self._next > self._applied:
            self._applied = self._next
            self._claims.move(OFFSETS_GROUP, _PLACE, self._next)
        return self._next - start

    def _read(self, position: int, size: int) -> OffsetsMove | None:
        try:
            return read_body(decode_record(self._queues.view(position, position + size)).body)
        except (FileNotFoundError, StoreDamaged, InvalidMessage):
            return None  # it has expired, or is a repair's filler

    def _note(self, name: _Name, to: int) -> None:
        group, topic, queue_id = name
        known = self._known.setdefault(group, {}).setdefault(topic, set())
        if to == NONE:
            known.discard(queue_id)
        else:
            known.add(queue_id)

    def _reset(self, name: _Name, offset: int) -> None:
        group, topic, queue_id = name
        seat = self._claims.seat(group, (topic, queue_id))
        if seat is not None and seat.offset == offset:
            return  # this coordinator has done it itself
        owner, held = self._claims.reset(group, (topic, queue_id), offset)
        if owner:
            self._tell.reset(group, owner, held)

    # --- an operator's ---

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> Generator[bool, None, None]:
        """Have the log say so first, for queues that blocks have moved; True while that takes.

        Raises what the writer refuses it with.
        """
        yield from self._caught_up()
        known = self._known.get(group, {}).get(topic, set())
        moves = {queue_id: (ANY, to) for queue_id, to in offsets.items() if queue_id in known}
        if not moves:
            return
        if self._resets is None:
            self._resets = _Resets(self._stage)
        number = self._resets.put(group, {topic: moves})
        while (outcome := self._resets.outcome(number)) is None:
            yield True
        if isinstance(outcome, PenstockError):
            raise outcome

    def end(self, group: str) -> Generator[bool, None, None]:
        """Have the log say that a group has no values any more; True while that takes.

        Raises what the writer refuses it with; then some may have ended, and the others not.
        """
        yield from self._caught_up()
        for topic, queues in list(self._known.get(group, {}).items()):
            yield from self.reset(group, topic, dict.fromkeys(queues, NONE))

    def _caught_up(self) -> Generator[bool, None, None]:
        """Wait until all is known that the queue has: `work` reads it."""
        while (slot := self._queues.queues(OFFSETS_TOPIC).get(OFFSETS_QUEUE)) is not None:
            low, high = self._queues.range(slot)
            if max(low, self._next) >= high:
                return
            yield True

    def close(self) -> None:
        if self._resets is not None:
            self._resets.socket.close(linger=0)


def _moves(move: OffsetsMove | None) -> Iterator[tuple[_Name, int, int]]:
    """Each queue, and from where to where it moves."""
    if move is not None:
        for topic, queues in move.topics.items():
            for queue_id, (before, to) in queues.items():
                yield (move.group, topic, queue_id), before, to


class _Resets:
    """Puts records into the log, like any producer."""

    def __init__(self, stage: Stage) -> None:
        run, config = stage.run, stage.config
        self.socket = dial(stage.context, run.endpoints.produce_ipc, PRODUCE_ANSWER_BYTES)
        name = f"coordinator/{os.urandom(8).hex()}"
        self._sender = RecordSender(run.run_id, name, 1)
        self._config, self._clock = config, stage.clock
        self._number = 0
        self._outcomes: dict[int, Any] = {}

    def put(self, group: str, moves: dict[str, dict[int, tuple[int, int]]]) -> int:
        self._number += 1
        raw = _record(self._config, group, moves, self._clock.now_ms(), self._number)
        self._sender.put([QueueRun(*_PLACE, 1)], raw, self._number)
        return self._number

    def outcome(self, number: int) -> Any:
        """What became of it, once; None while that is not known."""
        return self._outcomes.pop(number, None)

    def work(self, now_ms: int) -> None:
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            self._sender.received(self.socket.recv_multipart(zmq.NOBLOCK), now_ms)
        for number, outcome, _ in self._sender.outcomes():
            self._outcomes[number] = outcome
        if len(self._sender):
            for parts in self._sender.outgoing(now_ms):
                try:
                    self.socket.send_multipart(parts, zmq.NOBLOCK)
                except zmq.Again:
                    self._sender.not_connected(now_ms)
                    break


def _record(
    config: Config,
    group: str,
    moves: dict[str, dict[int, tuple[int, int]]],
    now_ms: int,
    number: int,
) -> bytes:
    body, properties = move_of(group, moves)
    host = pack_host(config.broker_ip, 0)
    key = make_unique_key(key_origin(host[:-4], now_ms), number)
    raw = encode_properties(properties | {UNIQ_KEY: key})
    if config.enabled_append_prop_crc:
        raw += PROP_CRC_ROOM
    record = Record(
        OFFSETS_TOPIC,
        body,
        raw,
        OFFSETS_QUEUE,
        born_timestamp_ms=now_ms,
        born_host=host,
        store_host=bytes(len(host)),
    )
    return encode_record(record)
