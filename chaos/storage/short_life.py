"""A short life of a broker on a faulty disk: so short that each of its calls can be made to fail.

    start, a topic, messages to all queues until every kind of file has rolled, another topic,
    a checkpoint, stop

The number of calls of a kind differs a little from one life to the next, so a life may end before
its Nth call, the one that was to fail. The caller decides what must hold when a call fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.chaos.broker import Broker
from penstock.chaos.history import Sent, check_acknowledged, check_order, digest
from penstock.chaos.interposed.faulty_disk import FLUSH, GROW, OPEN, FaultyDisk
from penstock.chaos.load import QUEUES, TOPIC, read_all
from penstock.client.sending.producer import Producer
from penstock.maintenance.verify.check import verify_store
from penstock.shared.errors import PenstockError
from penstock.shared.index.directory import index_geometry

SETTINGS: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": 256 << 10,
    "mapped_file_size_consume_queue_bytes": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 80,
    "flush_interval_consume_queue_ms": 20,
    "flush_consume_queue_least_pages": 0,
    # so that a sender that waits for the disk does not wait long
    "sync_flush_timeout_ms": 1000,
}
BATCHES, BATCH = 12, 12
BODY_BYTES = 3000
ANSWER_TIMEOUT_MS = 1500


class ShortLife:
    """One broker, its disk, and what its producer was told."""

    def __init__(self, place: Path, library: Path, settings: dict[str, object]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.disk = FaultyDisk(place / "disk", place / "store", library)
        self.broker = Broker(place, {**SETTINGS, **settings}, environment=self.disk.environment)
        self.acked: list[Sent] = []
        self.errors: list[PenstockError] = []
        self.serves = False
        self._number = 0

    def start(self) -> str:
        """Start and make the topic; return what the broker says when it cannot."""
        try:
            self.broker.start()
            self.serves = True
            with self.producer() as producer:
                producer.create_topic(TOPIC, QUEUES)
        except PenstockError as error:
            return f"{error}\n{self.broker.output()}"
        return ""

    def producer(self) -> Producer:
        return Producer(self.broker.produce, timeout_ms=ANSWER_TIMEOUT_MS, ack="durable")

    def send_all(self) -> bool:
        """Send what rolls every file, and make another topic; return False at the first error."""
        with self.producer() as producer:
            for _ in range(BATCHES):
                if not self.send(producer, BATCH):
                    return False
            try:
                producer.create_topic("another", 1)
            except PenstockError as error:
                self.errors.append(error)
        return not self.errors

    def send(self, producer: Producer, count: int) -> bool:
        """Send `count` messages and wait for their outcome; return whether all are acknowledged."""
        before, waiting = len(self.errors), []
        for _ in range(count):
            queue, number = self._number % QUEUES, self._number
            body = f"p1/{queue}/{number}/".encode() + bytes(BODY_BYTES)
            future = producer.send(TOPIC, body, queue=queue, keys=f"k{number}")
            waiting.append((queue, body, future))
            self._number += 1
        for queue, body, future in waiting:
            error = future.exception(10)
            if error is None:
                offset = future.result(0).queue_offset
                self.acked.append(Sent(queue, offset, digest(body), 0))
            else:
                self.errors.append(error)
        return len(self.errors) == before

    def await_send(self, timeout_s: float) -> float:
        """Seconds until a message is acknowledged. Raises the last error if none is."""
        began = time.monotonic()
        with self.producer() as producer:
            while not self.send(producer, 1):
                if time.monotonic() - began > timeout_s:
                    raise self.errors[-1]
        return time.monotonic() - began

    def check_readable(self) -> list[str]:
        """Check that consumers get what is dispatched, all of it right, while no write succeeds."""
        try:
            stored = read_all(self.broker.consume)
        except PenstockError as error:
            return [f"consumers cannot read: {error}"]
        there = [each for each in self.acked if each.queue_offset < len(stored[each.queue_id])]
        return check_order(stored) + check_acknowledged(
            there, stored, "or others, while the disk fails"
        )

    def check_tidy(self, *, restarts: bool = False) -> list[str]:
        """Check that no actor failed while the broker served, unless `restarts` are expected, and
        that no traceback was printed."""
        bad = ("Traceback",) if restarts or not self.serves else ("Traceback", "starting another")
        lines = self.broker.output().splitlines()
        return [line for line in lines if any(word in line for word in bad)][:1]

    def stop(self) -> tuple[int, list[str]]:
        """Stop the broker; return its exit code, and what it leaves that it should not."""
        self.broker.process.terminate()
        code = self.broker.wait_end()
        return code, [f"process {pid} is left" for pid in self.broker.processes()]

    def check_next_life(self) -> list[str]:
        """Check on a good disk that the store starts, has all acknowledged messages, and stops."""
        self.disk.heal()
        self.broker.start()
        with self.producer() as producer:
            producer.create_topic(TOPIC, QUEUES)
        self.broker.await_dispatched()
        stored = read_all(self.broker.consume)
        wrong = check_order(stored)
        wrong += check_acknowledged(self.acked, stored, "which were acknowledged")
        self.await_send(10)
        self.broker.stop()
        checked = verify_store(self.broker.store, index=index_geometry(self.broker.config))
        return wrong + [f"{each.kind}: {each.detail}" for each in checked.problems[:3]]

    def clear(self) -> None:
        self.broker.clear()
        self.disk.close()


@contextmanager
def short_life(place: Path, library: Path, settings: dict[str, object]) -> Iterator[ShortLife]:
    life = ShortLife(place, library, settings)
    try:
        yield life
    finally:
        life.clear()


def count_calls(place: Path, library: Path, settings: dict[str, object]) -> dict[str, int]:
    """The number of calls of each kind in a life on a good disk. Raises PenstockError."""
    with short_life(place, library, settings) as life:
        if said := life.start():
            raise PenstockError("a broker did not start on a good disk", said)
        life.send_all()
        life.broker.await_dispatched()
        life.broker.await_checkpoint()
        life.broker.stop()
        return {kind: life.disk.calls(kind) for kind in (GROW, FLUSH, OPEN)}
