"""What a program asks a broker about topics: create, list, describe, update, delete.

The producer, which this is a part of, sends the requests. Arguments are checked before that.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.core.sending.routes import Request
from penstock.client.core.topic_requests import (
    create_request,
    delete_request,
    describe_request,
    update_request,
)
from penstock.shared.wire import messages
from penstock.shared.wire.messages import TopicDescribed


class TopicCalls:
    """The calls of a producer that are about topics."""

    def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues; how many it has then."""
        answer = self._administer(create_request(topic, queues), timeout)
        assert isinstance(answer, messages.Routed)
        return answer.queues

    def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        return (self.list_topics(timeout)).topics

    def list_topics(self, timeout: float = 10) -> messages.TopicList:
        """All topics, with their queues to read and permissions where these are not the usual."""
        answer = self._administer(messages.ListTopics(0), timeout)
        assert isinstance(answer, messages.TopicList)
        return answer

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        ends: Mapping[int, int] | None = None,
        dry_run: bool = False,
        timeout: float = 10,
    ) -> TopicDescribed:
        """Change what is set of a topic, None leaves it; what is set then.

        `perm` is RocketMQ's: 4 to read, 2 to write, 6 both. `attributes` are "+key": value, or
        "-key": "". To give a topic other numbers of queues while it is in use, see
        `penstock topics update --queues`, which does it in the safe order. With `ends` queues go
        only if they end there. With `dry_run` nothing changes.
        """
        request = update_request(
            topic, read_queues, write_queues, perm, order, attributes, ends, dry_run
        )
        answer = self._administer(request, timeout)
        assert isinstance(answer, TopicDescribed)
        return answer

    def delete_topic(
        self, topic: str, *, dry_run: bool = False, timeout: float = 10
    ) -> TopicDescribed:
        """Delete a topic with all its messages; what was set of it. Raises TopicNotFound."""
        answer = self._administer(delete_request(topic, dry_run), timeout)
        assert isinstance(answer, TopicDescribed)
        return answer

    def describe_topic(self, topic: str, timeout: float = 10) -> TopicDescribed:
        """What is set of a topic. Raises TopicNotFound."""
        answer = self._administer(describe_request(topic), timeout)
        assert isinstance(answer, TopicDescribed)
        return answer

    def _administer(self, request: Request, timeout: float) -> messages.TopicAnswer:
        """Ask, and wait for the answer. Raises what the broker has refused with."""
        raise NotImplementedError
