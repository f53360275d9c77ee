"""Models of the other side of the wire, and wires that break, for the cores of the clients.

The writer's model works on the real `Sessions` and the real `place`, and finds the copies of a
retry only after the offset that the producer has named; rings are real ones. Its wire delays,
breaks, still delivers what was on a broken connection, and refuses what does not fit into its
buffers.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path
from threading import Condition
from typing import Any, NamedTuple

import pytest
import zmq
from msgspec.structs import replace

from penstock.actors.writer.log_appender import place
from penstock.actors.writer.payloads import producer_rings
from penstock.actors.writer.payloads.producer_rings import ProducerRings
from penstock.actors.writer.sessions import Sessions
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.sending import frame_ring
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.timeouts import REPEAT_MS
from penstock.shared.errors import (
    BrokerBusy,
    PenstockError,
    QueueNotFound,
    RingUnavailable,
    SegmentUnavailable,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.message_id import key_origin
from penstock.shared.formats.properties import LOST, encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_outline import unique_key_of
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.active import check_frame
from penstock.shared.loops.forms import NO_ROOM, RANGE
from penstock.shared.memory import ring_file, run_directory
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.memory.run_directory import (
    Endpoints,
    Run,
    boot_id,
    new_run_directory,
    write_run,
)
from penstock.shared.wire import introduction, messages
from penstock.shared.wire.introduction import PROTOCOL, Greeted
from penstock.shared.wire.messages import encode, refusal
from penstock.shared.wire.pulled_parts import Place

SEGMENT = 2048
HOST = b"\x7f\0\0\1\0\0\x51\xaf"
QUEUES = {"a": 2, "b": 1, "c": 1}
Answer = Callable[[bytes, messages.ProduceAnswer], None]


class Stored(NamedTuple):
    """One message in the model's log."""

    key: str
    topic: str
    queue_id: int
    queue_offset: int
    position: int


class Writer:
    """The other side: what `actors/writer.py` promises, without files, clocks or sockets."""

    def __init__(self, answer: Answer, run: Run | None = None) -> None:
        """With a `run` it has rings, in its directory."""
        self.log: list[Stored] = []
        self.generation = 0
        self._run = run
        self._rings: ProducerRings | None = None
        self._positions = Positions(run.positions, "writer") if run else None
        self.from_ring = self.now_ms = 0
        self.wrote = self.flushed = self.outages = 0
        self.refuse_next = self.busy_next = False
        # topics that were there when they were asked for, and how many queues each has now
        self.gone: set[str] = set()
        self.queues = dict(QUEUES)
        # stored by a try before a power failure that left the beginning of a frame
        self.refused_in_part: set[str] = set()
        self._answer = answer
        self.begin()

    def begin(self) -> None:
        """A new process: what was published is there, what was in its memory is not."""
        self._sessions = Sessions()
        self._pending: deque[tuple[int, bytes, messages.ProduceAnswer]] = deque()
        self.generation += 1
        if self._run is not None and self._positions is not None:
            self.close_rings()
            self._rings = ProducerRings(self._run, self._positions, 2, 1 << 22)

    def close_rings(self) -> None:
        if self._rings is not None:
            self._rings.close()

    def lose_power(self, survivors: int) -> None:
        """The first `survivors` messages that were not flushed have reached the disk."""
        self.outages += 1
        flushed = sum(stored.position < self.flushed for stored in self.log)
        gone = self.log[flushed + survivors :]
        self.log = self.log[: flushed + survivors]
        self.wrote = gone[0].position if gone else self.wrote
        self.flushed = self.wrote
        self.begin()

    def flush(self) -> None:
        self.flushed = self.wrote
        while self._pending:
            _, peer, answer = self._pending.popleft()
            self._answer(peer, answer)

    def receive(self, peer: bytes, parts: tuple[bytes, ...]) -> None:
        request = messages.decode_produce_request(parts[0])
        if isinstance(request, messages.Route):
            queues = self.queues.get(request.topic, 0)
            none = refusal(
                TopicNotFound("there is no topic of this name", request.topic), request.request
            )
            routed = messages.Routed(request.request, request.topic, queues)
            self._answer(peer, routed if queues else none)
        elif isinstance(request, messages.CreateTopic):
            self._answer(peer, messages.Routed(request.request, request.topic, request.queues))
        elif isinstance(request, messages.ListTopics):
            self._answer(peer, messages.TopicList(request.request, QUEUES))
        elif isinstance(request, messages.Hello):
            self._hello(peer, request)
        elif isinstance(request, messages.OpenRing):
            self._open_ring(peer, request)
        else:
            self._append(peer, request, parts[1])

    def _open_ring(self, peer: bytes, request: messages.OpenRing) -> None:
        assert self._rings is not None and self._run is not None
        try:
            if not self._sessions.belongs(request.producer, peer):
                raise RingUnavailable("the connection has a session", request.producer)
            ring = self._rings.open(request.producer, self.now_ms)
        except PenstockError as error:
            self._answer(peer, refusal(error, request.request))
            return
        size = ring_file.RING_BYTES
        answer = messages.RingOpened(
            request.request, self._run.run_id, ring.number, size, ring.token
        )
        self._answer(peer, answer)

    def _hello(self, peer: bytes, hello: messages.Hello) -> None:
        session = self._sessions.open(
            hello.producer, hello.session, hello.next_seq, hello.stored_after, peer
        )
        if session is None:
            self._out_of_step(peer, hello, hello.next_seq)
            return
        welcome = messages.Welcome(
            hello.producer,
            session.number,
            session.next_seq,
            self.wrote,
            1 << 20,
            1 << 22,
            self.generation,
            rings=self._rings is not None,
        )
        self._answer(peer, welcome)

    def _append(self, peer: bytes, request: messages.Append, payload: bytes) -> None:
        session = self._sessions.take(request.producer, request.session, request.seq, peer)
        if session is None:
            self._out_of_step(peer, request, request.seq)
            return
        if request.span is not None:
            assert self._rings is not None and not payload
            payload = bytes(self._rings.read(request.producer, request.span))
            self.from_ring += 1
        wanted = [(run.topic.encode(), run.queue_id, run.count) for run in request.runs]
        starts = check_frame(payload, wanted, 1 << 20)
        if self.busy_next:
            self._turn_away(peer, request)
            return
        keys = [
            unique_key_of(memoryview(payload)[at:stop]).decode()
            for at, stop in zip(starts, starts[1:], strict=False)
        ]
        if wrong := [run for run in request.runs if run.topic in self.gone]:
            if len(request.runs) > 1:
                self._sessions.end(request.producer)
            error = TopicNotFound("there is no topic of this name", wrong[0].topic)
            self._answer(peer, refusal(error, request.seq, request.session))
            return
        if wrong := [run for run in request.runs if run.queue_id >= self.queues.get(run.topic, 99)]:
            if len(request.runs) > 1:
                self._sessions.end(request.producer)
            lacking = QueueNotFound("the topic has no such queue", wrong[0].queue_id)
            self._answer(peer, refusal(lacking, request.seq, request.session))
            return
        runs = self._runs_of_a_retry(keys, session.stored_after) if request.retry else []
        if len(runs) < len(keys):
            if self.refuse_next:
                self._refuse(peer, request)
                self.refused_in_part.update(keys[: len(runs)])
                return
            runs += self._store(request, keys, starts, len(runs))
        answer = messages.Appended(
            request.producer, request.session, request.seq, tuple(runs), 99, HOST
        )
        if request.ack == "written":
            self._answer(peer, answer)
        else:
            self._pending.append((self.wrote, peer, answer))

    def _out_of_step(
        self, peer: bytes, request: messages.Hello | messages.Append, seq: int
    ) -> None:
        self._answer(peer, messages.OutOfStep(request.producer, request.session, seq))

    def _turn_away(self, peer: bytes, request: messages.Append) -> None:
        self.busy_next = False
        self._sessions.end(request.producer)
        busy = BrokerBusy("a frame waits less than 200 ms", "201 ms", retry_after_ms=70)
        self._answer(peer, refusal(busy, request.seq, request.session))

    def _refuse(self, peer: bytes, request: messages.Append) -> None:
        self.refuse_next = False
        self._sessions.end(request.producer)
        full = SegmentUnavailable("the next segment can be made", "disk full")
        self._answer(peer, refusal(full, request.seq, request.session))

    def _runs_of_a_retry(self, keys: list[str], stored_after: int) -> list[messages.StoredRun]:
        known = {each.key: each for each in self.log if each.position >= stored_after}
        runs = []
        for i, key in enumerate(keys):
            if key not in known:
                break
            runs.append(messages.StoredRun(i, known[key].queue_offset, known[key].position))
        return runs

    def _store(
        self, request: messages.Append, keys: list[str], starts: list[int], first: int
    ) -> list[messages.StoredRun]:
        """Store the records from `first` on, each with a run of its own; a batch in one segment."""
        stored, at = [], 0
        for run in request.runs:
            stop = at + run.count
            left = range(max(at, first), stop)
            units = [left] if run.batch and left else [range(i, i + 1) for i in left]
            for unit in units:
                size = starts[unit.stop] - starts[unit.start]
                (placed,) = place([0, size], self.wrote, SEGMENT)
                for i in unit:
                    position = placed.position + starts[i] - starts[unit.start]
                    offset = self._next_offset(run.topic, run.queue_id)
                    stored.append(messages.StoredRun(i, offset, position))
                    self.log.append(Stored(keys[i], run.topic, run.queue_id, offset, position))
                self.wrote = placed.position + size
            at = stop
        return stored

    def _next_offset(self, topic: str, queue_id: int) -> int:
        return sum((s.topic, s.queue_id) == (topic, queue_id) for s in self.log)


class Connection:
    """Two pipes. What was sent on a broken one may still arrive at the writer, but no answer."""

    def __init__(self, number: int) -> None:
        self.peer = b"peer %d" % number
        self.up: deque[tuple[bytes, ...]] = deque()
        self.down: deque[bytes] = deque()


class Wire:
    """The producer core at one end, the writer at the other, time, and what breaks between."""

    queues = QUEUES
    host = HOST

    def __init__(self, timeout_ms: int = 1 << 40, run: Run | None = None) -> None:
        self.now_ms = 1000
        origin = key_origin(bytes([127, 0, 0, 1]), NOW_MS)
        self.encoder = Encoder(bytes([127, 0, 0, 1]), origin)
        packer = Packer(self.encoder, FrameRing(run is not None))
        self.core = ProducerCore("tcp://x:1", Condition(), timeout_ms, "", packer)
        self.writer = Writer(self._answer, run)
        self.count = 0
        self.now: Connection | None = None
        self.old: list[Connection] = []
        self.connect()

    def connect(self) -> None:
        if self.now is None:
            self.count += 1
            self.now = Connection(self.count)

    def cut(self, arrived: int) -> None:
        """Break the connection; the first `arrived` requests on it will still arrive."""
        if self.now is not None:
            while len(self.now.up) > arrived:
                self.now.up.pop()
            self.old.append(self.now)
            self.now = None

    def _answer(self, peer: bytes, answer: messages.ProduceAnswer) -> None:
        if self.now is not None and self.now.peer == peer:
            self.now.down.append(encode(answer))

    def send(
        self, topic: str, shard: str | None, queue: int | None, ack: str, size: int
    ) -> SendFuture:
        """What `Producer.send` does."""
        body, now_ms = b"x" * size, NOW_MS + self.now_ms
        plain = topic, body, None, None, shard, queue, ack, now_ms
        while (taken := self.core.intake.take(*plain)) is NO_ROOM:
            self.core.open_frame(ack)
        if taken is not None:
            return taken
        return self.core.send(topic, BatchMessage(body), shard, queue, ack, True, now_ms)

    def send_batch(self, topic: str, queue: int | None, ack: str, sizes: list[int]) -> SendFuture:
        """What `Producer.send_batch` does."""
        bodies, now_ms = [b"x" * size for size in sizes], NOW_MS + self.now_ms
        while (taken := self.core.intake.take_batch(topic, bodies, queue, ack, now_ms)) is NO_ROOM:
            self.core.open_frame(ack)
        if taken is not None:
            return taken
        return self.core.send_batch(topic, bodies, None, queue, ack, True, now_ms)

    def pump(self, buffers: int) -> None:
        """The producer's thread, once; at most this many requests fit into the socket."""
        self.core.tick(self.now_ms)
        for number, parts in enumerate(list(self.core.outgoing(self.now_ms))):
            if self.now is None or number >= buffers:
                self.core.not_connected(self.now_ms)
                return
            self.now.up.append(tuple(bytes(part) for part in parts))

    def to_writer(self, connection: Connection, count: int) -> None:
        self.writer.now_ms = self.now_ms
        for _ in range(min(count, len(connection.up))):
            self.writer.receive(connection.peer, connection.up.popleft())

    def to_producer(self, count: int) -> None:
        answers = self.now.down if self.now is not None else deque()
        for _ in range(min(count, len(answers))):
            self.core.received([answers.popleft()], self.now_ms)

    def close(self) -> None:
        """Let go of the rings."""
        self.core.fail_all(StoreUnavailable("the producer is open", "it was closed"))
        self.writer.close_rings()

    def heal(self, rounds: int = 60) -> None:
        """Let everything work for a while: six seconds, of which one must do."""
        self.connect()
        for _ in range(rounds):
            assert self.now is not None
            self.now_ms += max(1, min(self.core.wait_ms(self.now_ms), 100))
            self.pump(1000)
            for connection in (*self.old, self.now):
                self.to_writer(connection, 1000)
            self.writer.flush()
            self.to_producer(1000)


@pytest.fixture
def make_wire_with_ring(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Wire]:
    """Wire(timeout_ms) whose producer asks for a ring at once; it is full with a few frames."""
    for module in (ring_file, producer_rings):
        monkeypatch.setattr(module, "RING_BYTES", 4096)
    monkeypatch.setattr(frame_ring, "ENOUGH_BYTES", 0)
    monkeypatch.setattr(frame_ring, "LEAST_FRAME_BYTES", 0)
    monkeypatch.setattr(run_directory, "_MEMORY", short_path)
    ends = Endpoints("", "", "", "")

    def make(timeout_ms: int = 1 << 40) -> Wire:
        run_id, directory, _ = new_run_directory(short_path, 0)
        run = Run(run_id, boot_id(), str(directory), os.getpid(), 0, ends, True)
        create_positions(run.positions)
        return Wire(timeout_ms, run)

    return make


class Mute(NamedTuple):
    """Two endpoints where somebody says that he is a broker, and nothing else."""

    produce: str
    consume: str


@pytest.fixture
def mute() -> Iterator[Mute]:
    """A broker that hangs: it takes connections and answers nobody, as long as the test runs."""
    with zmq.Context() as context, ExitStack() as stack:
        sockets = [stack.enter_context(context.socket(zmq.ROUTER)) for _ in range(2)]
        waker = os.eventfd(0)
        stack.callback(os.close, waker)
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in sockets]
        found = Mute(*(f"tcp://127.0.0.1:{port}" for port in ports))

        def greet() -> None:
            poller = zmq.Poller()
            for each in (*sockets, waker):
                poller.register(each, zmq.POLLIN)
            while True:
                for ready, _ in poller.poll():
                    if ready == waker:
                        return
                    peer, said = ready.recv_multipart()[:2]
                    if introduction.decode_greet(said) is not None:
                        serves = ("producers", "consumers")[sockets.index(ready)]
                        words = Greeted(PROTOCOL, "1", serves, *found, "0" * 16, "/mute", 1)
                        ready.send_multipart((peer, introduction.encode(words)))

        thread = threading.Thread(target=greet)
        thread.start()
        yield found
        os.eventfd_write(waker, 1)
        thread.join()
        for each in sockets:
            each.linger = 0


# --- the consumer's side ---

NOW_MS = 1_700_000_000_000


class Queue(NamedTuple):
    """The bodies of a queue from offset 0 on, their times, and the first that has not expired."""

    bodies: list[bytes]
    times: list[int]
    low: int = 0


class Log(NamedTuple):
    """A store whose log a consumer finds by the id of its run, with segments for what it reads."""

    run_id: str
    directory: Path

    def put(self, base: int, pieces: list[bytes]) -> bytes:
        """A segment that has these pieces, with other bytes around each; their ranges, packed."""
        raw, ranges = b"", b""
        for piece in pieces:
            raw += b"other"
            ranges += RANGE.pack(base + len(raw), base + len(raw) + len(piece))
            raw += piece
        (self.directory / segment_name(base)).write_bytes(raw + b"other")
        return ranges


class Reader:
    """What `actors/reader.py` promises, for one topic; with a `log` it has files for answers."""

    def __init__(self, declared: int = 0, log: Log | None = None) -> None:
        self.log = log
        self.from_log = 0
        self.queues: dict[int, Queue] = {}
        self.declared = declared
        self.now_ms = NOW_MS
        # (queue id, offset) of messages that a repair has put tombstones for
        self.lost: set[tuple[int, int]] = set()

    def append(self, queue_id: int, count: int) -> None:
        queue = self.queues.setdefault(queue_id, Queue([], []))
        for _ in range(count):
            self.now_ms += 10
            queue.bodies.append(f"{queue_id}/{len(queue.bodies)}".encode())
            queue.times.append(self.now_ms)

    def expire(self, queue_id: int, low: int) -> None:
        if queue_id in self.queues:
            queue = self.queues[queue_id]
            low = min(max(low, queue.low), len(queue.bodies))
            self.queues[queue_id] = queue._replace(low=low)

    def answer(
        self, parts: tuple[bytes, ...], at_most: int, final: bool
    ) -> tuple[list[bytes] | None, tuple[bytes, ...] | None]:
        """The answer, or None while there is none; and the pull as it is held from then on, unless
        that was its last answer. One gives this many messages at most."""
        request = messages.decode_consume_request(parts[0])
        if isinstance(request, messages.Describe):
            return [encode(self._describe(request))], None
        slices, pieces = [], []
        news = len(self.queues) > request.known_queues
        for queue_id, offset in sorted(request.cursors.items()):
            queue = self.queues.get(queue_id)
            if queue is None:
                continue
            low, high = queue.low, len(queue.bodies)
            if offset < low:
                slices.append(messages.QueueSlice(queue_id, offset, offset, low, high, 0))
            elif offset < high and at_most > 0:
                stop = min(high, offset + at_most)
                records = [self._record(queue_id, i) for i in range(offset, stop)]
                at_most -= stop - offset
                pieces.append(records)
                size = sum(map(len, records))
                slices.append(messages.QueueSlice(queue_id, offset, stop, low, high, size))
        if not (slices or news or final):
            return None, parts
        answer = messages.Pulled(request.request, tuple(slices), tuple(sorted(self.queues)), "")
        if pieces and request.direct and self.log:
            places, ranges = [], b""
            for records in pieces:
                self.from_log += 1
                base = self.from_log << 20
                ranges += self.log.put(base, records)
                places.append(Place(base, len(records)))
            answer = replace(answer, run_id=self.log.run_id, places=tuple(places))
            return [encode(answer), ranges], None
        held = None
        if pieces and not news and all(part.next_offset == part.max_offset for part in slices):
            held, answer = self._goes_on(request, answer)
        return [encode(answer), b"".join(chain.from_iterable(pieces))], held

    def _goes_on(
        self, pull: messages.Pull, answer: messages.Pulled
    ) -> tuple[tuple[bytes, ...] | None, messages.Pulled]:
        """The pull after its answer, and the answer that says so."""
        if pull.credit <= 1:
            return None, answer
        cursors = pull.cursors | {part.queue_id: part.next_offset for part in answer.slices}
        again = replace(pull, cursors=cursors, credit=pull.credit - 1)
        return (encode(again),), replace(answer, credit=again.credit)

    def lose_files(self) -> None:
        """What answers lead to is there no more."""
        for path in self.log.directory.iterdir() if self.log else ():
            path.unlink()

    def _record(self, queue_id: int, offset: int) -> bytes:
        body = self.queues[queue_id].bodies[offset]
        is_lost = (queue_id, offset) in self.lost
        properties = encode_properties({LOST: "true"} if is_lost else {})
        return encode_record(
            Record("orders", body, properties, queue_id=queue_id, queue_offset=offset)
        )

    def _describe(self, request: messages.Describe) -> messages.Described:
        found = []
        for queue_id in sorted(self.queues.keys() | set(range(self.declared))):
            queue = self.queues.get(queue_id, Queue([], []))
            high = len(queue.bodies)
            at = high
            if request.at_ms >= 0:
                later = (i for i in range(queue.low, high) if queue.times[i] >= request.at_ms)
                at = next(later, high)
            found.append(messages.QueueRange(queue_id, queue.low, high, at))
        return messages.Described(request.request, request.topic, bool(found), tuple(found))


class ConsumerWire:
    """A core at one end, the reader at the other; what is on its way may be lost or late."""

    def __init__(self, reader: Reader, **options: Any) -> None:
        self.now_ms = 5000
        self.reader = reader
        usual = {"timeout_ms": 10_000}
        self.core = ConsumerCore("tcp://x:1", "orders", NOW_MS, **(usual | options))
        self.requests: list[tuple[bytes, ...]] = []
        self.answers: list[list[bytes]] = []
        self.seen: list[tuple[int, int, bytes]] = []

    def ask(self, connected: bool = True) -> None:
        """What the consumer's loop does with what the core wants to send."""
        for parts in self.core.outgoing(self.now_ms):
            if connected:
                self.requests.append(parts)
            else:
                self.core.not_connected(self.now_ms)

    def read(self, at_most: int = 1000, final: bool = False) -> None:
        """The reader answers what it has been asked, and keeps what it has no answer for."""
        kept = []
        for parts in self.requests:
            answer, held = self.reader.answer(parts, at_most, final)
            if answer is not None:
                self.answers.append(answer)
            if held is not None:
                kept.append(held)
        self.requests = kept[-1:]  # one is held for each consumer

    def arrive(self) -> None:
        """What was answered is there, and nobody has taken it."""
        answers, self.answers = self.answers, []
        for answer in answers:
            self.core.received(answer, self.now_ms)
            if self.core.has_unread:
                assert self.core.fetch(self.now_ms) == self.core.fetch(self.now_ms)
                self.core.fetched(self.core.fetch(self.now_ms))

    def hear(self) -> None:
        self.arrive()
        while taken := self.core.take():
            self.seen += [(each.queue_id, each.queue_offset, each.body) for each in taken]

    def run(self, rounds: int = 20) -> list[tuple[int, int, bytes]]:
        """Everything works; what has been seen in all."""
        for number in range(rounds):
            if self.core.finished:
                break
            self.now_ms += REPEAT_MS
            self.ask()
            self.read(final=number % 3 == 2)
            self.hear()
        return self.seen


@pytest.fixture
def make_wire() -> Callable[..., Wire]:
    """Wire(timeout_ms): a producer core at one end and a model of the writer at the other."""
    return Wire


@pytest.fixture
def make_reader() -> Callable[..., Reader]:
    """Reader(declared): a model of the reader, with this many queues in config/topics.json."""
    return Reader


@pytest.fixture
def make_log(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Log]:
    """Log(): a store of its own on this machine."""
    monkeypatch.setattr(run_directory, "_MEMORY", short_path)
    numbers = count()

    def make() -> Log:
        paths = StorePaths(short_path / f"store-{next(numbers)}")
        for directory in (paths.commit_log, paths.own):
            directory.mkdir(parents=True)
        run_id, directory, _ = new_run_directory(paths.root, 0)
        ends = Endpoints("", "", "", "")
        write_run(paths, Run(run_id, boot_id(), str(directory), os.getpid(), 0, ends, True))
        return Log(run_id, paths.commit_log)

    return make


@pytest.fixture
def make_consumer() -> Callable[..., ConsumerWire]:
    """ConsumerWire(reader, **options): a consumer core at one end, the reader at the other."""
    return ConsumerWire


@pytest.fixture
def frozen() -> Callable[[Any, str], AbstractContextManager[None]]:
    """Within the block an actor of a broker stands still."""

    @contextmanager
    def freeze(broker: Any, actor: str) -> Iterator[None]:
        # with its supervisor, which would put another one in its place
        status = broker.status()
        pid = next(each["pid"] for each in status["actors"] if each["name"] == actor)
        for each in (status["supervisor_pid"], pid):
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in (pid, status["supervisor_pid"]):
                os.kill(each, signal.SIGCONT)

    return freeze
