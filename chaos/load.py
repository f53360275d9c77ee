"""Load whose history is kept: producers remember what they were told, consumers what they saw.

Each runs in a thread of its own. history.py judges what they remember.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from penstock.chaos.history import Sent, Stored, digest
from penstock.client.core.message import Message
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import PenstockError, StoreUnavailable

TOPIC = "chaos"
QUEUES = 4
_ROUND_S = 0.02
_LARGE_BYTES = 40_000
NO_END = 1 << 60


def _no_flushes() -> int:
    return 0


class Load:
    """One producer that sends numbered messages to all queues in turn, at most `most`."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        *,
        rate: int = 1500,
        ack: str = "",
        timeout_ms: int = 30_000,
        most: int = NO_END,
        flushes: Callable[[], int] = _no_flushes,
    ) -> None:
        self.name = name
        self.most = most
        self.acked: list[Sent] = []
        self.failed: list[PenstockError] = []
        self._rate = rate
        self._flushes = flushes
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._producer = Producer(endpoint, timeout_ms=timeout_ms, ack=ack)
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.wait(_ROUND_S):
                at_once = max(1, int(self._rate * _ROUND_S))
                for _ in range(min(at_once, self.most - number)):
                    self._send(number % QUEUES, number)
                    number += 1
        except BaseException as error:
            self._error = error

    def _send(self, queue: int, number: int) -> None:
        size = (number * 7919) % 900
        if number % 97 == 0:
            size += _LARGE_BYTES
        body = f"{self.name}/{queue}/{number}/".encode() + bytes(size)
        future = self._producer.send(TOPIC, body, queue=queue, shard=None)
        future.add_done_callback(lambda done: self._settled(queue, body, done))

    def _settled(self, queue: int, body: bytes, future: Any) -> None:
        flushes = self._flushes()
        error = future.exception(0)
        with self._lock:
            if error is None:
                offset = future.result(0).queue_offset
                self.acked.append(Sent(queue, offset, digest(body), flushes))
            else:
                self.failed.append(error)

    def count(self) -> int:
        with self._lock:
            return len(self.acked)

    def await_most(self, timeout_s: float = 30) -> None:
        """Wait until everything that may be sent is acknowledged."""
        deadline = time.monotonic() + timeout_s
        while self.count() < self.most:
            if time.monotonic() > deadline:
                raise StoreUnavailable("a producer did not get on in time", self.name)
            time.sleep(0.005)

    def finish(self) -> None:
        """Stop sending and wait for every outcome. Raises what went wrong in the thread."""
        self._stopping.set()
        self._thread.join()
        if self._producer._closing:
            return
        self._producer.flush(60)
        self._producer.close()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Stop sending without waiting for outcomes: the broker is gone."""
        self._stopping.set()
        self._thread.join()
        if not self._producer._closing:
            self._producer._disconnect()


class Follower:
    """A consumer that follows the topic."""

    def __init__(self, endpoint: str, flushes: Callable[[], int] = _no_flushes) -> None:
        self.seen: list[Sent] = []
        self.bodies: Stored = defaultdict(list)
        self._flushes = flushes
        self._marked: set[bytes] = set()
        self._error: BaseException | None = None
        self._news = threading.Condition()
        self._stopping = False
        self._endpoint = endpoint
        self._thread = threading.Thread(target=self._run, name="follower")
        self._thread.start()

    def _run(self) -> None:
        try:
            with Consumer(self._endpoint, TOPIC) as consumer:
                while not self._stopping:
                    batch = consumer.poll(0.1)
                    flushes = self._flushes()
                    with self._news:
                        for message in batch:
                            self._take(
                                message.queue_id, message.queue_offset, message.body, flushes
                            )
                        self._news.notify_all()
        except BaseException as error:
            self._error = error

    def _take(self, queue: int, offset: int, body: bytes, flushes: int) -> None:
        if offset != len(self.bodies[queue]):
            raise StoreUnavailable(
                "a consumer saw another offset than the next one", f"queue {queue}: {offset}"
            )
        self.bodies[queue].append(bytes(body))
        self.seen.append(Sent(queue, offset, digest(body), flushes))
        if body.startswith(b"probe"):
            self._marked.add(bytes(body))

    def await_body(self, body: bytes, timeout_s: float) -> None:
        """Wait until a message whose body begins with "probe" has come."""
        self._await(lambda: body in self._marked, timeout_s)

    def await_counts(self, counts: dict[int, int], timeout_s: float) -> None:
        """Wait until this many messages of each queue have come."""
        self._await(lambda: all(len(self.bodies[q]) >= n for q, n in counts.items()), timeout_s)

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._news:
            in_time = self._news.wait_for(lambda: self._error or condition(), timeout_s)
        if self._error is not None:
            raise self._error
        if not in_time:
            raise StoreUnavailable(
                "a consumer did not see what is stored in time", f"{timeout_s} s"
            )

    def abandon(self) -> None:
        """Stop following, whatever has happened."""
        self._stopping = True
        self._thread.join()

    def finish(self) -> None:
        """Stop following. Raises what went wrong in the thread."""
        self._stopping = True
        self._thread.join()
        if self._error is not None:
            raise self._error


def read_all(endpoint: str, body: Callable[[Message], bytes] = attrgetter("body")) -> Stored:
    """Everything the topic holds, as a consumer reads it from the start."""
    stored: Stored = defaultdict(list)
    with Consumer(endpoint, TOPIC, follow=False) as consumer:
        for message in consumer:
            bodies = stored[message.queue_id]
            if message.queue_offset != len(bodies):
                raise StoreUnavailable(
                    "a consumer was given another offset than the next one", message.queue_offset
                )
            bodies.append(bytes(body(message)))
    return stored
