"""One question to any endpoint of a broker, and its answer: for operators' tools.

A question is asked again while there is no answer, so it has to be one that may be asked twice. The
broker is named by its store or by any of its endpoints; the one that answers is found from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import zmq
from msgspec import structs

from penstock.client.broker_address import BrokerAddress, Store, as_seen_from, not_served
from penstock.client.core.timeouts import silent
from penstock.shared.wire.ask_broker import meet_broker
from penstock.shared.wire.group_messages import (
    DescribeGroup,
    GroupInfo,
    GroupList,
    ListGroups,
    decode_group_answer,
)
from penstock.shared.wire.introduction import ENDPOINT_OF, Serves
from penstock.shared.wire.messages import (
    Describe,
    Described,
    Refused,
    decode_consume_answer,
    encode,
    error_from_refusal,
)
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

REPEAT_MS = 500
T = TypeVar("T")


class Questions:
    """Asks one broker, over a connection for each question.

    Raises what clients raise when there is no broker, and what the broker refuses with.
    """

    def __init__(
        self, endpoint: str | None = None, *, store: Store | None = None, timeout: float = 10
    ) -> None:
        self._endpoint, self._store = endpoint, store
        self._timeout_ms = int(timeout * 1000)

    def describe_queues(self, topic: str) -> Described:
        """What the queues of a topic hold."""
        answer = self._ask("consumers", Describe(1, topic, -1), decode_consume_answer)
        assert isinstance(answer, Described)
        return answer

    def groups(self) -> list[str]:
        """The consumer groups that the broker knows."""
        answer = self._ask("members", ListGroups(1), decode_group_answer)
        assert isinstance(answer, GroupList)
        return sorted(answer.groups)

    def describe_group(self, group: str) -> GroupInfo:
        """Members and queues of a group."""
        answer = self._ask("members", DescribeGroup(1, group), decode_group_answer)
        assert isinstance(answer, GroupInfo)
        return answer

    def _address(self, serves: Serves) -> BrokerAddress:
        endpoint = self._endpoint
        if endpoint is not None:
            broker, reached = meet_broker(endpoint, self._timeout_ms)
            endpoint = getattr(as_seen_from(reached, broker), ENDPOINT_OF[serves])
            if not endpoint:
                raise not_served(reached, serves)
        address = BrokerAddress(serves, endpoint, self._store, self._timeout_ms, 0)
        address.meet()
        return address

    def _ask(self, serves: Serves, request: Any, decode: Callable[[bytes], T]) -> T:
        address = self._address(serves)
        header = encode(structs.replace(request, run=address.run_id))
        context: zmq.Context[Any] = zmq.Context()
        socket = dial(context, address.endpoint, PRODUCE_ANSWER_BYTES)
        socket.linger = 0
        until = time.monotonic() + self._timeout_ms / 1000
        try:
            while time.monotonic() < until:
                with suppress(zmq.Again):
                    socket.send(header, zmq.NOBLOCK)
                if socket.poll(REPEAT_MS):
                    answer = decode(socket.recv_multipart()[0])
                    if isinstance(answer, Refused):
                        raise error_from_refusal(answer)
                    return answer
            raise silent(address.name, self._timeout_ms)
        finally:
            socket.close()
            context.term()
