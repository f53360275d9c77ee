"""Transactions: ends half messages as their producers say, and asks producers that have not said.

Owns:     `transactions_open`, `transactions_committed`, `transactions_rolled_back`,
          `transactions_discarded`, `transaction_checks`, `closed_transaction_clients`;
          penstock/transactions; the transaction endpoint.
Reads:    `queued`, `run_began`, `topic_changes`; the half queue, the op queue, the log below
          `queued`; config/topics.json.
Hears:    requests of producers; answers of the writer, of which it is a producer; the reput.
Notifies: nobody.
On crash: the next one reads the op queue from where it was last saved. It serves only when it has
          read everything that its predecessor can have stored: once the writer has opened a
          session for this one, it takes no more frames of that one. So every committed message
          is known as such, and a half message without a mark has no copy.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import zmq

from penstock.actors.transactions.checks import Checks
from penstock.actors.transactions.endings import Endings
from penstock.actors.transactions.follower import Follower
from penstock.actors.transactions.half_queues import HalfQueues
from penstock.actors.transactions.producers import HEARTBEAT_MS, Producers
from penstock.actors.transactions.requests import Requests
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.errors import PenstockError, ProtocolError, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.half import Half, as_real
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.process.reception import Reception
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import Topics, load_topics
from penstock.shared.wire.messages import encode, refusal
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial, serve
from penstock.shared.wire.transaction_messages import (
    CheckTransaction,
    EndTransaction,
    Registered,
    RegisterProducer,
)

REQUESTS_AT_ONCE = 256
MAX_REQUEST_BYTES = 1 << 16
# Questions and answers that one producer has not read.
ANSWERS_WAITING = 1024
SOON_MS = 1
LINGER_MS = 50


class Transactions(Actor):
    """One broker's transactions."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        self._positions = stage.positions
        self._topics, self._topic_changes = Topics(), -1

    def start(self) -> None:
        config, run, stage = self._stage.config, self._stage.run, self._stage
        self._reader = QueueReader(config, run, stage.positions)
        queues = HalfQueues(self._reader)
        paths = StorePaths(config.store)
        self._follower = Follower(
            queues, paths, stage.disk, stage.positions, self._clock, stage.report
        )
        host = pack_host(config.broker_ip, run.endpoints.store_port)
        began = self._positions["run_began"]
        # What an earlier life has stored is read from the op queue before anything is put.
        self._sender = RecordSender(run.run_id, "transactions", stage.generation)
        self._endings = Endings(
            self._sender,
            queues,
            Shape(len(host), config.enabled_append_prop_crc),
            host,
            began,
            self._clock,
            self._queues_of,
        )
        table = self._follower.table
        self._producers = Producers()
        self._checks = Checks(
            table, queues, self._endings, self._producers, config, self._clock, self._ask
        )
        self._requests = Requests(
            self._follower, queues, self._endings, self._positions, self._clock
        )
        self._reception = Reception("transactions", run, config.store)
        self._limit = stage.connection_limit(config.max_connections)
        endpoints = run.endpoints.transaction, run.endpoints.transaction_ipc
        self._socket = serve(
            stage.context, endpoints, MAX_REQUEST_BYTES, stage.listening, ANSWERS_WAITING
        )
        # It shows that a producer has gone when it is to be asked; then another one is asked.
        self._socket.router_mandatory = True
        self._inlet = stage.inlet(self._socket, "closed_transaction_clients")
        self._writer = dial(stage.context, run.endpoints.produce_ipc, PRODUCE_ANSWER_BYTES)
        stage.listen(self._writer)
        self._ready = False

    def work(self) -> int:
        self._limit.tend(self._clock.monotonic_ms())
        self._inlet.tend(0)
        done = self._talk_to_writer() + self._follower.follow()
        if not self._is_ready():
            return done
        for ending, error in self._endings.settled():
            self._settle(ending, error)
            done += 1
        done += self._receive_some()
        for peer, answer in self._requests.turn():
            self._send(peer, encode(answer))
            done += 1
        if not self._stage.stopping:
            done += self._checks.turn()
        if self._endings.leave():
            self._talk_to_writer()
        self._publish()
        self._follower.save()
        if not done:
            self._reader.rest(self._clock.monotonic_ms())
        return done

    def idle_ms(self) -> int:
        now_ms = self._clock.monotonic_ms()
        # the reput does not notify when a half message has come to its queue
        soon = SOON_MS if self._requests or not self._ready else QUIET_TICK_MS
        return min(soon, self._inlet.idle_ms, self._sender.wait_ms(now_ms), self._checks.wait_ms())

    def release_deleted(self) -> None:
        self._reader.release_deleted(self._clock.monotonic_ms())

    def drained(self) -> bool:
        return not len(self._endings) and not len(self._sender)

    def close(self) -> None:
        self._follower.save(at_once=True)
        self._socket.close(linger=LINGER_MS)
        self._writer.close()
        self._reader.close()

    def _is_ready(self) -> bool:
        """Whether everything that was stored before this life began is known."""
        if not self._ready:
            if not self._sender.is_open:
                return False
            if self._positions["queued"] < self._sender.floor or not self._follower.is_at_end():
                return False
            self._ready = True
            self._follower.take_counts()  # earlier endings are read again, but were counted already
            self._stage.listen(self._socket)
        return True

    # --- the writer ---

    def _talk_to_writer(self) -> int:
        now_ms, done = self._clock.monotonic_ms(), 0
        while True:
            try:
                parts = self._writer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._sender.received(parts, now_ms)
            done += 1
        for out in self._sender.outgoing(now_ms):
            try:
                self._writer.send_multipart(out, zmq.NOBLOCK)
            except zmq.Again:
                self._sender.not_connected(now_ms)
                break
            crash_point("txn.sent")
        return done

    def _queues_of(self, topic: str) -> int:
        changes = self._positions["topic_changes"]
        if changes != self._topic_changes:
            paths = StorePaths(self._stage.config.store)
            # if the file cannot be read, the known topics still count; the scheduler reports it
            with suppress(StoreDamaged, OSError):
                self._topics, self._topic_changes = load_topics(paths.topics), changes
        found = self._topics.get(topic)
        return 0 if found is None else found.write_queues or found.queues

    def _settle(self, ending: Any, error: PenstockError | None) -> None:
        if ending.stored:
            crash_point("txn.stored")
            self._follower.ended(ending)
        for peer, answer in self._requests.settle(ending, error):
            crash_point("txn.before_answer")
            self._send(peer, encode(answer))

    # --- producers ---

    def _receive_some(self) -> int:
        for count in range(REQUESTS_AT_ONCE):
            parts = None if self._stage.stopping else self._inlet.receive()
            if parts is None:
                return count
            if parts:
                self._receive(parts)
        return REQUESTS_AT_ONCE

    def _receive(self, parts: list[bytes]) -> None:
        peer, number = parts[0], 0
        try:
            if len(parts) != 2:
                raise ProtocolError("a request is not one header", f"{len(parts) - 1} parts")
            request = self._reception.read(parts[1])
            if isinstance(request, bytes):
                self._send(peer, request)
                return
            number = request.request
            if isinstance(request, RegisterProducer):
                self._producers.register(request.group, peer, self._clock.monotonic_ms())
                self._send(peer, encode(Registered(number, request.group, HEARTBEAT_MS)))
            elif isinstance(request, EndTransaction):
                self._requests.add(peer, request)
        except PenstockError as error:
            self._send(peer, encode(refusal(error, number)))

    def _ask(self, peer: bytes, record: Record, half: Half) -> bool:
        """Ask this producer how a transaction ended; False if the producer has gone."""
        question = CheckTransaction(
            0, half.group, half.unique_key, record.queue_offset, record.physical_offset
        )
        asked = self._send(peer, encode(question), encode_record(as_real(record)))
        if asked:
            self._positions.publish("transaction_checks", self._positions["transaction_checks"] + 1)
            crash_point("txn.asked")
        return asked

    def _send(self, peer: bytes, *parts: bytes) -> bool:
        try:
            self._socket.send_multipart((peer, *parts), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # it has gone, or reads nothing; it will ask again
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def _publish(self) -> None:
        table = self._follower.table
        if self._positions["transactions_open"] != table.open:
            self._positions.publish("transactions_open", table.open)
        for name, count in self._follower.take_counts().items():
            self._positions.publish(name, self._positions[name] + count)
