"""The writer: takes frames of records from producers and puts them at the end of the log.

Owns:     `wrote`, `wrote_timestamp`, `flush_wanted`, `append_wanted`; the bytes of the pool; queue
          offsets; config/topics.json; the produce endpoint.
Reads:    `committed`, `flushed`, `allocated`, `read_only`, the error words; the queue table.
Hears:    requests of producers; doorbells of the flusher and the allocator.
Rings:    the committer and the allocator.
On crash: the next one goes on at `wrote`. A frame is visible with the one store to `wrote`, so it
          is there whole or not at all. Producers open new sessions and send again what has no
          answer; what was stored is found in the log by its UNIQ_KEY.
"""

from __future__ import annotations

import os
import socket as system_socket
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from penstock.shared import messages
from penstock.shared.actor import TICK_MS, Stage
from penstock.shared.bus import serve
from penstock.shared.commit_log import LogReader
from penstock.shared.errors import (
    FlushTimeout,
    InvalidMessage,
    PenstockError,
    ProtocolError,
    QueueNotFound,
    SegmentUnavailable,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.hot_loops import check_frame, unique_key_at
from penstock.shared.layout import StorePaths
from penstock.shared.log_end import LogEnd
from penstock.shared.messages import Append, Appended, StoredRun, encode, refusal
from penstock.shared.quarantine import read_only_error
from penstock.shared.retry_index import RetryIndex
from penstock.shared.sessions import Sessions
from penstock.shared.topic_admin import TopicAdmin

FRAMES_AT_ONCE = 32
ALLOCATE_TIMEOUT_MS = 5000
RETRY_MEMORY_MS = 30_000
# Clients drop what they have not read yet when a connection closes: leave them this time for it.
LINGER_MS = 50
_ACKS = ("", "durable", "written")


class _Pending(NamedTuple):
    """An answer that leaves when the disk has the log up to `end`."""

    end: int
    deadline_ms: int
    peer: bytes
    answer: bytes
    request: Append


class _Frame(NamedTuple):
    """A checked frame: `starts` of its records; `stored` are records of it from an earlier try."""

    peer: bytes
    request: Append
    data: bytearray
    starts: list[int]
    stored: tuple[StoredRun, ...]
    since_ms: int


class Writer:
    """See the head of this file."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._positions = stage.positions
        self._clock = stage.clock
        self._sessions = Sessions()
        self._pending: deque[_Pending] = deque()
        self._waiting: _Frame | None = None
        self._last_retry_ms = 0
        self._drained_at_ms = -1

    def start(self) -> None:
        config, run = self._config, self._stage.run
        self._reader = LogReader(config, run, self._positions)
        self._end = LogEnd(config, run, self._positions, self._pieces, self._clock)
        self._retries = RetryIndex(self._pieces)
        self._topics = TopicAdmin(StorePaths(config.store).topics, config, self._clock)
        self._host = _host(config.broker_ip, run.endpoints.produce)
        endpoints = (run.endpoints.produce, run.endpoints.produce_ipc)
        self._socket = serve(
            self._stage.context, endpoints, config.max_frame_bytes, self._stage.listening
        )

    def work(self) -> int:
        done = self._release()
        if self._waiting is not None:
            self._store(self._waiting)
            done += self._waiting is None
        while self._waiting is None and self._may_receive() and done < FRAMES_AT_ONCE:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._receive(parts)
            done += 1
        if not done and self._clock.monotonic_ms() > self._last_retry_ms + RETRY_MEMORY_MS:
            self._retries.forget()
        return done

    def inputs(self) -> list[zmq.Socket[bytes]]:
        return [self._socket] if self._waiting is None and self._may_receive() else []

    def idle_ms(self) -> int:
        return TICK_MS

    def let_go(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._end.let_go(now_ms)
        # what retries are compared with may have expired; it is built again when one comes
        if self._reader.let_go(now_ms) > self._config.destroy_mapped_file_interval_forcibly_ms:
            self._retries.forget()

    def drained(self) -> bool:
        if self._pending or self._waiting is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        if self._drained_at_ms < 0:
            self._drained_at_ms = now_ms
        return now_ms - self._drained_at_ms >= LINGER_MS

    def close(self) -> None:
        self._socket.close(linger=LINGER_MS)
        self._end.close()
        self._reader.close()

    def _may_receive(self) -> bool:
        """Whether another frame may come in: unflushed answers are bounded, and so is memory."""
        if self._stage.stopping:
            return False
        unflushed = self._end.wrote - self._pending[0].end if self._pending else 0
        return unflushed < self._config.max_pending_bytes

    # --- answers that wait for the disk ---

    def _release(self) -> int:
        """Send the answers whose messages are on disk by now, or can no longer get there."""
        flushed, released = self._positions["flushed"], 0
        while self._pending and self._pending[0].end <= flushed:
            pending = self._pending.popleft()
            self._socket.send_multipart((pending.peer, pending.answer))
            released += 1
        if not self._pending:
            return released
        if self._positions["flush_error"]:
            while self._pending:
                self._fail(self._pending.popleft(), self._read_only())
                released += 1
        now_ms = self._clock.monotonic_ms()
        while self._pending and self._pending[0].deadline_ms < now_ms:
            error = FlushTimeout(
                "a message is on disk within sync_flush_timeout_ms",
                f"{self._config.sync_flush_timeout_ms} ms went by",
                "it is stored and will be flushed; look at the disk",
            )
            self._fail(self._pending.popleft(), error)
            released += 1
        return released

    def _fail(self, pending: _Pending, error: PenstockError) -> None:
        request = pending.request
        self._refuse(pending.peer, request.seq, error, request.session)

    def _refuse(self, peer: bytes, request: int, error: PenstockError, session: int = 0) -> None:
        self._socket.send_multipart((peer, encode(refusal(error, request, session))))

    def _read_only(self) -> StoreUnavailable:
        return StoreUnavailable(
            "the store takes messages",
            f"flushing failed with errno {self._positions['flush_error']}; the store is read-only",
            "look at the disk, then restart the broker",
        )

    def _check_disk(self) -> None:
        if percent := self._positions["disk_full"]:
            raise StoreUnavailable(
                "the store takes messages",
                f"disk full: {percent}% of it are used",
                "nothing is stored; send again once there is room, which old messages may make by "
                "going (penstock clean)",
            )

    # --- requests ---

    def _receive(self, parts: list[bytes]) -> None:
        peer = parts[0]
        try:
            if len(parts) < 2:
                raise ProtocolError("a request has a header", f"{len(parts) - 1} parts")
            request = messages.decode_produce_request(parts[1])
            if isinstance(request, Append):
                if len(parts) != 3:
                    raise ProtocolError("Append has one payload", f"{len(parts) - 2} payloads")
                self._append(peer, request, parts[2])
            elif isinstance(request, messages.Hello):
                self._hello(peer, request)
            else:
                self._socket.send_multipart((peer, encode(self._administer(request))))
        except PenstockError as error:
            self._refuse(peer, 0, error)

    def _administer(
        self, request: messages.Route | messages.CreateTopic | messages.ListTopics
    ) -> messages.ProduceAnswer:
        try:
            return self._topics.answer(request)
        except PenstockError as error:
            return refusal(error, request.request)

    def _hello(self, peer: bytes, hello: messages.Hello) -> None:
        session = self._sessions.open(
            hello.producer, hello.session, hello.next_seq, hello.stored_after, peer
        )
        if session is None:
            self._out_of_step(peer, hello.producer, hello.session, hello.next_seq)
            return
        config = self._config
        answer = messages.Welcome(
            hello.producer,
            session.number,
            session.next_seq,
            self._end.wrote,
            config.max_message_size_bytes,
            config.max_frame_bytes,
            self._stage.generation,
        )
        self._socket.send_multipart((peer, encode(answer)))

    def _out_of_step(self, peer: bytes, producer: int, session: int, seq: int) -> None:
        self._socket.send_multipart((peer, encode(messages.OutOfStep(producer, session, seq))))

    def _append(self, peer: bytes, request: Append, payload: bytes) -> None:
        session = self._sessions.take(request.producer, request.session, request.seq, peer)
        if session is None:
            self._out_of_step(peer, request.producer, request.session, request.seq)
            return
        try:
            starts = self._check(request, payload)
            now_ms = self._clock.monotonic_ms()
            frame = _Frame(peer, request, bytearray(payload), starts, (), now_ms)
            if request.retry:
                frame = self._without_stored(frame, session.stored_after)
            if len(frame.starts) > 1:
                self._check_disk()
            self._store(frame)
        except PenstockError as error:
            self._refuse(peer, request.seq, error, request.session)

    def _check(self, request: Append, payload: bytes) -> list[int]:
        """Everything that can be wrong with a frame, before anything of it is stored."""
        if self._positions["flush_error"]:
            raise self._read_only()
        if self._positions["read_only"]:
            raise read_only_error(StorePaths(self._config.store))
        limit = self._config.max_frame_bytes
        if len(payload) > limit:
            raise InvalidMessage(
                f"a frame has at most {limit} bytes", len(payload), "send fewer messages at once"
            )
        if request.ack not in _ACKS:
            raise InvalidMessage('ack is "durable", "written" or ""', repr(request.ack))
        queues = self._topics.queues(request.topic)
        if not queues:
            raise TopicNotFound("the topic exists", request.topic, self._topics.hint())
        if not 0 <= request.queue_id < queues:
            raise QueueNotFound(
                f"topic {request.topic} has queues 0 to {queues - 1}",
                request.queue_id,
                "choose one of those, or create the topic with more queues",
            )
        starts = check_frame(
            payload,
            request.topic.encode(),
            request.queue_id,
            self._config.max_record_bytes,
            self._config.max_message_size_bytes,
        )
        if len(starts) - 1 != request.count or request.count == 0:
            raise InvalidMessage(
                "a frame holds as many records as its header says, and at least one",
                f"{len(starts) - 1} records, {request.count} said",
            )
        return starts

    # --- appending ---

    def _store(self, frame: _Frame) -> None:
        """Store a checked frame and see to its answer, or keep it while there is no room."""
        self._waiting = None
        runs = frame.stored
        if len(frame.starts) > 1:
            request = frame.request
            end = self._end.place(frame.starts)
            if end > self._end.room():
                self._wait_for_room(frame, end)
                return
            known = len(frame.stored)
            appended = self._end.append(
                request.topic, request.queue_id, frame.data, frame.starts, self._host
            )
            runs += tuple(
                StoredRun(run.first + known, run.queue_offset, run.physical_offset)
                for run in appended
            )
        self._acknowledge(frame, runs)

    def _acknowledge(self, frame: _Frame, runs: tuple[StoredRun, ...]) -> None:
        """Answer now, or when the disk has the log as far as it goes by now."""
        request = frame.request
        answer = encode(
            Appended(
                request.producer,
                request.session,
                request.seq,
                runs,
                self._positions["wrote_timestamp"],
                self._host,
            )
        )
        durable = request.ack == "durable" or not request.ack and self._config.sync_flush
        if durable:
            deadline_ms = self._clock.monotonic_ms() + self._config.sync_flush_timeout_ms
            end = self._end.wrote
            self._pending.append(_Pending(end, deadline_ms, frame.peer, answer, request))
            self._positions.publish("flush_wanted", end)
        else:
            self._socket.send_multipart((frame.peer, answer))
        self._stage.bus.ring("committer")
        if self._end.entered_segment():
            self._stage.bus.ring("allocator")

    def _wait_for_room(self, frame: _Frame, end: int) -> None:
        """Keep the frame until committer or allocator make room, or until that takes too long."""
        self._positions.publish("append_wanted", end)
        self._stage.bus.ring("allocator")
        self._stage.bus.ring("committer")
        # the allocator tries again every second, and says so when it succeeds
        errno = self._positions["allocate_error"]
        no_segment = errno and end > self._positions["allocated"]
        waited_ms = self._clock.monotonic_ms() - frame.since_ms
        if not no_segment and waited_ms <= ALLOCATE_TIMEOUT_MS:
            self._waiting = frame
            return
        rule, value = "a frame finds room in the pool", f"none within {ALLOCATE_TIMEOUT_MS} ms"
        error = StoreUnavailable(rule, value, "the disk is too slow; send again later")
        if end > self._positions["allocated"]:
            error = SegmentUnavailable(
                "the next commit log segment can be made",
                os.strerror(errno) if errno else value,
                "free disk space and send again; the message is not stored",
            )
        self._refuse(frame.peer, frame.request.seq, error, frame.request.session)
        self._sessions.end(frame.request.producer)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """The log between two offsets. A long way may lie between them, so this beats."""
        for piece in self._reader.pieces(start, stop):
            self._stage.beat()
            yield piece

    def _without_stored(self, frame: _Frame, stored_after: int) -> _Frame:
        """The frame without the records that an earlier try has stored, and where those are.

        A frame is stored with one store to `wrote`, or cut from behind by a power failure: what is
        there of it is its beginning.
        """
        self._last_retry_ms = self._clock.monotonic_ms()
        wrote = self._end.wrote
        self._retries.cover(min(stored_after, wrote), wrote)
        view, stored = memoryview(frame.data), []
        for i, at in enumerate(frame.starts[:-1]):
            found = self._retries.find(unique_key_at(view, at, frame.starts[i + 1] - at))
            if found is None:
                break
            stored.append(StoredRun(i, *found))
        cut = frame.starts[len(stored)]
        starts = [start - cut for start in frame.starts[len(stored) :]]
        return frame._replace(data=frame.data[cut:], starts=starts, stored=tuple(stored))


def _host(broker_ip: str, endpoint: str) -> bytes:
    port = int(endpoint.rpartition(":")[2])
    return system_socket.inet_aton(broker_ip) + port.to_bytes(4, "big")
