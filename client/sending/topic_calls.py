"""A producer's requests about topics: create, list, describe, update, delete.

They use the producer's connection. client/aio/topic_calls.py is the same for asyncio: the requests
are made in core/topic_requests.py, so the two differ only in how they wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, Unpack

from penstock.client.core.arguments import check_timeout
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.routes import Answer, Request
from penstock.client.core.topic_requests import (
    TopicChanges,
    create_request,
    delete_request,
    describe_request,
    update_request,
)
from penstock.client.sending.settled import Settled
from penstock.shared.errors import PenstockError
from penstock.shared.wire.messages import ListTopics, Routed, TopicDescribed, TopicList

if TYPE_CHECKING:
    from penstock.client.sending.send_loop import SendLoop

_Answer = TypeVar("_Answer", Routed, TopicList, TopicDescribed)


class TopicCalls:
    """A producer's calls about topics."""

    _core: ProducerCore
    _loop: SendLoop
    _settled: Settled

    def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues. Returns how many it has then."""
        return self._ask(create_request(topic, queues), Routed, timeout).queues

    def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        return self.list_topics(timeout).topics

    def list_topics(self, timeout: float = 10) -> TopicList:
        """All topics, with read queues and permissions where these are not the defaults."""
        return self._ask(ListTopics(0), TopicList, timeout)

    def update_topic(
        self, topic: str, *, timeout: float = 10, **changes: Unpack[TopicChanges]
    ) -> TopicDescribed:
        """Change a topic's settings, and return them.

        Of `read_queues`, `write_queues`, `perm`, `order` and `attributes`, those that are left out
        or None stay. `perm` is RocketMQ's: 4 to read, 2 to write, 6 both. `attributes` are
        "+key": value, or "-key": "". To change the number of queues while the topic is in use, see
        `penstock topics update --queues`, which does it in the safe order. With `ends`, queue ->
        offset, queues are removed only if they end there. With `dry_run` nothing changes.
        """
        return self._ask(update_request(topic, **changes), TopicDescribed, timeout)

    def delete_topic(
        self, topic: str, *, dry_run: bool = False, timeout: float = 10
    ) -> TopicDescribed:
        """Delete a topic with all its messages. Returns its last settings. Raises TopicNotFound."""
        return self._ask(delete_request(topic, dry_run), TopicDescribed, timeout)

    def describe_topic(self, topic: str, timeout: float = 10) -> TopicDescribed:
        """A topic's settings. Raises TopicNotFound."""
        return self._ask(describe_request(topic), TopicDescribed, timeout)

    def _ask(self, request: Request, kind: type[_Answer], timeout: float) -> _Answer:
        """Ask, and wait for the answer. Raises the broker's refusal."""
        seconds = check_timeout(timeout)
        self._loop.check_usable()
        found: list[Answer] = []
        with self._settled:
            self._loop.check_usable()
            number = self._core.routes.request(request)
            self._loop.wake()

            def answered() -> bool:
                answer = self._core.routes.answer(number)
                found.extend([answer] if answer is not None else [])
                return bool(found) or self._loop.closing

            try:
                in_time = self._settled.wait_for(answered, seconds)
            finally:
                self._core.routes.forget(number)
            if not in_time:
                raise self._core.timeouts.question(timeout)
            if not found:  # another thread has closed the producer
                self._loop.refuse_use()
        (answer,) = found
        if isinstance(answer, PenstockError):
            raise answer
        assert isinstance(answer, kind)
        return answer
