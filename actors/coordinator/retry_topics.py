"""Has the writer make the topics of retries, %RETRY%group, which members subscribe to.

Topics are the writer's, so it is asked for them like by any client. Nothing waits for this: until
a topic is there it has no queue for members to divide. What is not answered is asked again.
"""

from __future__ import annotations

from typing import Any

import zmq

from penstock.shared.errors import ProtocolError, StoreUnavailable
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.wire import messages
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# What has no answer by then is asked again: the writer may be a new one.
AGAIN_MS = 5000
MAX_WANTED = 10_000
# As many requests of one client wait at the writer.
MAX_ASKED = 64


class RetryTopics:
    """Those that are wanted and not there."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, run_id: str) -> None:
        self.socket = dial(context, endpoint, PRODUCE_ANSWER_BYTES)
        self._run_id = run_id
        self._number = 0
        # topic -> queues, in the order in which they are asked for
        self._wanted: dict[str, int] = {}
        # request -> (topic, when it was asked for); oldest first
        self._asked: dict[int, tuple[str, int]] = {}

    def want(self, group: str, queues: int) -> None:
        """Have a group's topic made. Of too many at once some are left; a later join asks again."""
        if len(self._wanted) < MAX_WANTED:
            self._wanted.setdefault(retry_topic(group), queues)

    def work(self, now_ms: int) -> int:
        """Take answers, and ask for more."""
        done = self._receive()
        for number, (_, asked_ms) in list(self._asked.items()):
            if now_ms - asked_ms < AGAIN_MS:
                break
            del self._asked[number]
        if len(self._asked) < min(MAX_ASKED, len(self._wanted)):
            under_way = {topic for topic, _ in self._asked.values()}
            for topic in [each for each in self._wanted if each not in under_way]:
                if len(self._asked) >= MAX_ASKED or not self._ask(topic, now_ms):
                    break
                done += 1
        return done

    def _ask(self, topic: str, now_ms: int) -> bool:
        self._number += 1
        request = messages.CreateTopic(self._number, topic, self._wanted[topic], self._run_id)
        try:
            self.socket.send(messages.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return False  # the writer is being replaced
        self._asked[self._number] = topic, now_ms
        return True

    def _receive(self) -> int:
        done = 0
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            done += 1
            try:
                answer = messages.decode_produce_answer(self.socket.recv_multipart(zmq.NOBLOCK)[0])
            except ProtocolError:
                continue  # nothing that was asked for
            if not isinstance(answer, messages.Routed | messages.Refused):
                continue
            topic, _ = self._asked.pop(answer.request, ("", 0))
            # any other refusal is for good, as far as is known here: the next join asks again
            if isinstance(answer, messages.Routed) or answer.status != StoreUnavailable.status:
                self._wanted.pop(topic, None)
        return done

    def close(self) -> None:
        self.socket.close(linger=0)
