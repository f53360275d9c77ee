"""The wheel `rocketmq` 0.4.4: Python on RocketMQ's client in C++. Its endpoint is the name
server's.

Its asynchronous sends keep two callbacks for every message that was ever sent, and search them at
each answer; a broker of today does not see its batches as batches. So threads send, each of which
waits for its answer without holding the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

THREADS = 64
TRIES, AGAIN_S = 50, 0.1
PULLED_AT_ONCE = 32  # by default a broker gives no more at once
READ_AT_ONCE = 1000


class RocketMQWheel:
    """`send_sync` from some threads, and a consumer that pulls. If messages come at a pace, which
    one message in flight indicates, a push consumer."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        self._client: Any = import_module("rocketmq.client")
        self._failed: Any = import_module("rocketmq.exceptions").ProducerSendSyncFailed
        self._endpoint, self._topic = endpoint, topic
        self._is_paced = in_flight == 1
        self._threads = ThreadPoolExecutor(THREADS)
        self._room = threading.Semaphore(max(THREADS, in_flight))
        self._sending: list[Future[None]] = []
        self._producer: Any = None
        self._consumer: Any = None
        self._came: SimpleQueue[bytes] = SimpleQueue()
        self._pulled: Iterator[Any] = iter(())

    def _started(self, kind: Any) -> Any:
        # a new group, which has no offsets yet
        made = kind(f"bench-{os.getpid()}-{kind.__name__}")
        made.set_namesrv_addr(self._endpoint)
        return made

    def _send(self, bodies: list[bytes]) -> None:
        try:
            for body in bodies:
                message = self._client.Message(self._topic)
                message.set_body(body)
                self._send_one(message, TRIES)
        finally:
            self._room.release(len(bodies))

    def _send_one(self, message: Any, tries: int) -> None:
        """Send, and try again: with several threads, the library sometimes loses a route it had."""
        try:
            self._producer.send_sync(message)
        except self._failed:
            if tries == 1:
                raise
            time.sleep(AGAIN_S)
            self._send_one(message, tries - 1)

    async def send(self, bodies: list[bytes]) -> None:
        is_first = self._producer is None
        if is_first:
            self._producer = self._started(self._client.Producer)
            self._producer.start()
        # at a pace, messages that are due together must not wait for each other
        for each in [[body] for body in bodies] if self._is_paced else [bodies]:
            for _ in each:
                self._room.acquire()
            self._sending.append(self._threads.submit(self._send, each))
            if is_first:  # it learns the topic's route, at which several threads fail
                self._sending.pop().result()
                is_first = False

    async def settle(self) -> None:
        for sending in self._sending:
            sending.result()
        self._sending.clear()

    async def start(self) -> None:
        if self._is_paced:
            self._consumer = self._started(self._client.PushConsumer)
            self._consumer.subscribe(self._topic, lambda message: self._came.put(message.body))
            self._consumer.start()
            return
        if self._consumer is None:
            self._consumer = self._started(self._client.PullConsumer)
            self._consumer.start()
        self._consumer.offset_table.clear()
        self._pulled = self._consumer.pull(self._topic, max_num=PULLED_AT_ONCE)

    async def read(self, timeout_s: float) -> list[bytes]:
        if not self._is_paced:
            # a message's memory is freed together with the pull that brought it
            return [message.body for message in islice(self._pulled, READ_AT_ONCE)]
        bodies = []
        with suppress(Empty):
            bodies.append(self._came.get(timeout=timeout_s))
            while True:
                bodies.append(self._came.get_nowait())
        return bodies
