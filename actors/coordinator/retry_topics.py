"""Has the writer make the topics of retries, %RETRY%group, which members subscribe to.

Topics are the writer's, so it is asked for them like by any client. Nothing waits for this: until
a topic is there it has no queue for members to divide. What is not answered is asked again.
"""

from __future__ import annotations

from typing import Any

import zmq

from penstock.shared.errors import ProtocolError
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.wire import messages
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

AGAIN_MS = 500
# Of those that have no answer yet.
MAX_WANTED = 10_000
AT_ONCE = 256


class RetryTopics:
    """Those that are wanted and not there."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, run_id: str) -> None:
        self.socket = dial(context, endpoint, PRODUCE_ANSWER_BYTES)
        self._run_id = run_id
        self._number = 0
        # topic -> (queues, when it is asked for); and which topic a request is for
        self._wanted: dict[str, tuple[int, int]] = {}
        self._asked: dict[int, str] = {}

    @property
    def waits(self) -> bool:
        return bool(self._wanted)

    def want(self, group: str, queues: int) -> None:
        """Have a group's topic made. Of too many at once some are left; a later join asks again."""
        topic = retry_topic(group)
        if topic not in self._wanted and len(self._wanted) < MAX_WANTED:
            self._wanted[topic] = queues, 0

    def work(self, now_ms: int) -> int:
        """Take answers, and ask for what is due."""
        done = self._receive()
        for topic, (queues, due_ms) in list(self._wanted.items())[:AT_ONCE]:
            if now_ms < due_ms:
                continue
            self._number += 1
            request = messages.CreateTopic(self._number, topic, queues, self._run_id)
            try:
                self.socket.send(messages.encode(request), zmq.NOBLOCK)
            except zmq.Again:
                break  # the writer is being replaced
            self._asked[self._number] = topic
            # at the end: others come before it is asked for again
            del self._wanted[topic]
            self._wanted[topic] = queues, now_ms + AGAIN_MS
            done += 1
        if not self._wanted:
            self._asked.clear()
        return done

    def _receive(self) -> int:
        done = 0
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            done += 1
            try:
                answer = messages.decode_produce_answer(self.socket.recv_multipart(zmq.NOBLOCK)[0])
            except ProtocolError:
                continue  # nothing that was asked for
            if isinstance(answer, messages.Routed):
                self._wanted.pop(answer.topic, None)
                self._asked.pop(answer.request, None)
            elif isinstance(answer, messages.Refused):
                # no name of a topic, or the table of queues is full: the next join asks again
                self._wanted.pop(self._asked.pop(answer.request, ""), None)
        return done

    def close(self) -> None:
        self.socket.close(linger=0)
