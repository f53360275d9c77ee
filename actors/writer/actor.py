"""The writer: takes frames of records from producers and puts them at the end of the log.

Owns:     `wrote`, `wrote_timestamp`, `flush_wanted`, `append_wanted`, `rings`,
          `closed_producers`, `unsaved_offsets`, `topic_changes`, `deleted_topics`, `recalled`; the
          bytes of the pool; queue offsets; config/topics.json; penstock/exact-offsets.json and
          deleted-topics.json; the produce endpoint; the files of rings.
Reads:    `committed`, `flushed`, `allocated`, `delay_sent`, `read_only`, errors; who waits; the
          queue table.
Hears:    requests of producers; doorbells of the flusher and the allocator.
Notifies: the committer, the allocator, the reader and the gateway; of topics the reput and the
          coordinator.
On crash: the next one goes on at `wrote`. One store to `wrote` makes a frame visible, so the log
          has all of it or nothing. Producers open new sessions and send again what was not
          answered; the next writer finds stored messages in the log by their UNIQ_KEY.
"""

from __future__ import annotations

from penstock.actors.writer.callers import FRAME_PARTS, Asked, Callers
from penstock.actors.writer.exact_offsets import ExactOffsets
from penstock.actors.writer.frame_check import CheckedFrame, FrameCheck
from penstock.actors.writer.log_tail import FrameStore, LogEnd
from penstock.actors.writer.payloads.producer_rings import ProducerRings
from penstock.actors.writer.payloads.staged_blocks import StagedBlocks
from penstock.actors.writer.pending_answers import PendingAnswers
from penstock.actors.writer.refusals import check_disk, check_writable, no_room, segment_missing
from penstock.actors.writer.retries import Retries
from penstock.actors.writer.retry_index import RetryIndex
from penstock.actors.writer.send_queue import SendQueue
from penstock.actors.writer.sessions import Sessions
from penstock.actors.writer.system_records import Recalls
from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.actors.writer.topic_turns import TopicTurns
from penstock.shared.errors import (
    RESOURCE_EXHAUSTED,
    BrokerBusy,
    InvalidMessage,
    PenstockError,
    ProtocolError,
    RingUnavailable,
)
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.layout import StorePaths
from penstock.shared.log.reader import LogReader, with_beats
from penstock.shared.messaging.offsets_record import OFFSETS_QUEUE
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS, LogBells
from penstock.shared.process.reception import Reception
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Append, Appended, StoredRun, encode, refusal

FRAMES_AT_ONCE = 32
# Steps in the search for retries between two polls of the socket; after this time none begins.
RETRY_STEPS, RETRY_MS = 4, 5
# Clients drop unread answers when a connection closes: give them this time to read.
LINGER_MS = 50


class Writer(Actor):
    """Puts producers' frames at the end of the log and answers them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        self._clock = stage.clock
        self._paths = StorePaths(stage.config.store)
        self._sessions = Sessions()
        self._pending = PendingAnswers()
        self._waiting: CheckedFrame | None = None
        self._held = SendQueue(stage.config)
        self._bells = LogBells(stage.bus, stage.positions, stage.clock)
        self._drained_at_ms = -1
        self._more = False

    def start(self) -> None:
        config, stage, run = self._config, self._stage, self._stage.run
        self._reader = LogReader(config, run, self._positions)
        pieces = with_beats(self._reader.pieces, stage.beat)
        with stage.disk:
            self._topics = TopicAdmin(self._paths, config, self._clock)
        self._end = LogEnd(config, run, self._positions, pieces, self._clock, self._topics.gone)
        self._topics.note_queues(self._end.queues())
        turns = self._topics, self._end, self._positions, stage.disk, self._clock
        self._topic_turns = TopicTurns(*turns)
        index = RetryIndex(pieces, self._reader.record, self._reader.segment_bytes)
        index.mark(self._positions["dispatched"])
        self._retries = Retries(index, lambda: self._end.wrote)
        self._exact = ExactOffsets(stage, pieces, self._reader.record, lambda: self._topics.gone)
        self._exact.begin(self._end.next_offset(OFFSETS_TOPIC, OFFSETS_QUEUE))
        self._host = pack_host(config.broker_ip, run.endpoints.store_port)
        recalls = Recalls(self._positions, self._clock, self._end.wrote)
        self._frames = FrameStore(self._end, self._exact, recalls, self._host)
        self._shape = Shape(len(self._host), config.enabled_append_prop_crc)
        self._check = FrameCheck(config, self._topics, self._shape, self._clock)
        most = config.max_frame_bytes
        self._rings = ProducerRings(run, self._positions, config.max_producer_rings, most)
        self._staged = StagedBlocks(self._reader, self._positions, self._shape, most)
        self._reception = Reception("producers", run, config.store)
        self._callers = Callers(stage, most)

    def work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        self._callers.begin_turn(now_ms, self._retries.size_bytes)
        done = self._release(now_ms)
        if self._waiting is not None:
            self._commit(self._waiting)
            done += self._waiting is None
        self._held.note(self._is_blocked(), now_ms)
        while done < FRAMES_AT_ONCE and self._may_receive():
            asked = self._callers.receive()
            if asked is None:
                break
            if asked.parts and (self._held or self._is_blocked()):
                self._held.put(asked, self._clock.monotonic_ms())
            elif asked.parts:
                self._receive(asked)
            done += 1
        others = self._take_held() + self._look_for_retries() + self._make_topics()
        others += self._exact.turn()
        self._more = others > 0 or not self._callers.drained
        done += others
        self._held.note(self._is_blocked(), self._clock.monotonic_ms())
        self._callers.end_turn(self._may_receive())
        return done

    def has_more(self) -> bool:
        return self._more or self._bells.is_flood

    def idle_ms(self) -> int:
        # the committer does not say when there is room, and waiting requests have deadlines
        waits = self._held or self._retries or self._pending or self._waiting
        is_quiet = self._topic_turns.idle and not waits
        return min(QUIET_TICK_MS if is_quiet else TICK_MS, self._callers.idle_ms)

    def release_deleted(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._end.release_deleted(now_ms)
        self._rings.look(now_ms)
        self._reader.release_deleted(now_ms)
        self._retries.release_deleted(now_ms)

    def drained(self) -> bool:
        if self._held or self._retries or self._topic_turns or self._pending or self._waiting:
            return False
        now_ms = self._clock.monotonic_ms()
        if self._drained_at_ms < 0:
            self._drained_at_ms = now_ms
        return now_ms - self._drained_at_ms >= LINGER_MS

    def close(self) -> None:
        self._callers.close(LINGER_MS)
        self._rings.close()
        self._exact.close()
        self._end.close()
        self._reader.close()

    def _may_receive(self) -> bool:
        """Whether to receive another request: those that wait here are bounded."""
        return not self._stage.stopping and self._held.takes

    # --- what comes while nothing can be appended ---

    def _is_blocked(self) -> bool:
        """Whether a frame waits for room, or too many bytes wait for the disk."""
        if self._waiting is not None or not self._pending:
            return self._waiting is not None
        return self._end.wrote - self._pending.first_end >= self._config.max_pending_bytes

    def _take_held(self) -> int:
        """Take held requests in order; turn away frames that have waited too long."""
        taken = 0
        while self._held and taken < FRAMES_AT_ONCE:
            busy = None
            if self._is_blocked() and self._held.next().parts == FRAME_PARTS:
                busy = self._held.busy(self._clock.monotonic_ms())
                if busy is None:
                    break
            self._receive(self._held.take(), busy)
            taken += 1
        return taken

    # --- answers that wait for the disk ---

    def _release(self, now_ms: int) -> int:
        """Send the answers that are due; returns their number."""
        released = 0
        for peer, answer in self._pending.due(self._positions, now_ms) if self._pending else ():
            self._callers.send(peer, encode(answer))
            released += 1
        return released

    def _refuse(self, peer: bytes, request: int, error: PenstockError, session: int = 0) -> None:
        self._callers.send(peer, encode(refusal(error, request, session)))

    # --- requests ---

    def _receive(self, asked: Asked, busy: BrokerBusy | None = None) -> None:
        """Handle a request. A frame is turned away with `busy` if there is one."""
        peer, header, records, parts = asked
        try:
            if parts < 2:
                raise ProtocolError("a request has no header", f"{parts - 1} parts")
            request = self._reception.read(header)
            if isinstance(request, Append):
                if parts != FRAME_PARTS:
                    raise ProtocolError("an Append is not two parts", f"{parts - 1} parts")
                self._append(peer, request, records, busy)
            elif isinstance(request, bytes):
                self._callers.send(peer, request)
            elif isinstance(request, messages.Hello):
                self._hello(peer, request)
            elif isinstance(request, messages.OpenRing):
                self._callers.send(peer, encode(self._open_ring(peer, request)))
            else:
                answer = self._topic_turns.ask(peer, request)
                if answer is not None:
                    self._callers.send(peer, encode(answer))
        except PenstockError as error:
            self._refuse(peer, 0, error)

    def _make_topics(self) -> int:
        version, turns = self._topics.version, self._topic_turns
        room = 0 if turns.idle else self._callers.unread.room()
        for peer, answer in (answers := turns.turn(room) if room else []):
            self._callers.send(peer, answer)
        for target in ("reput", "coordinator") if self._topics.version != version else ():
            self._stage.bus.notify(target)
        return len(answers)

    def _hello(self, peer: bytes, hello: messages.Hello) -> None:
        session = self._sessions.open(
            hello.producer, hello.session, hello.next_seq, hello.stored_after, peer
        )
        if session is None:
            self._out_of_step(peer, hello.producer, hello.session, hello.next_seq)
            return
        self._retries.drop_before(hello.producer, session.number)
        answer = messages.Welcome(
            hello.producer,
            session.number,
            session.next_seq,
            self._end.wrote,
            self._config.max_message_size_bytes,
            self._config.max_frame_bytes,
            self._stage.generation,
            8 if len(self._host) == 8 else 20,
            self._shape.prop_crc,
            self._rings.most > 0,
        )
        self._callers.send(peer, encode(answer))

    def _open_ring(self, peer: bytes, request: messages.OpenRing) -> messages.ProduceAnswer:
        is_open = self._sessions.belongs(request.producer, peer)
        with self._stage.disk:
            return self._rings.answer(request, is_open, self._clock.monotonic_ms())

    def _out_of_step(self, peer: bytes, producer: int, session: int, seq: int) -> None:
        self._callers.send(peer, encode(messages.OutOfStep(producer, session, seq)))

    def _append(
        self, peer: bytes, request: Append, payload: memoryview, busy: BrokerBusy | None
    ) -> None:
        session = self._sessions.take(request.producer, request.session, request.seq, peer)
        if session is None:
            self._out_of_step(peer, request.producer, request.session, request.seq)
            return
        if busy is not None:
            self._turn_away(peer, request, busy)
            return
        try:
            whole, payload = self._staged.whole(request, self._rings.payload(request, payload))
            frame = self._check.frame(peer, whole, payload, self._clock.monotonic_ms())
        except PenstockError as error:
            self._reject(peer, request, error)
            return
        if not request.retry and request.producer not in self._retries:
            self._commit(frame)
            return
        try:
            self._retries.put(frame, session.stored_after)
        except BrokerBusy as error:
            self._turn_away(peer, request, error)

    def _reject(self, peer: bytes, request: Append, error: PenstockError) -> None:
        """Refuse an invalid frame."""
        if len(request.runs) > 1 or isinstance(error, RingUnavailable):
            # The producer may send the frame's other messages again. They have to be stored before
            # any frame that came later, or their queue would get them out of order.
            self._turn_away(peer, request, error)
        else:
            self._refuse(peer, request.seq, error, request.session)

    def _turn_away(self, peer: bytes, request: Append, error: PenstockError) -> None:
        """Refuse a frame that may come again. The session ends, so that no later frame of the
        producer can be stored before it."""
        self._refuse(peer, request.seq, error, request.session)
        self._sessions.end(request.producer)
        self._retries.drop_behind(request)

    def _look_for_retries(self) -> int:
        """Search for retried frames for a moment, and store what is new in them."""
        steps, now_ms = 0, self._clock.monotonic_ms() if self._retries else 0
        while self._retries and steps < RETRY_STEPS and not self._is_blocked():
            looked = self._retries.turn(now_ms)
            steps += 1
            if looked is not None and looked.error is not None:
                request = looked.frame.request
                self._refuse(looked.frame.peer, request.seq, looked.error, request.session)
            elif looked is not None:
                self._commit(looked.frame._replace(since_ms=now_ms))
            if self._clock.monotonic_ms() - now_ms >= RETRY_MS:
                break
        return steps

    # --- appending ---

    def _commit(self, frame: CheckedFrame) -> None:
        """Store a checked frame, new or one that has waited for room, or refuse it."""
        request, is_new, self._waiting = frame.request, frame is not self._waiting, None
        try:
            check_writable(self._positions, self._paths)
            if is_new and len(frame.starts) > 1:
                check_disk(self._positions, self._paths)
                if frame.move is not None:
                    self._exact.check(frame.move)
            self._store(frame)
        except BrokerBusy as error:
            self._turn_away(frame.peer, request, error)
        except PenstockError as error:
            self._refuse(frame.peer, request.seq, error, request.session)

    def _store(self, frame: CheckedFrame) -> None:
        """Store a checked frame and answer it, or keep it while there is no room."""
        if frame.topics != self._topics.version and (error := self._check.again(frame.runs)):
            self._reject(frame.peer, frame.request, error)
            return
        runs = frame.stored
        if len(frame.starts) > 1:
            end = self._end.place(frame.runs, frame.starts)
            if end > self._end.room():
                self._wait_for_room(frame, end)
                return
            try:
                self._end.prepare(end)
            except OSError as error:
                if error.errno in RESOURCE_EXHAUSTED:
                    raise  # this process lacks it, not the disk: a new process has it again
                self._turn_away(frame.peer, frame.request, segment_missing(error, self._paths))
                return
            try:
                runs = frame.with_stored(self._frames.put(frame))
            except InvalidMessage as error:
                self._reject(frame.peer, frame.request, error)
                return
        self._acknowledge(frame, runs)

    def _acknowledge(self, frame: CheckedFrame, runs: tuple[StoredRun, ...]) -> None:
        """Answer now, or once the disk has the log up to its present end."""
        request, is_sync = frame.request, self._config.sync_flush
        durable = request.ack == "durable" or not request.ack and is_sync
        if not is_sync:
            # the gateway reads the log with each answer, so an answer notifies it already
            is_told = not durable and self._callers.is_gateway(frame.peer)
            self._bells.readable(len(frame.data), "gateway" if is_told else "")
        producer, stored_ms = request.producer, self._positions["wrote_timestamp"]
        answer = Appended(producer, request.session, request.seq, runs, stored_ms, self._host)
        if durable:
            deadline_ms = self._clock.monotonic_ms() + self._config.sync_flush_timeout_ms
            end, stored_ns = self._end.wrote, self._positions.published_ns("wrote")
            self._pending.add(end, deadline_ms, frame.peer, answer, stored_ns)
            self._positions.publish("flush_wanted", end)
        else:
            self._callers.send(frame.peer, encode(answer))
        self._bells.stored("committer", self._end.wrote, at_once=durable or is_sync)
        if self._end.entered_segment():
            self._stage.bus.notify("allocator")

    def _wait_for_room(self, frame: CheckedFrame, end: int) -> None:
        """Keep the frame until the committer or allocator makes room; refuse it once it is late."""
        self._positions.publish("append_wanted", end)
        self._stage.bus.notify("allocator")
        self._stage.bus.notify("committer")
        fast = self._config.fast_fail_if_no_buffer_in_store_pool
        waited_ms = self._clock.monotonic_ms() - frame.since_ms
        error = no_room(self._positions, self._paths, end, waited_ms, fast=fast)
        if error is None:
            self._waiting = frame
        else:
            self._turn_away(frame.peer, frame.request, error)
