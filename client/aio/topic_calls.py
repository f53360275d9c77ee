"""The asyncio twin of penstock.client.sending.topic_calls: requests about topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, Unpack

from penstock.client.aio.send_loop import AioSendLoop
from penstock.client.core.arguments import check_timeout
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.routes import Request
from penstock.client.core.topic_requests import (
    TopicChanges,
    create_request,
    delete_request,
    describe_request,
    update_request,
)
from penstock.shared.errors import PenstockError
from penstock.shared.wire.messages import ListTopics, Routed, TopicDescribed, TopicList

_Answer = TypeVar("_Answer", Routed, TopicList, TopicDescribed)


class AioTopicCalls:
    """A producer's calls about topics. See the synchronous ones."""

    _core: ProducerCore

    if TYPE_CHECKING:
        # the producer's
        @property
        def _loop(self) -> AioSendLoop: ...

    async def create_topic(self, topic: str, queues: int, timeout: float = 10) -> int:
        """Create a topic, or give it more queues. Returns how many it has then."""
        return (await self._ask(create_request(topic, queues), Routed, timeout)).queues

    async def topics(self, timeout: float = 10) -> dict[str, int]:
        """All topics, and how many queues each has."""
        return (await self.list_topics(timeout)).topics

    async def list_topics(self, timeout: float = 10) -> TopicList:
        """All topics, with read queues and permissions where these are not the defaults."""
        return await self._ask(ListTopics(0), TopicList, timeout)

    async def update_topic(
        self, topic: str, *, timeout: float = 10, **changes: Unpack[TopicChanges]
    ) -> TopicDescribed:
        """Change a topic's settings, and return them. See the synchronous producer."""
        return await self._ask(update_request(topic, **changes), TopicDescribed, timeout)

    async def delete_topic(
        self, topic: str, *, dry_run: bool = False, timeout: float = 10
    ) -> TopicDescribed:
        """Delete a topic with all its messages. Returns its last settings. Raises TopicNotFound."""
        return await self._ask(delete_request(topic, dry_run), TopicDescribed, timeout)

    async def describe_topic(self, topic: str, timeout: float = 10) -> TopicDescribed:
        """A topic's settings. Raises TopicNotFound."""
        return await self._ask(describe_request(topic), TopicDescribed, timeout)

    async def _ask(self, request: Request, kind: type[_Answer], timeout: float) -> _Answer:
        """Ask, and wait for the answer. Raises the broker's refusal."""
        seconds = check_timeout(timeout)
        self._loop.check_usable()
        number = self._core.routes.request(request)
        self._loop.want()
        try:
            async with asyncio.timeout(seconds):
                while (answer := self._core.routes.answer(number)) is None:
                    self._loop.check_usable()
                    await self._loop.next_change()
        except TimeoutError:
            raise self._core.timeouts.question(timeout) from None
        finally:
            self._core.routes.forget(number)
        if isinstance(answer, PenstockError):
            raise answer
        assert isinstance(answer, kind)
        return answer
