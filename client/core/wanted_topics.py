"""Topics that an actor needs and that are not there: it has the writer make them, like any client.

    want -> asked for -> made, or refused

Topics are the writer's. Nothing waits for this: until a topic is there its messages have no queue.
What has no answer is asked for again, and so is what cannot be done now. No sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.wire import messages

# What has no answer by then, or could not be done, is asked again: the writer may be a new one.
AGAIN_MS = 5000
MAX_WANTED = 10_000
# As many requests of one client wait at the writer.
MAX_ASKED = 64


class WantedTopics:
    """Those of one actor."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._number = 0
        # topic -> queues, in the order in which they are asked for
        self._wanted: dict[str, int] = {}
        # request -> (topic, when it was asked for); oldest first
        self._asked: dict[int, tuple[str, int]] = {}
        self._refused: list[tuple[str, PenstockError]] = []

    def want(self, topic: str, queues: int) -> None:
        """Have a topic made. Of too many at once some are left: whoever needs one says so again."""
        if len(self._wanted) < MAX_WANTED:
            self._wanted.setdefault(topic, queues)

    def outgoing(self, now_ms: int) -> Iterator[bytes]:
        """Requests to be sent now. What was not sent after all is told by `not_connected`."""
        for number, (_, asked_ms) in list(self._asked.items()):
            if now_ms - asked_ms < AGAIN_MS:
                break
            del self._asked[number]
        if len(self._asked) >= min(MAX_ASKED, len(self._wanted)):
            return
        under_way = {topic for topic, _ in self._asked.values()}
        for topic in [each for each in self._wanted if each not in under_way]:
            if len(self._asked) >= MAX_ASKED:
                return
            self._number += 1
            self._asked[self._number] = topic, now_ms
            queues = self._wanted[topic]
            yield messages.encode(messages.CreateTopic(self._number, topic, queues, self._run_id))

    def not_connected(self) -> None:
        """The last request could not be sent: the writer is being replaced."""
        self._asked.popitem()

    def received(self, parts: Sequence[bytes]) -> bool:
        """Whether this was an answer to one of these requests. Raises ProtocolError."""
        if not self._asked:
            return False
        answer = messages.decode_produce_answer(parts[0])
        # a refusal of a frame, which has a session, is somebody else's
        if not isinstance(answer, messages.Routed | messages.Refused):
            return False
        if isinstance(answer, messages.Refused) and answer.session:
            return False
        topic, _ = self._asked.get(answer.request, ("", 0))
        if not topic:
            return False
        if isinstance(answer, messages.Refused):
            self._refused.append((topic, messages.error_from_refusal(answer)))
            if answer.status == StoreUnavailable.status:
                return True  # it counts as asked until it is time to ask again
        del self._asked[answer.request]
        self._wanted.pop(topic, None)
        return True

    def refused(self) -> list[tuple[str, PenstockError]]:
        """What was refused since the last call. StoreUnavailable may be over by itself; anything
        else is for good, as far as is known here."""
        found, self._refused = self._refused, []
        return found
