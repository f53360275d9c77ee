"""The requesting side of request and reply, for a synchronous Producer (see requester.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.where import Where
from penstock.client.core.message import Message
from penstock.client.core.requests import check_wait, merged
from penstock.client.core.send_options import MessageFields
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.shared.messaging.request_reply import reply_topic

if TYPE_CHECKING:
    from penstock.client.sending.requester import Requester


class Requesting:
    """The part of a producer that sends requests."""

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
        self, topic: str, body: Body, *, timeout: float = 3.0, **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message and wait for its reply, which its consumer sends by `reply`.

        Raises BrokerTimeout after `timeout` seconds; a reply that comes later is dropped. Takes
        `send`'s fields of a message, and raises what `send` and its future raise. Threads may wait
        for many replies at once.
        """
        seconds = check_wait(timeout)
        with self._lock:
            if self._requester is None:
                # imported late: most producers make no request
                from penstock.client.sending.requester import Requester

                ip, timeouts = self._address.local_ip(), self._core.timeouts
                self._requester = Requester(self._where, ip, timeouts, self._make_reply_topic)
            requester = self._requester

        def send(own: dict[str, str]) -> SendFuture:
            fields["properties"] = merged(fields.get("properties"), own)
            return self.send(topic, body, **fields)

        return requester.request(send, topic, seconds)

    def _end_requests(self) -> None:
        if self._requester is not None:
            self._requester.close()

    def _make_reply_topic(self, timeout: float) -> None:
        if reply_topic() not in self.topics(timeout):
            self.create_topic(reply_topic(), 1, timeout)
