"""Request and reply, as a synchronous Producer has them: both sides (see requester.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.client.broker_address import BrokerAddress
from penstock.client.core.message import Message
from penstock.client.core.requests import Request, check_wait, merged
from penstock.client.core.sending.encoding import Body, Keys
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.selectors import Selector
from penstock.client.where import Where
from penstock.shared.messaging.request_reply import reply_to, reply_topic

if TYPE_CHECKING:
    from penstock.client.requester import Requester


class Requesting:
    """The two sides of request and reply, for a producer."""

    _address: BrokerAddress
    _core: ProducerCore
    _lock: threading.RLock
    _where: Where
    _requester: Requester | None

    if TYPE_CHECKING:
        # the producer's
        send: Callable[..., SendFuture]
        topics: Callable[[float], dict[str, int]]
        create_topic: Callable[[str, int, float], int]

    def request(
        self,
        topic: str,
        body: Body,
        *,
        timeout: float = 3.0,
        tags: str | None = None,
        keys: Keys = None,
        shard: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Message:
        """Send a message and wait for its reply, which whoever consumes it sends by `reply`.

        Raises BrokerTimeout after `timeout` seconds: the request may be answered all the same, and
        nobody sees it then. Raises what `send` and its future raise. Threads may wait for many
        replies at once.
        """
        seconds = check_wait(timeout)
        with self._lock:
            if self._requester is None:
                # imported late: most producers make no request
                from penstock.client.requester import Requester

                ip, timeouts = self._address.local_ip(), self._core.timeouts
                self._requester = Requester(self._where, ip, timeouts, self._make_reply_topic)
            requester = self._requester

        def send(own: dict[str, str]) -> SendFuture:
            return self.send(
                topic,
                body,
                tags=tags,
                keys=keys,
                shard=shard,
                queue=queue,
                selector=selector,
                properties=merged(properties, own),
                flag=flag,
            )

        return requester.request(send, topic, seconds)

    def reply(
        self,
        request: Request,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys = None,
        properties: Mapping[str, str] | None = None,
        ack: str = "",
    ) -> SendFuture:
        """Answer a message that was sent by `request`, whichever consumer gave it; the future has
        the reply's Receipt.

        The reply is stored whether or not the requester is still there. Raises InvalidMessage for a
        message that is no request, and what `send` raises.
        """
        topic, own = reply_to(request.properties)
        named: dict[str, Any] = {"tags": tags, "keys": keys, "ack": ack}
        return self.send(topic, body, properties=merged(properties, own), **named)

    def _end_requests(self) -> None:
        if self._requester is not None:
            self._requester.close()

    def _make_reply_topic(self, timeout: float) -> None:
        if reply_topic() not in self.topics(timeout):
            self.create_topic(reply_topic(), 1, timeout)
