"""Has the writer make the topics of retries, %RETRY%group, which members subscribe to.

Nothing waits for this: until a topic is there it has no queue for members to divide.
"""

from __future__ import annotations

from typing import Any

import zmq

from penstock.client.core.topic_requests import WantedTopics
from penstock.shared.loops.active import has_message
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial


class RetryTopics:
    """Topics that are wanted and do not exist."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, run_id: str) -> None:
        self.socket = dial(context, endpoint, PRODUCE_ANSWER_BYTES)
        self._topics = WantedTopics(run_id)

    def want(self, group: str, queues: int) -> None:
        """Have a group's topic made."""
        self._topics.want(retry_topic(group), queues)

    def work(self, now_ms: int) -> int:
        """Take answers, and ask for more."""
        done = 0
        while has_message(self.socket):
            done += 1
            self._topics.received(self.socket.recv_multipart(zmq.NOBLOCK))
        self._topics.refused()  # the next join asks again
        for request in self._topics.outgoing(now_ms):
            try:
                self.socket.send(request, zmq.NOBLOCK)
            except zmq.Again:
                self._topics.not_connected()
                break
            done += 1
        return done

    def close(self) -> None:
        self.socket.close(linger=0)
