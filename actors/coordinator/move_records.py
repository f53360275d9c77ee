"""The coordinator's records of OFFSETS_TOPIC: an operator's resets, and offsets that a group moved
by other means than blocks. It puts them into the log like any producer, and does not know why.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import zmq

from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.formats.message_id import key_origin, make_unique_key
from penstock.shared.formats.properties import UNIQ_KEY, encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.loops.active import has_message
from penstock.shared.messaging.offsets_record import OFFSETS_QUEUE, move_of
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.process.actor import Stage
from penstock.shared.wire.messages import QueueRun
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# queue id -> (from, to)
Moves = dict[int, tuple[int, int]]


class MoveRecords:
    """One process's records; for each of them a caller waits for the outcome."""

    def __init__(self, stage: Stage) -> None:
        run, config = stage.run, stage.config
        self.socket = dial(stage.context, run.endpoints.produce_ipc, PRODUCE_ANSWER_BYTES)
        stage.listen(self.socket)
        name = f"coordinator/{os.urandom(8).hex()}"
        self._sender = RecordSender(run.run_id, name, 1)
        self._config, self._clock = config, stage.clock
        self._number = 0
        # outcomes that a caller waits for, by number; None while unknown
        self._outcomes: dict[int, Any] = {}

    def store(self, group: str, topic: str, moves: Moves) -> Generator[bool, None, None]:
        """Have the log record the moves; yields True meanwhile. Raises the writer's refusal."""
        self._number += 1
        number = self._number
        raw = _record(self._config, group, topic, moves, self._clock.now_ms(), number)
        self._sender.put([QueueRun(OFFSETS_TOPIC, OFFSETS_QUEUE, 1)], raw, number)
        self._outcomes[number] = None
        try:
            while (outcome := self._outcomes[number]) is None:
                yield True
        finally:
            del self._outcomes[number]
        if isinstance(outcome, PenstockError):
            raise outcome

    def work(self, now_ms: int) -> int:
        """Take answers, and send; returns how many outcomes came."""
        while has_message(self.socket):
            self._sender.received(self.socket.recv_multipart(zmq.NOBLOCK), now_ms)
        outcomes = self._sender.outcomes()
        for number, outcome, _ in outcomes:
            if number in self._outcomes:
                self._outcomes[number] = outcome
        if len(self._sender):
            for parts in self._sender.outgoing(now_ms):
                try:
                    self.socket.send_multipart(parts, zmq.NOBLOCK)
                except zmq.Again:
                    self._sender.not_connected(now_ms)
                    break
        return len(outcomes)


def _record(
    config: Config, group: str, topic: str, moves: Moves, now_ms: int, number: int
) -> bytes:
    body, properties = move_of(group, {topic: moves})
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
