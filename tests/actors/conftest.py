"""One actor at a time, in this process: real shared memory and files, and a clock moved by hand.

`pipeline` makes the run of a broker without processes. Its actors are started and driven by the
test; what their neighbours would do is done by starting those too, or by setting their positions.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from left_open import LeftOpen

from penstock.actors.writer.log_tail import LogEnd
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.files.durable import make_directory, make_file
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.found_records import piece_of
from penstock.shared.log.reader import LogReader
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
from penstock.shared.memory.roster import row_of
from penstock.shared.memory.run_directory import Endpoints, Run, boot_id
from penstock.shared.memory.transient_store_pool import create_pool
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.listeners import listen_ipc, listen_tcp
from penstock.shared.queue.known_queues import make_known_queues
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.checkpoint_file import make_checkpoint
from penstock.shared.store.watermark import Watermark, make_watermark
from penstock.shared.wire import messages
from penstock.shared.wire.introduction import ENDPOINT_OF
from penstock.shared.wire.sockets import dial

SEGMENT_BYTES = 64 << 10
QUEUE_SEGMENT_BYTES = 20 * 50
POOL_BYTES = 256 << 10
HOST = pack_host("127.0.0.1", 10911)
ANSWER_S = 60
PRODUCER = 4711


class Pipeline:
    """The memory, files and sockets of one run."""

    def __init__(self, store: Path, settings: dict[str, object]) -> None:
        self.config = msgspec.structs.replace(
            Config(
                store_path_root_dir=str(store),
                mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
                mapped_file_size_consume_queue_bytes=QUEUE_SEGMENT_BYTES,
                max_message_size_bytes=16 << 10,
                transient_store_pool_bytes=POOL_BYTES,
                max_queues=64,
            ),
            **settings,
        )
        self.paths = StorePaths(store)
        for directory in ("commit_log", "consume_queue", "staging"):
            make_directory(getattr(self.paths, directory))
        make_directory(self.paths.topics.parent)
        make_checkpoint(self.paths.checkpoint, Checkpoint())
        make_known_queues(self.paths.known_queues)
        make_watermark(self.paths.watermark, Watermark("0" * 16, True, 0))
        # a socket's path is short, and a test's directory is not
        self._memory = Path(tempfile.mkdtemp(prefix="actors-"))
        listeners = {name: listen_tcp("127.0.0.1", 0) for name in ENDPOINT_OF.values()}
        for name in tuple(listeners):
            listeners[f"{name}_ipc"] = listen_ipc(self._memory / f"{name}.ipc")
        self._listeners = list(listeners.values())
        self.run = Run(
            "0" * 16,
            boot_id(),
            str(self._memory),
            os.getpid(),
            0,
            Endpoints(**{name: each.endpoint for name, each in listeners.items()}),
            self.config.transient_store_pool_enable,
        )
        create_positions(self.run.positions)
        create_queue_table(self.run.queues, self.config.max_queues)
        if self.run.pool_enabled:
            create_pool(self.run.pool, POOL_BYTES)
        self.clock = ManualClock()
        self.positions = Positions(self.run.positions, owner="supervisor")
        # nothing waits: a scheduler says where, once it has looked
        self.positions.initialise("delay_floor", 1 << 62)
        self._living: dict[int, tuple[Actor | None, Stage]] = {}
        self._clients: list[Any] = []
        self._context: zmq.Context[Any] = zmq.Context()
        self._end: LogEnd | None = None

    # --- actors ---

    def stage(self, name: str, generation: int = 0) -> Stage:
        """A stage by itself: to hear an actor's bells, or to be one by hand."""
        listening = {each.endpoint: each.socket.fileno() for each in self._listeners}
        stage = Stage(name, self.config, self.run, self.clock, generation, listening)
        self._living[id(stage)] = None, stage
        return stage

    def start(self, kind: Callable[[Stage], Any], generation: int = 0) -> Any:
        """Start an actor: Committer, Writer, ..."""
        stage = self.stage(kind.__name__.lower(), generation)
        actor = kind(stage)
        actor.start()
        self._living[id(actor)] = actor, self._living.pop(id(stage))[1]
        return actor

    def stage_of(self, actor: Any) -> Stage:
        return self._living[id(actor)][1]

    def give_neighbours(self, actor: Any) -> None:
        """Those that it notifies are there. In search of them it opens and closes sockets."""
        bus = self.stage_of(actor).bus
        for name in row_of(type(actor).__name__.lower()).notifies:
            neighbour = self.stage(name).bus
            bus.notify(name)
            assert neighbour.bells.poll(ANSWER_S * 1000)

    def crash(self, actor: Any) -> None:
        """The actor is gone without a word; only its memory and files remain."""
        _, stage = self._living.pop(id(actor))
        stage.context.destroy(linger=0)
        _drop(actor, stage)
        stage.positions.close()

    def stop(self, actor: Any) -> None:
        """The actor stops in good order."""
        found, stage = self._living.pop(id(actor))
        stage.stopping = True
        assert found is not None
        settle(found)
        if not found.drained():
            self.clock.advance(1000)
            assert found.drained()
        found.close()
        stage.close()

    # --- what neighbours do ---

    def allocate(self, segments: int) -> None:
        for _ in range(segments):
            base = self.positions["allocated"]
            path = self.paths.commit_log / segment_name(base)
            size = self.config.mapped_file_size_commit_log_bytes
            make_file(self.paths.staging, path, size, sparse=False)
            self.positions.initialise("allocated", base + size)

    def append(
        self,
        count: int = 1,
        size: int = 100,
        topic: str = "orders",
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
    ) -> int:
        """Store records as the writer does; `wrote` afterwards."""
        for _ in range(count):
            raw = records(topic, queue_id, [bytes(size)], properties=properties)
            self.append_frame(topic, queue_id, raw)
        return self.positions["wrote"]

    def append_frame(self, topic: str, queue_id: int, raw: bytes) -> None:
        """Store a frame of records."""
        if self._end is None:
            positions = Positions(self.run.positions, owner="writer")
            reader = LogReader(self.config, self.run, positions)
            self._end = LogEnd(self.config, self.run, positions, reader.pieces, self.clock)
        starts = [0]
        while starts[-1] < len(raw):
            starts.append(starts[-1] + int.from_bytes(raw[starts[-1] : starts[-1] + 4], "big"))
        runs = [messages.QueueRun(topic, queue_id, len(starts) - 1)]
        while self._end.place(runs, starts) > self.positions["allocated"]:
            self.allocate(1)
        assert self._end.place(runs, starts) <= self._end.room(), "the pool is full"
        self._end.append(runs, raw, starts, HOST)

    def log(self, start: int, stop: int) -> bytes:
        """The log's bytes in the segment files."""
        found = b"".join(path.read_bytes() for path in sorted(self.paths.commit_log.iterdir()))
        return found[start:stop]

    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        table = QueueTable(self.run.queues)
        found = {
            key: (table.min_offset(slot), table.max_offset(slot))
            for slot, key in table.keys(0, self.positions["queue_count"])
        }
        table.close()
        return found

    def stored(self, topic: str, queue_id: int) -> list[Record]:
        """All records that a queue leads to by now."""
        reader = QueueReader(self.config, self.run, self.positions)
        found: list[Record] = []
        slot = reader.queues(topic).get(queue_id)
        if slot is not None:
            at, stop = reader.range(slot)
            while at < stop:
                piece, at = reader.read(slot, at, 1 << 20)
                raw, place = bytes(piece_of([piece])), 0
                del piece  # a view of it would keep the file open
                while place < len(raw):
                    found.append(decode_record(raw, place))
                    place += found[-1].total_size
        reader.close()
        return found

    # --- clients ---

    def client(self, endpoint: str) -> Any:
        """A socket that is connected there; not yet, without one."""
        socket = dial(self._context, endpoint) if endpoint else self._context.socket(zmq.DEALER)
        socket.linger = 0
        self._clients.append(socket)
        return socket

    def ask(self, actor: Any, client: Any, *parts: bytes, answers: int = 1) -> list[list[bytes]]:
        """Send a request and drive the actor until this many answers are there."""
        deadline = time.monotonic() + ANSWER_S
        sent, found = not parts, []
        while not sent or len(found) < answers:
            assert time.monotonic() < deadline, "no answer"
            if not sent:
                try:
                    client.send_multipart(parts, zmq.NOBLOCK)
                    sent = True
                except zmq.Again:
                    time.sleep(0.001)
            actor.work()
            if answers and client.poll(1):
                found.append(client.recv_multipart())
        return found

    def close(self) -> None:
        for actor, stage in self._living.values():
            stage.context.destroy(linger=0)
            _drop(actor, stage)
        for each in self._clients:
            each.close()
        self._context.term()
        for each in self._listeners:
            each.socket.close()
        shutil.rmtree(self._memory)


def _drop(actor: Actor | None, stage: Stage) -> None:
    """What the kernel does for a process that has ended, as far as tests have no use for it: its
    thread ends, and its sockets and the files that it reads are closed, of which a test may leave a
    hundred."""
    stage.disk.end()
    for plain in stage.plain:
        plain.close()
    for each in vars(actor).values() if actor is not None else ():
        if isinstance(each, QueueReader):
            each.close()


class ProducerClient:
    """A producer by hand: frames of one session, numbered by themselves."""

    def __init__(self, broker: Any, writer: Any, frame: Callable[..., bytes]) -> None:
        self.broker = broker
        self.writer = writer
        self.socket = broker.client(broker.run.endpoints.produce)
        self.producer = PRODUCER + len(broker._clients)
        self.session = 0
        self.seq = 1
        self._frame = frame

    def ask(self, *parts: bytes, answers: int = 1) -> list[Any]:
        found = self.broker.ask(self.writer, self.socket, *parts, answers=answers)
        return [messages.decode_produce_answer(each[0]) for each in found]

    def hello(self, stored_after: int = 0) -> Any:
        self.session += 1
        return self.ask(
            messages.encode(messages.Hello(self.producer, self.session, self.seq, stored_after))
        )[0]

    def append(
        self,
        bodies: list[bytes],
        *,
        ack: str = "written",
        retry: bool = False,
        keys: str = "",
        queue_id: int = 0,
        answers: int = 1,
        batch: bool = False,
        **records: Any,
    ) -> list[Any]:
        run = messages.QueueRun("orders", queue_id, len(bodies), batch)
        payload = self._frame("orders", queue_id, bodies, keys, **records)
        return self.append_runs([run], payload, ack=ack, retry=retry, answers=answers)

    def append_runs(
        self,
        runs: list[messages.QueueRun],
        payload: bytes,
        *,
        ack: str = "written",
        retry: bool = False,
        answers: int = 1,
        staged: tuple[int, ...] = (),
    ) -> list[Any]:
        """A frame of any runs."""
        said = self.producer, self.session, self.seq, tuple(runs), ack, retry
        header = messages.Append(*said, staged=staged)
        self.seq += 1
        return self.ask(messages.encode(header), payload, answers=answers)

    def answers(self, count: int) -> list[Any]:
        return self.ask(answers=count)


def settle(*actors: Any) -> None:
    """Let actors work until none has anything to do."""
    while any([actor.work() for actor in actors]):
        continue


def records(
    topic: str,
    queue_id: int,
    bodies: list[bytes],
    keys: str = "",
    properties: dict[str, str] | None = None,
    raw_properties: bytes = b"",
    shape: Shape = Shape(),  # noqa: B008 - a tuple
) -> bytes:
    """A produce frame. With `keys` each record has a UNIQ_KEY: that and its number."""
    frame = b""
    for i, body in enumerate(bodies):
        named = (properties or {}) | ({"UNIQ_KEY": f"{keys}{i}"} if keys else {})
        raw = encode_properties(named) + raw_properties
        if shape.prop_crc:
            raw = with_prop_crc_room(raw, True)
        host = bytes(shape.store_host_bytes)
        frame += encode_record(Record(topic, body, raw, queue_id, born_host=HOST, store_host=host))
    return frame


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []
    # an actor limits its process, which here has all tests' actors in it
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def make(**settings: object) -> Pipeline:
        made.append(Pipeline(tmp_path / f"store-{len(made)}", settings))
        return made[-1]

    with LeftOpen() as files:
        yield make
        for each in made:
            each.close()
            for place in (each.paths.root, each.run.path):
                files.close_below(place)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def work() -> Callable[..., None]:
    return settle


@pytest.fixture
def frame() -> Callable[..., bytes]:
    return records


@pytest.fixture
def bells() -> Callable[[Stage], int]:
    """How many bells a stage has heard; waits a moment for the first, as they travel by socket."""

    def count(stage: Stage, timeout_ms: int = ANSWER_S * 1000) -> int:
        stage.bus.bells.poll(timeout_ms)
        return stage.bus.drain()

    return count


@pytest.fixture
def after_a_beat() -> Callable[..., Callable[..., Any]]:
    """A call to the disk that does not return before the actor has beaten."""

    def make(broker: Pipeline, actor: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*told: Any, **options: Any) -> Any:
            beats = broker.positions.life(actor).cycles
            deadline = time.monotonic() + ANSWER_S
            while broker.positions.life(actor).cycles == beats:
                assert time.monotonic() < deadline, "it has fallen silent"
                time.sleep(0.001)
            return call(*told, **options)

        return slow

    return make


@pytest.fixture
def produce_answer() -> Callable[[list[bytes]], messages.ProduceAnswer]:
    return lambda parts: messages.decode_produce_answer(parts[0])


@pytest.fixture
def consume_answer() -> Callable[[list[bytes]], messages.ConsumeAnswer]:
    return lambda parts: messages.decode_consume_answer(parts[0])


@pytest.fixture
def client(frame: Callable[..., bytes]) -> Callable[..., ProducerClient]:
    """A producer with an open session and the topic "orders" with four queues."""

    def make(broker: Any, writer: Any) -> ProducerClient:
        made = ProducerClient(broker, writer, frame)
        made.ask(messages.encode(messages.CreateTopic(1, "orders", 4)))
        assert isinstance(made.hello(broker.positions["wrote"]), messages.Welcome)
        return made

    return make
