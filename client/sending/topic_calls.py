"""What a program asks a broker about topics: create, list, describe, update, delete.

A part of the producer, whose connection it asks by. aio_topic_calls.py is the same for asyncio:
what is asked is in core/topic_requests.py, so the two differ in how they wait.
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
    """The calls of a producer that are about topics."""

    _core: ProducerCore
    _loop: SendLoop
    _settled: Settled

    def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues; how many it has then."""
        return self._ask(create_request(topic, queues), Routed, timeout).queues

    def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        return self.list_topics(timeout).topics

    def list_topics(self, timeout: float = 10) -> TopicList:
        """All topics, with their queues to read and permissions where these are not the usual."""
        return self._ask(ListTopics(0), TopicList, timeout)

    def update_topic(
        self, topic: str, *, timeout: float = 10, **changes: Unpack[TopicChanges]
    ) -> TopicDescribed:
        """Change what is set of a topic; what is set then.

        Of `read_queues`, `write_queues`, `perm`, `order` and `attributes` what is left out, or
        None, stays. `perm` is RocketMQ's: 4 to read, 2 to write, 6 both. `attributes` are
        "+key": value, or "-key": "". To give a topic other numbers of queues while it is in use,
        see `penstock topics update --queues`, which does it in the safe order. With `ends`, queue
        -> offset, queues go only if they end there. With `dry_run` nothing changes.
        """
        return self._ask(update_request(topic, **changes), TopicDescribed, timeout)

    def delete_topic(
        self, topic: str, *, dry_run: bool = False, timeout: float = 10
    ) -> TopicDescribed:
        """Delete a topic with all its messages; what was set of it. Raises TopicNotFound."""
        return self._ask(delete_request(topic, dry_run), TopicDescribed, timeout)

    def describe_topic(self, topic: str, timeout: float = 10) -> TopicDescribed:
        """What is set of a topic. Raises TopicNotFound."""
        return self._ask(describe_request(topic), TopicDescribed, timeout)

    def _ask(self, request: Request, kind: type[_Answer], timeout: float) -> _Answer:
        """Ask, and wait for the answer. Raises what the broker has refused with."""
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
