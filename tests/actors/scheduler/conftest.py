"""The actors that a delayed message passes, in this process, with a clock moved by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.scheduler import Scheduler
from penstock.actors.scheduler.progress import Progress, ProgressFile
from penstock.actors.writer import Writer
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.messaging.delayed import Delay, delayed
from penstock.shared.wire.messages import Append, Appended, CreateTopic, Hello, QueueRun, encode
from penstock.shared.wire.messages import decode_produce_answer as decode_produced

HOST = pack_host("127.0.0.1", 4711)
# only a hang takes this long, whatever else the machine does
WAIT_S = 120
QUEUES = 4


class Scene:
    """A broker whose actors are driven by `until`, one ms of its clock at each turn."""

    def __init__(self, pipeline: Any, is_first: bool) -> None:
        """`is_first`: the scheduler is there before anything is stored, as in a store's first
        run."""
        self.broker = pipeline
        pipeline.allocate(8)
        pipeline.positions.initialise("delay_floor", 0)
        self.writer = pipeline.start(Writer)
        self.others = [pipeline.start(each) for each in (Committer, Flusher, Reput)]
        self.generation = 1
        self.actor: Any = None
        self._produce = pipeline.client(pipeline.run.endpoints.produce)
        self._session, self._seq, self._number = 1, 0, 0
        if is_first:
            self.start()
            self.until(lambda: self.actor._sender.is_open, "the writer's answer to the scheduler")
        self._tell(encode(CreateTopic(1, "orders", QUEUES)))
        self._tell(encode(Hello(99, 1, 1, 0)))
        if not is_first:
            self.start()

    def start(self) -> None:
        self.broker.positions.supervise("scheduler", generation=self.generation)
        self.actor = self.broker.start(Scheduler, generation=self.generation)
        self.generation += 1

    def crash(self) -> None:
        """The scheduler is killed, and another one started."""
        self.broker.crash(self.actor)
        self.actor = None
        self.start()

    def progress(self, **changes: Any) -> Progress:
        """What the file of the last scheduler says; changes are put into it."""
        paths = self.broker.paths
        kept = ProgressFile(paths.scheduler, paths.delay_offsets)
        found, _ = kept.load()
        if changes:
            kept.save(replace(found, **changes))
        kept.close()
        return found

    def stop(self) -> None:
        """The scheduler stops in order, when all that it has sent has its outcome."""
        self.broker.stage_of(self.actor).stopping = True
        self.until(self.actor.drained, "its answers")
        self.broker.stop(self.actor)
        self.actor = None

    def crash_writer(self) -> None:
        self.broker.crash(self.writer)
        self.writer = self.broker.start(Writer)
        # what was sent on the old connection may be lost with it
        self._produce = self.broker.client(self.broker.run.endpoints.produce)
        self._session += 1
        self._tell(encode(Hello(99, self._session, self._seq + 1, 0)))

    @property
    def now_ms(self) -> int:
        return int(self.broker.clock.now_ms())

    def turn(self, ms: int = 1) -> None:
        for actor in (self.writer, *self.others, *([self.actor] if self.actor else [])):
            actor.work()
        self.broker.clock.advance(ms)

    def until(self, wanted: Callable[[], Any], why: str = "what is waited for", ms: int = 1) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (found := wanted()):
            assert time.monotonic() < deadline, f"{why} does not come"
            self.turn(ms)
        return found

    def _tell(self, *parts: bytes) -> Any:
        """The clock stands still meanwhile: how long a socket takes is the machine's business, and
        what was sent before must not come due by that."""
        self.until(lambda: self._produce.poll(0, 2), "a connection", ms=0)
        self._produce.send_multipart(parts)
        self.until(lambda: self._produce.poll(0), "an answer of the writer", ms=0)
        return decode_produced(self._produce.recv_multipart()[0])

    def put(self, *records: Record) -> Appended:
        answer = self.try_put(*records)
        assert isinstance(answer, Appended), answer
        return answer

    def try_put(self, *records: Record) -> Any:
        """The writer's answer, whatever it is."""
        self._seq += 1
        runs = tuple(QueueRun(each.topic, each.queue_id, 1) for each in records)
        header = Append(99, self._session, self._seq, runs, "written", False)
        return self._tell(encode(header), b"".join(map(encode_record, records)))

    def send(self, delay: Delay, queue: int = 1, **more: str) -> str:
        """Send a message for a queue of orders that waits; its key."""
        self._number += 1
        key = f"KEY{self._number:04d}"
        own = encode_properties({"UNIQ_KEY": key} | more)
        record = Record("orders", key.encode(), own, queue, born_host=HOST)
        self.put(delayed(record, delay))
        return key

    def queue(self, topic: str = "orders", queue_id: int = 1) -> list[Record]:
        """All that stands in a queue by now."""
        found: list[Record] = self.broker.stored(topic, queue_id)
        return found

    def bodies(self, queue_id: int = 1) -> list[str]:
        return [each.body.decode() for each in self.queue(queue_id=queue_id)]

    def await_bodies(self, count: int, ms: int = 20) -> list[Record]:
        """Wait until this many have come to queue 1, and the scheduler knows that; and some time
        more: nothing comes twice."""
        self.until(lambda: len(self.queue()) >= count, f"message {count}", ms)
        # a message stands in its queue before the scheduler hears so
        self.until(lambda: not len(self.actor._sender), "the writer's answers")
        for _ in range(30):
            self.turn(ms)
        return self.queue()


@pytest.fixture
def scene(pipeline: Callable[..., Any]) -> Callable[..., Scene]:
    return lambda is_first=False, **settings: Scene(pipeline(**settings), is_first)


@pytest.fixture
def dice() -> random.Random:
    return random.Random(7)
